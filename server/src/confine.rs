//! Giving up what a device does not need, once its sockets are bound.
//!
//! What a client sends is handled by safe code for the most part, but if that is ever not enough, the process that a
//! guest has taken over can open no file, make no socket, start no program. Three layers: `no_new_privs`; landlock, where
//! the kernel has it, under which only the socket files can be removed; and a seccomp filter that answers every system
//! call that is not on its list with `EPERM`, so that what was forgotten is an error and not the end of all devices.
//!
//! Call [`confine`] before any thread is started: threads inherit it.
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, make_bitflags,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// Rights of the newest kernel we know; older ones enforce what they have.
const LANDLOCK: ABI = ABI::V5;

/// What is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confinement {
    /// The kernel has landlock.
    pub landlock: bool,
}

/// Why the process could not be confined.
#[derive(Debug, thiserror::Error)]
#[error("cannot confine the process: {what}: {why}; --no-sandbox goes on without")]
pub struct ConfineError {
    what: &'static str,
    why: String,
}

fn failed<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> ConfineError {
    move |error| ConfineError {
        what,
        why: error.to_string(),
    }
}

/// What may be done in the directory of reports: make, replace and remove files.
const REPORT_RIGHTS: BitFlags<AccessFs> =
    make_bitflags!(AccessFs::{WriteFile | MakeReg | RemoveFile | Truncate});

/// Confines the calling thread and those it starts. Files in `directories` can still be removed, and files in `report`
/// made. Where the kernel has no landlock, the latter is held by the descriptor alone, which an absolute path gets around.
///
/// # Errors
/// The kernel refuses. A kernel without landlock is no error.
pub fn confine<'a>(
    directories: impl IntoIterator<Item = &'a Path>,
    report: Option<BorrowedFd<'_>>,
) -> Result<Confinement, ConfineError> {
    load_symbols();
    // seccomp needs it of an unprivileged process, and would set it too; landlock likewise.
    rustix::thread::set_no_new_privs(true).map_err(failed("no_new_privs"))?;
    let landlock = restrict_files(directories, report)?;
    let filter = filter(report)?;
    seccompiler::apply_filter(&filter).map_err(failed("seccomp"))?;
    Ok(Confinement { landlock })
}

/// Reads the program's symbols while files can still be opened, if backtraces are asked for: std keeps them.
fn load_symbols() {
    if std::env::var_os("RUST_BACKTRACE").is_some_and(|value| value != "0") {
        // Naming the frames is what reads them.
        let _ = std::backtrace::Backtrace::force_capture().to_string();
    }
}

fn restrict_files<'a>(
    directories: impl IntoIterator<Item = &'a Path>,
    report: Option<BorrowedFd<'_>>,
) -> Result<bool, ConfineError> {
    let mut ruleset = Ruleset::default()
        .handle_access(AccessFs::from_all(LANDLOCK))
        .and_then(|ruleset| ruleset.handle_access(AccessNet::from_all(LANDLOCK)))
        .and_then(Ruleset::create)
        .map_err(failed("landlock"))?;
    for directory in directories {
        let directory = PathFd::new(directory).map_err(failed("landlock"))?;
        ruleset = ruleset
            .add_rule(PathBeneath::new(directory, AccessFs::RemoveFile))
            .map_err(failed("landlock"))?;
    }
    if let Some(report) = report {
        ruleset = ruleset
            .add_rule(PathBeneath::new(report, REPORT_RIGHTS))
            .map_err(failed("landlock"))?;
    }
    let status = ruleset.restrict_self().map_err(failed("landlock"))?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}

fn filter(report: Option<BorrowedFd<'_>>) -> Result<BpfProgram, ConfineError> {
    let architecture = std::env::consts::ARCH
        .try_into()
        .map_err(failed("seccomp"))?;
    let allowed: BTreeSet<i64> = ALLOWED.iter().chain(ALLOWED_OLD).copied().collect();
    let mut rules: BTreeMap<_, _> = allowed.into_iter().map(|call| (call, Vec::new())).collect();
    if let Some(report) = report {
        rules.extend(report_rules(report)?);
    }
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    SeccompFilter::new(rules, refuse, SeccompAction::Allow, architecture)
        .and_then(BpfProgram::try_from)
        .map_err(failed("seccomp"))
}

/// Files may be opened and renamed relative to the directory of reports.
fn report_rules(report: BorrowedFd<'_>) -> Result<[(i64, Vec<SeccompRule>); 3], ConfineError> {
    let fd = u64::try_from(report.as_raw_fd()).map_err(failed("seccomp"))?;
    let is_report = |argument| {
        let (len, equal) = (SeccompCmpArgLen::Dword, SeccompCmpOp::Eq);
        SeccompCondition::new(argument, len, equal, fd).map_err(failed("seccomp"))
    };
    let rule = |conditions| SeccompRule::new(conditions).map_err(failed("seccomp"));
    let open = rule(vec![is_report(0)?])?;
    let rename = rule(vec![is_report(0)?, is_report(2)?])?;
    Ok([
        (libc::SYS_openat, vec![open]),
        (libc::SYS_renameat, vec![rename.clone()]),
        (libc::SYS_renameat2, vec![rename]),
    ])
}

