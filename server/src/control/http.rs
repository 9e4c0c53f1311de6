//! Just enough HTTP/1.1 to be scraped: GET and HEAD of one page, one request per connection, everything bounded.
use std::future::Future;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// Longest head of a request.
const MAX_HEAD: usize = 8 << 10;
/// Most header fields of a request.
const MAX_FIELDS: usize = 64;
/// How long a client may take to ask, and again to read the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is served.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// Its path.
    pub path: &'static str,
    /// Its media type.
    pub media_type: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Get,
    Head,
    Refused(&'static str),
}

/// Answers one request with the page that `make` makes.
///
/// # Errors
/// The client is gone, or too slow.
pub async fn answer<S, F>(
    mut stream: S,
    page: Page,
    make: impl FnOnce() -> F,
) -> std::io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Future<Output = Result<String, String>>,
{
    let asked = timeout(PATIENCE, read(&mut stream, page.path)).await??;
    let (status, body) = match asked {
        Asked::Get | Asked::Head => match make().await {
            Ok(body) => ("200 OK", body),
            Err(error) => ("503 Service Unavailable", error + "\n"),
        },
        Asked::Refused(status) => (status, format!("{status}: GET {}\n", page.path)),
    };
    let media_type = if status.starts_with("200") {
        page.media_type
    } else {
        "text/plain; charset=utf-8"
    };
    let allow = if status.starts_with("405") {
        "Allow: GET, HEAD\r\n"
    } else {
        ""
    };
    let mut answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n{allow}Connection: close\r\n\r\n",
        body.len()
    );
    if asked != Asked::Head {
        answer += &body;
    }
    timeout(PATIENCE, async {
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await
    })
    .await?
}

async fn read(stream: &mut (impl AsyncRead + Unpin), path: &str) -> std::io::Result<Asked> {
    let mut head = Vec::with_capacity(1024);
    loop {
        let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
        let mut request = httparse::Request::new(&mut fields);
        match request.parse(&head) {
            Ok(httparse::Status::Complete(_)) => return Ok(judge(&request, path)),
            Ok(httparse::Status::Partial) if head.len() < MAX_HEAD => {}
            Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
                return Ok(Asked::Refused("431 Request Header Fields Too Large"));
            }
            Err(_) => return Ok(Asked::Refused("400 Bad Request")),
        }
        let mut chunk = [0; 1024];
        let len = chunk.len().min(MAX_HEAD - head.len());
        match stream.read(&mut chunk[..len]).await? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            n => head.extend_from_slice(&chunk[..n]),
        }
    }
}

fn judge(request: &httparse::Request<'_, '_>, path: &str) -> Asked {
    let target = request.path.unwrap_or("");
    if target.split('?').next() != Some(path) {
        return Asked::Refused("404 Not Found");
    }
    match request.method {
        Some("GET") => Asked::Get,
        Some("HEAD") => Asked::Head,
        _ => Asked::Refused("405 Method Not Allowed"),
    }
}
