//! Files that a run leaves behind: opened in one place, each once, and not forgotten when one could not be written.
use std::fs::File;
use std::path::Path;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FileType, Mode, OFlags};

/// A regular file that this process has opened as an output.
struct Opened {
    /// Device and inode.
    id: (u64, u64),
    /// Until it is emptied.
    handle: Option<File>,
}

static OPENED: Mutex<Vec<Opened>> = Mutex::new(Vec::new());

/// An output was not written to its end.
static LOST: AtomicBool = AtomicBool::new(false);

/// Opens the file that `option` names, or makes it. What is in it stays until [`empty`]: the run may yet be refused.
///
/// # Errors
/// A sentence that names option, file and reason. Pipes and sockets are refused: their other end decides when a write
/// returns, and the end of a run would wait for it.
pub fn create(option: &str, path: &Path) -> Result<File, String> {
    let refused = |why: String| format!("{option} {}: {why}", path.display());
    // Opening a pipe that nobody reads would wait for a reader. No effect on files.
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let mode = Mode::from_raw_mode(0o666);
    let file = rustix::fs::open(path, flags, mode).map_err(|errno| match errno {
        rustix::io::Errno::NXIO => refused(PIPE.to_owned()),
        errno => refused(std::io::Error::from(errno).to_string()),
    })?;
    let stat = rustix::fs::fstat(&file).map_err(|errno| refused(errno.to_string()))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {
            let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
            let id = (stat.st_dev, stat.st_ino);
            if opened.iter().any(|other| other.id == id) {
                return Err(refused("another option writes to the same file".to_owned()));
            }
            let handle = file
                .try_clone()
                .map_err(|error| refused(error.to_string()))?;
            opened.push(Opened {
                id,
                handle: Some(File::from(handle)),
            });
        }
        // /dev/null and the like.
        FileType::CharacterDevice => {}
        _ => return Err(refused(PIPE.to_owned())),
    }
    Ok(File::from(file))
}

/// Empties all that were opened: from now on nothing stands in the way of the run.
///
/// # Errors
/// A file cannot be emptied.
pub fn empty() -> std::io::Result<()> {
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    for output in opened.iter_mut() {
        if let Some(file) = output.handle.take() {
            file.set_len(0)?;
        }
    }
    Ok(())
}

const PIPE: &str = "not a file; a pipe or socket could hold up the device: write to a file";

/// Refuses a descriptor that somebody else opened, unless it is that of a regular file.
///
/// # Errors
/// A sentence.
pub fn regular(file: &File) -> Result<(), String> {
    match file.metadata() {
        Ok(metadata) if metadata.is_file() => Ok(()),
        Ok(_) => Err(PIPE.to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// An output that was asked for could not be written to its end, which the log has said.
pub fn lost() {
    LOST.store(true, Ordering::Relaxed);
}

/// Whether that happened to any: a run that ends well otherwise has not done what was asked for.
pub fn any_lost() -> bool {
    LOST.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_once_and_no_pipes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        std::fs::write(&path, "old").unwrap();
        drop(create("--a", &path).unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        empty().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"");
        let link = directory.path().join("b");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let error = create("--b", &link).unwrap_err();
        assert!(error.starts_with("--b ") && error.ends_with("writes to the same file"));
        let pipe = directory.path().join("p");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert!(create("--p", &pipe).unwrap_err().contains("a pipe"));
        // With a reader it could be opened.
        let reader = rustix::fs::open(&pipe, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty());
        assert!(create("--p", &pipe).unwrap_err().contains("a pipe"));
        assert!(regular(&File::from(reader.unwrap())).is_err());
        for _ in 0..2 {
            create("--null", Path::new("/dev/null")).unwrap();
        }
        assert!(create("--d", directory.path()).is_err());
    }
}