/// What serving needs. Not there, on purpose: whatever opens a file, makes or connects a socket, starts a program or looks
/// into another process.
const ALLOWED: &[i64] = &[
    // The wire, the control socket, the log.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_accept4,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_ioctl,
    libc::SYS_fcntl,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fstat,
    libc::SYS_lseek,
    // Waiting: device threads poll, tokio has epoll, an eventfd, and a socket pair for signals.
    libc::SYS_ppoll,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    libc::SYS_socketpair,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_restart_syscall,
    // Memory: the guest's, the device's, the heap.
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_memfd_create,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_membarrier,
    // Threads and signals.
    libc::SYS_futex,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_set_tid_address,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_prctl,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_tgkill,
    libc::SYS_getrandom,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // The socket files go at the end.
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_unlinkat,
];

/// Older names of the same, which only some architectures have.
#[cfg(target_arch = "x86_64")]
const ALLOWED_OLD: &[i64] = &[
    libc::SYS_poll,
    libc::SYS_epoll_wait,
    libc::SYS_dup2,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_unlink,
    libc::SYS_time,
    libc::SYS_gettimeofday,
];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_OLD: &[i64] = &[libc::SYS_gettimeofday];

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::TcpStream;
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::memory::Sparse;

    const CHILD: &str = "NEURON_TEST_CONFINED";

    /// Runs in a process of its own, for there is no way back.
    #[test]
    fn the_forbidden_fails_and_the_needed_works() {
        if let Some(directory) = std::env::var_os(CHILD) {
            return inside(Path::new(&directory));
        }
        let directory = tempfile::tempdir().unwrap();
        for name in ["allowed/socket", "other/file"] {
            let path = directory.path().join(name);
            std::fs::create_dir(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        }
        let output = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "confine::tests::the_forbidden_fails_and_the_needed_works",
                "--test-threads=1",
                "--nocapture",
            ])
            .env("RUST_BACKTRACE", "1")
            .env(CHILD, directory.path())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}\n{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(!directory.path().join("allowed/socket").exists());
        assert!(directory.path().join("other/file").exists());
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(stdout.contains("1 passed"), "{stdout}");
    }

    #[inline(never)]
    fn whoever_panics() -> String {
        std::backtrace::Backtrace::force_capture().to_string()
    }

    fn inside(directory: &Path) {
        let allowed = directory.join("allowed");
        // Before: all of this works.
        assert!(std::fs::read("/proc/self/status").is_ok());
        let reports = directory.join("reports");
        let reports = crate::control::report::ReportDir::open(&reports).unwrap();
        let Confinement { landlock } = confine(
            [allowed.as_path()],
            Some(std::os::fd::AsFd::as_fd(&reports)),
        )
        .unwrap();
        for content in [b"one".as_slice(), b"two"] {
            reports.write("report", content).unwrap();
        }
        if landlock {
            assert!(reports.write("../allowed/new", b"x").is_err());
        }
        let refused = |result: std::io::Result<()>, what: &str| {
            let kind = result.expect_err(what).kind();
            assert_eq!(kind, ErrorKind::PermissionDenied, "{what}");
        };
        refused(std::fs::read("/proc/self/status").map(drop), "read a file");
        refused(std::fs::write(allowed.join("new"), "x"), "create a file");
        refused(std::fs::create_dir(allowed.join("d")), "create a directory");
        refused(
            Command::new("/bin/true").status().map(drop),
            "start a program",
        );
        refused(
            UnixStream::connect(allowed.join("socket")).map(drop),
            "connect",
        );
        refused(
            TcpStream::connect("127.0.0.1:9").map(drop),
            "connect by TCP",
        );
        if landlock {
            refused(
                std::fs::remove_file(directory.join("other/file")),
                "remove a file",
            );
        } else {
            eprintln!("this kernel has no landlock: other files can be removed");
        }
        std::fs::remove_file(allowed.join("socket")).unwrap();
        let trace = whoever_panics();
        assert!(trace.contains("whoever_panics"), "no symbols: {trace}");
        // Device memory, threads, a pair of sockets, the runtime with its signals.
        let memory = Sparse::new("test", 1 << 30).unwrap();
        crate::memory::write_own(&[1; 4096], &memory.slice(0, 4096).unwrap());
        assert_eq!(memory.resident(), 4096);
        memory.clear();
        assert_eq!(memory.resident(), 0);
        let name = std::thread::Builder::new().name("t".into());
        let thread = name
            .spawn(|| std::fs::read("/proc/self/status").is_err())
            .unwrap();
        assert!(thread.join().unwrap(), "a new thread is not confined");
        UnixStream::pair().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            use tokio::signal::unix::{SignalKind, signal};
            drop(signal(SignalKind::user_defined1()).unwrap());
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            tokio::task::spawn_blocking(|| ()).await.unwrap();
        });
    }
}
