//! `show`: a recording as a page.
use std::path::PathBuf;

use clap::Args;

use super::coverage;
use super::exit::Exit;
use crate::observe::coverage::Coverage;
use crate::record::show::Watcher;
use crate::record::{Replay, page};

/// Options of `show`.
#[derive(Args, Debug)]
pub struct ShowArgs {
    /// The recording, as --record made it
    file: PathBuf,

    /// Where to write the page [default: the recording's path with .html appended]
    #[arg(long, short, value_name = "PATH")]
    output: Option<PathBuf>,
}

impl ShowArgs {
    /// Writes the page and names it.
    pub fn run(self) -> Exit {
        match self.page() {
            Ok(path) => {
                super::print(&format!("{}\n", path.display()));
                Exit::Ok
            }
            Err(error) => {
                eprintln!("error: {error}");
                Exit::Failed
            }
        }
    }

    fn page(self) -> Result<PathBuf, String> {
        let name = self.file.display().to_string();
        let fail = |error: &dyn std::fmt::Display| format!("{name}: {error}");
        let file = std::fs::read(&self.file).map_err(|error| fail(&error))?;
        let mut replay = Replay::tolerant(file).map_err(|error| fail(&error))?;
        let header = replay.header().clone();
        let config = header.config().map_err(|error| fail(&error))?;
        let (watcher, registers) = (Watcher::default(), Coverage::default());
        replay.observe(Box::new(watcher.clone()));
        replay.observe(Box::new(registers.clone()));
        if let Err(error) = replay.run() {
            eprintln!("note: {name}: only up to there: {error}");
        }
        let seen = watcher.seen();
        let report = coverage::report(&registers, &config).map_err(|error| fail(&error))?;
        let subtitle = format!(
            "{} on platform {}, {:.3} s of device time, recorded by version {}",
            header.product,
            header.platform,
            seen.end.as_secs_f64(),
            header.version
        );
        let page = page::render(
            &name,
            &subtitle,
            &seen,
            &report,
            config.product.generation(),
        );
        let path = self.output.unwrap_or_else(|| {
            let mut path = self.file.into_os_string();
            path.push(".html");
            path.into()
        });
        std::fs::write(&path, page).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(path)
    }
}
