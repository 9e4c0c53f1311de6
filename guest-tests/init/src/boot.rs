//! What PID 1 owes the kernel: file systems at the start, power-off at the end.
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::mount::{MountFlags, mount};
use rustix::system::{RebootCommand, reboot, uname};

use crate::report;

/// Mounts proc, sys and dev where they are not mounted yet.
///
/// A failure is reported and survived: which scenario it breaks shows later, and a guest that is
/// already set up (a developer's own initramfs) has them mounted.
pub fn mount_all() {
    for (source, target) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")] {
        let _ = fs::create_dir_all(target);
        match mount(source, target, source, MountFlags::empty(), None) {
            Ok(()) | Err(rustix::io::Errno::BUSY) => {}
            Err(error) => report::line(format_args!("boot: mount {source} on {target}: {error}")),
        }
    }
}

/// Seconds since the kernel started.
pub fn uptime() -> f64 {
    fs::read_to_string("/proc/uptime")
        .ok()
        .and_then(|text| {
            text.split_whitespace()
                .next()
                .and_then(|first| first.parse().ok())
        })
        .unwrap_or(0.0)
}

/// The running kernel's release, as module version magic names it.
pub fn kernel_release() -> String {
    uname().release().to_string_lossy().into_owned()
}

/// A line of `/proc/meminfo` in MiB, for example `MemAvailable`.
pub fn memory_mib(key: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|l| l.strip_prefix(key)?.strip_prefix(':'))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / 1024)
}

/// Says where we are.
pub fn announce() {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    report::line(format_args!(
        "boot kernel {} cpus {cpus} memory {} MiB uptime {:.2} s",
        kernel_release(),
        memory_mib("MemTotal").unwrap_or(0),
        uptime()
    ));
}

/// An interactive shell on the console, if the initramfs holds one.
pub fn shell() {
    let busybox = ["/bin/busybox", "/busybox"]
        .into_iter()
        .find(|p| Path::new(p).exists());
    let mut command = match busybox {
        Some(path) => {
            // Job control needs a session with a controlling terminal; busybox knows how.
            let mut command = Command::new(path);
            command.args(["setsid", "cttyhack", path, "sh"]);
            command
        }
        None if Path::new("/bin/sh").exists() => Command::new("/bin/sh"),
        None => {
            report::line(
                "note shell: no /bin/busybox and no /bin/sh in the initramfs: add one, or drop neuron.shell=1",
            );
            return;
        }
    };
    report::line("note shell: leave it with `exit`");
    command
        .env("PATH", "/bin:/sbin:/usr/bin:/usr/sbin")
        .env("HOME", "/")
        .env("PS1", "guest# ");
    if let Err(error) = command.status() {
        report::line(format_args!("note shell: {error}"));
    }
}

/// Powers the machine off; does not return.
pub fn power_off() -> ! {
    report::line("poweroff");
    // The console of a slow serial port may still hold output in user space's tty buffer.
    std::thread::sleep(Duration::from_millis(20));
    rustix::fs::sync();
    let error = reboot(RebootCommand::PowerOff);
    report::line(format_args!(
        "poweroff failed: {error:?}; halting (does the machine have ACPI?)"
    ));
    stay()
}

/// Keeps PID 1 alive without using the CPU: its exit would panic the kernel.
pub fn stay() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}
