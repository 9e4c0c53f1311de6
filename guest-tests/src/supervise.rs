//! Watches the processes of a run: starts them, reads what they say, decides when it is over, and takes them down.
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::account::{self, Account};
use crate::bars::Bars;
use crate::capture::{Message, Source, Tail, follow};
use crate::guest_line::{self, GuestLine};
use crate::initramfs;
use crate::judge::Judge;
use crate::lane::{FTRACE, INTERRUPTED, Lane};
use crate::outcome::{Failure, Finding};
use crate::process::{Group, Watched};
use crate::progress::Progress;
use crate::qemu::{self, Machine};
use crate::qmp::Qmp;
use crate::report::Report;
use crate::sanitizer;

/// A server that is not ready by then will not be.
const READY_TIME: Duration = Duration::from_secs(20);
/// After the first line of an oops the rest of the report follows at the speed of a serial line.
const REPORT_TIME: Duration = Duration::from_secs(4);
/// Longest pause in the guest's output: `init` gives the driver 150 s to become ready and reports by itself after that.
const SILENCE: Duration = Duration::from_secs(200);
/// A child asked to end.
const GRACE: Duration = Duration::from_secs(5);
/// Lines of each log shown on failure.
const TAIL: usize = 25;

/// Relative to the run directory, which is everybody's working directory: a socket's path has at most 107 bytes.
const SOCKET: &str = "neuron.sock";
const CONTROL: &str = "neuron.ctl";
const QMP: &str = "qmp.sock";

/// The sockets that `serve --devices` makes.
fn sockets(devices: u8) -> Vec<String> {
    match devices {
        1 => vec![SOCKET.to_owned()],
        _ => (0..devices).map(|n| format!("neuron{n}.sock")).collect(),
    }
}

/// The server's option that makes them.
fn place(devices: u8) -> [&'static str; 2] {
    match devices {
        1 => ["--socket", SOCKET],
        _ => ["--socket-dir", "."],
    }
}

/// The kernel command line.
fn append(lane: &Lane) -> String {
    let mut text = format!(
        // loglevel 7: BAR placement is told at level 6. The default panic=0 keeps a dead guest and its device for the dump.
        "console=ttyS0 loglevel=7 neuron.module={} neuron.devices={} neuron.scenario={}",
        initramfs::MODULE,
        lane.devices,
        lane.scenarios
    );
    let mut add = |word: &str| {
        text.push(' ');
        text.push_str(word);
    };
    if !lane.module_args.is_empty() {
        add(&format!("\"neuron.module_args={}\"", lane.module_args));
    }
    if lane.virtual_time {
        // Guest time, of which idle waits take none: longer than any reset that a driver waits for (contract §7).
        add("neuron.timeout=900 neuron.ready_timeout=900");
    }
    if lane.shell {
        add("neuron.shell=1");
    } else {
        // With a shell nobody reads the console meanwhile.
        add("neuron.ask=1");
    }
    if lane.ftrace.is_some() {
        add("neuron.ftrace=1");
    }
    if lane.gdb.is_some() {
        add("nokaslr");
    }
    if !lane.append.is_empty() {
        add(&lane.append);
    }
    text
}

/// What the server says by its exit status (docs/testing.md).
fn meaning(status: ExitStatus) -> &'static str {
    match status.code() {
        Some(3) => "a device died; its last state is in server.log",
        Some(5) => "the driver broke a rule (--sanitize=fatal); server.log names it",
        Some(6) => "a batch was slower than --budget-limit allows; server.log has the worst",
        _ => "see server.log",
    }
}

/// How far the guest has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// Nothing heard.
    Silent,
    /// The kernel prints.
    Kernel,
    /// `init` prints.
    Init,
    /// `init` is through with the scenarios.
    Summary,
}

/// The processes of a run and what is known so far.
pub(crate) struct Run<'a> {
    lane: &'a Lane,
    pub(crate) dir: PathBuf,
    from: Receiver<Message>,
    server: Option<Watched>,
    ready: bool,
    qemu: Option<Watched>,
    qmp: Option<Qmp>,
    guest_tail: Tail,
    qemu_tail: Tail,
    server_tail: Tail,
    judge: Judge,
    bars: Bars,
    pub(crate) report: Report,
    stage: Stage,
}

impl<'a> Run<'a> {
    pub(crate) fn new(lane: &'a Lane, dir: PathBuf, from: Receiver<Message>) -> Self {
        Self {
            lane,
            from,
            server: None,
            ready: false,
            qemu: None,
            qmp: None,
            guest_tail: Tail::new(TAIL),
            qemu_tail: Tail::new(TAIL),
            server_tail: Tail::new(TAIL),
            judge: Judge::new(&lane.required, &lane.rejected),
            bars: Bars::default(),
            report: Report {
                dir: dir.clone(),
                ..Report::default()
            },
            dir,
            stage: Stage::Silent,
        }
    }

    pub(crate) fn start(
        &mut self,
        to: &SyncSender<Message>,
        initramfs: &Path,
        progress: &mut Progress,
    ) -> Result<()> {
        progress.step("starting the device server");
        self.start_server(to)?;
        self.await_server(progress)?;
        progress.step(format!(
            "booting the guest ({}{}, {}, kernel {})",
            self.lane.accel.name(),
            if self.lane.virtual_time {
                " in virtual time"
            } else {
                ""
            },
            self.lane.product,
            self.lane.kernel.release.as_deref().unwrap_or("?")
        ));
        self.start_qemu(to, initramfs)
    }

    fn start_server(&mut self, to: &SyncSender<Message>) -> Result<()> {
        let lane = self.lane;
        // Readiness comes on descriptor 3, which is our pipe: a shell passes it on without unsafe code of ours.
        let mut command = Command::new("/bin/sh");
        command
            .current_dir(&self.dir)
            .args(["-c", "exec 3>&1 1>&2; exec \"$@\"", "sh"])
            .arg(&lane.server)
            .arg("serve")
            .args(place(lane.devices))
            .args(["--control", CONTROL, "--ready-fd", "3"])
            .args(["--devices", &lane.devices.to_string()])
            .args([
                "--product",
                lane.product.name(),
                "--platform",
                lane.platform.name(),
            ])
            .args(sanitizer::server_args(
                &lane.server_args,
                lane.report.as_deref().unwrap_or(Path::new(".")),
                lane.sanitize,
            ))
            .args(lane.virtual_time.then_some("--virtual-time"))
            .args(&lane.server_args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = Watched::spawn("the device server", &mut command, Group::Own)?;
        let out = process.child_mut().stdout.take().context("no pipe")?;
        let err = process.child_mut().stderr.take().context("no pipe")?;
        follow(out, Source::ServerReady, Path::new("/dev/null"), to.clone())?;
        follow(
            err,
            Source::Server,
            &self.dir.join("server.log"),
            to.clone(),
        )?;
        self.server = Some(process);
        Ok(())
    }

    fn await_server(&mut self, progress: &mut Progress) -> Result<()> {
        let end = Instant::now() + READY_TIME;
        while !self.ready {
            if INTERRUPTED.load(Ordering::Relaxed) {
                bail!("interrupted");
            }
            if let Some(message) = self.receive() {
                self.take(message, &mut |_| ());
            }
            progress.tick();
            if self.ready {
                break;
            }
            if let Some(status) = self.server.as_mut().and_then(Watched::ended) {
                // What it said last is still on its way.
                self.drain(Duration::from_millis(200));
                bail!("the device server did not start ({status})");
            }
            if Instant::now() > end {
                bail!(
                    "the device server is not ready after {} s",
                    READY_TIME.as_secs()
                );
            }
        }
        Ok(())
    }

    fn start_qemu(&mut self, to: &SyncSender<Message>, initramfs: &Path) -> Result<()> {
        let lane = self.lane;
        let sockets = sockets(lane.devices);
        let append = append(lane);
        let log = self.dir.join("guest.log");
        let machine = Machine {
            accel: lane.accel,
            virtual_time: lane.virtual_time,
            product: lane.product,
            hotplug: lane.hotplug.then_some(QMP),
            sockets: &sockets,
            memory: lane.memory,
            backing: lane.backing,
            cpus: lane.cpus,
            kernel: &lane.kernel.image,
            initramfs,
            append: &append,
            gdb: lane.gdb,
            terminal: lane.shell.then_some(Path::new("guest.log")),
            second_serial: lane.ftrace.as_ref().map(|_| Path::new(FTRACE)),
            extra: &lane.qemu_args,
        };
        let args = machine.args();
        let shown: Vec<_> = args.iter().map(|a| a.to_string_lossy()).collect();
        std::fs::write(
            self.dir.join("qemu.args"),
            format!("{}\n{}\n", lane.qemu.program.display(), shown.join("\n")),
        )?;
        let mut command = Command::new(&lane.qemu.program);
        command.current_dir(&self.dir).args(&args);
        if lane.shell {
            self.qemu = Some(Watched::spawn("QEMU", &mut command, Group::Shared)?);
            return Ok(());
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = Watched::spawn("QEMU", &mut command, Group::Own)?;
        let out = process.child_mut().stdout.take().context("no pipe")?;
        let err = process.child_mut().stderr.take().context("no pipe")?;
        follow(out, Source::Guest, &log, to.clone())?;
        follow(err, Source::Qemu, &self.dir.join("qemu.log"), to.clone())?;
        self.qemu = Some(process);
        Ok(())
    }

    /// Until the guest has said its last word, something ends, or time is over.
    pub(crate) fn watch(&mut self, progress: &mut Progress, on_line: &mut dyn FnMut(&GuestLine)) {
        let start = Instant::now();
        let mut last_output = start;
        let mut give_up: Option<Instant> = None;
        loop {
            if let Some(message) = self.receive() {
                if matches!(message, Message::Line(Source::Guest, ..)) {
                    last_output = Instant::now();
                }
                let (failure, end) = self.take(message, &mut |line| {
                    progress.clear();
                    on_line(line);
                });
                if end {
                    return;
                }
                // A dead kernel does not go on; a warning does.
                if matches!(failure, Some(Failure::Oops | Failure::Hang)) && give_up.is_none() {
                    give_up = Some(Instant::now() + REPORT_TIME);
                }
                self.name_step(progress);
            } else {
                progress.tick();
            }
            if INTERRUPTED.load(Ordering::Relaxed) {
                self.report
                    .findings
                    .push(Finding::new(Failure::Interrupted, "stopped by a signal"));
                return;
            }
            if give_up.is_some_and(|at| Instant::now() > at) {
                return;
            }
            if self.child_ended() {
                return;
            }
            let hang = |what: String| Finding::new(Failure::Hang, what);
            if start.elapsed() > self.lane.timeout {
                let text = format!(
                    "time limit of {} s passed {}",
                    self.lane.timeout.as_secs(),
                    self.where_it_was()
                );
                self.report.findings.push(hang(text));
                return;
            }
            if last_output.elapsed() > SILENCE {
                let text = format!(
                    "no output of the guest for {} s {}",
                    SILENCE.as_secs(),
                    self.where_it_was()
                );
                self.report.findings.push(hang(text));
                return;
            }
        }
    }

    fn where_it_was(&self) -> String {
        match (
            self.report.scenarios.last(),
            self.report.ready,
            self.stage >= Stage::Init,
        ) {
            (Some(last), ..) => format!("after scenario {} on device {}", last.name, last.device),
            (None, Some(_), _) => "in the first scenario".to_owned(),
            (None, None, true) => "while the driver was loading".to_owned(),
            (None, None, false) => "while the guest kernel was booting".to_owned(),
        }
    }

    fn name_step(&self, progress: &mut Progress) {
        let step = match (self.report.scenarios.last(), self.report.ready) {
            (Some(last), _) => format!(
                "{} scenario results, last: {}",
                self.report.scenarios.len(),
                last.name
            ),
            (None, Some(_)) => "devices are ready, running the first scenario".to_owned(),
            (None, None) if self.stage >= Stage::Init => {
                "guest is up, loading the driver".to_owned()
            }
            (None, None) => return,
        };
        progress.rename(step);
    }

    /// One of the processes is gone although the guest has not finished.
    fn child_ended(&mut self) -> bool {
        let server = self.server.as_mut().and_then(Watched::ended);
        let qemu = self.qemu.as_mut().and_then(Watched::ended);
        let finding = match (server, qemu) {
            (Some(status), _) => Finding::new(
                Failure::Device,
                format!(
                    "the device server ended during the run with {status}: {}",
                    meaning(status)
                ),
            ),
            (None, Some(status)) => {
                self.drain(Duration::from_millis(300));
                if self.stage == Stage::Summary {
                    return true;
                }
                let said = self
                    .qemu_tail
                    .iter()
                    .last()
                    .unwrap_or("it said nothing")
                    .to_owned();
                let failure = if self.stage > Stage::Silent {
                    Failure::Hang
                } else {
                    Failure::Setup
                };
                Finding::new(
                    failure,
                    format!("QEMU ended {} ({status}): {said}", self.where_it_was()),
                )
            }
            (None, None) => return false,
        };
        self.report.findings.push(finding);
        true
    }

    fn receive(&self) -> Option<Message> {
        match self.from.recv_timeout(Duration::from_millis(100)) {
            Ok(message) => Some(message),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                // Every stream has ended, so every child is about to.
                std::thread::sleep(Duration::from_millis(50));
                None
            }
        }
    }

    fn drain(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while let Ok(message) = self
            .from
            .recv_timeout(end.saturating_duration_since(Instant::now()))
        {
            self.take(message, &mut |_| ());
        }
    }

    /// Takes one message in. Returns what it means if it means trouble, and whether the guest has said its last word.
    fn take(
        &mut self,
        message: Message,
        on_line: &mut dyn FnMut(&GuestLine),
    ) -> (Option<Failure>, bool) {
        let Message::Line(source, line, _) = message else {
            return (None, false);
        };
        match source {
            Source::Qemu => self.qemu_tail.push(&line),
            Source::Server => self.server_tail.push(&line),
            Source::ServerReady => self.ready = true,
            Source::Guest => {
                self.stage = self.stage.max(Stage::Kernel);
                self.guest_tail.push(&line);
                if let Some(said) = guest_line::parse(&line) {
                    self.judge.look(&line);
                    on_line(&said);
                    return (None, self.said(said));
                }
                self.bars.line(&line);
                let failure = self.judge.line(&line);
                // Powered off by somebody else than `init`, or restarted: nothing more will come.
                let over = line.contains("reboot: ") && line.contains("ower")
                    || line.contains("reboot: Restarting system");
                return (failure, over && self.unexpected_end(&line));
            }
        }
        (None, false)
    }

    /// Pulls the device of a slot, or plugs it in again, as the guest asked.
    fn plug(&mut self, plug: bool, slot: u32) -> Result<()> {
        let sockets = sockets(self.lane.devices);
        let wanted = usize::try_from(slot)?;
        let (index, socket) = sockets
            .iter()
            .enumerate()
            .find(|(index, _)| qemu::slot(*index) == wanted)
            .with_context(|| format!("the guest names slot {slot}, which has no device"))?;
        if !self.lane.hotplug {
            bail!("the guest wants to pull a device: give scripts/guest --hotplug");
        }
        let qmp = match &mut self.qmp {
            Some(qmp) => qmp,
            none => none.insert(Qmp::connect(&self.dir, QMP)?),
        };
        if plug {
            qmp.add(&qemu::id(index), &qemu::device(index, socket, true))
        } else {
            qmp.remove(&qemu::id(index))
        }
    }

    fn unexpected_end(&mut self, line: &str) -> bool {
        if self.stage < Stage::Summary {
            self.report.findings.push(Finding::new(
                Failure::Scenario,
                format!("the guest ended without a summary: {line}"),
            ));
        }
        true
    }

    /// What a scenario cannot do from inside.
    fn notify(&mut self, node: u8, words: &[String]) {
        let lane = self.lane;
        let device = (lane.devices > 1).then(|| lane.product.routing_id(node));
        let done = match device {
            Some(None) => Err(anyhow::anyhow!("no device is /dev/neuron{node}")),
            known => account::notify(&lane.server, &self.dir, CONTROL, known.flatten(), words),
        };
        if let Err(error) = done {
            self.report.findings.push(Finding::new(
                Failure::Device,
                format!("the device does not post what a scenario asked for: {error:#}"),
            ));
        }
    }

    fn said(&mut self, line: GuestLine) -> bool {
        match &line {
            GuestLine::Notify { node, words } => self.notify(*node, words),
            GuestLine::Slot { plug, slot } => {
                if let Err(error) = self.plug(*plug, *slot) {
                    self.report
                        .findings
                        .push(Finding::new(Failure::Setup, format!("{error:#}")));
                }
            }
            GuestLine::Poweroff => return self.unexpected_end("poweroff"),
            GuestLine::Summary { .. } => self.stage = Stage::Summary,
            _ => self.stage = self.stage.max(Stage::Init),
        }
        self.report.take(line);
        false
    }

    /// The terminal belongs to QEMU; the console is judged from its copy afterwards.
    pub(crate) fn wait_for_terminal(&mut self) {
        while !INTERRUPTED.load(Ordering::Relaxed)
            && self.qemu.as_mut().is_some_and(|q| q.ended().is_none())
        {
            if let Some(message) = self.receive() {
                self.take(message, &mut |_| ());
            }
        }
        let log = std::fs::read(self.dir.join("guest.log")).unwrap_or_default();
        for line in String::from_utf8_lossy(&log).lines() {
            let message = Message::Line(
                Source::Guest,
                line.trim_end_matches('\r').to_owned(),
                Instant::now(),
            );
            self.take(message, &mut |_| ());
        }
        // Leaving by QEMU's own keys is not a failure of the guest.
        if self.stage < Stage::Summary {
            self.report
                .findings
                .retain(|f| !f.text.starts_with("the guest ended without"));
        }
    }

    /// While QEMU is still connected: afterwards the device is a fresh one.
    pub(crate) fn take_account(&mut self, progress: &mut Progress) {
        progress.step("asking the devices for their account");
        let mut complaints = Vec::new();
        match account::status(&self.lane.server, &self.dir, CONTROL) {
            Ok(accounts) => self.report.accounts = accounts,
            Err(error) => complaints.push(Finding::new(
                Failure::Device,
                format!("no account from the device server: {error:#}"),
            )),
        }
        complaints.extend(self.report.accounts.iter().flat_map(Account::complaints));
        let judge = std::mem::replace(&mut self.judge, Judge::new(&[], &[]));
        self.report.harmless = judge.harmless().to_vec();
        self.report.findings.extend(judge.finish());
        self.report.findings.extend(complaints);
        if self.stage >= Stage::Init {
            self.report
                .findings
                .extend(self.bars.complaints(usize::from(self.lane.devices)));
        }
        if let Ok(dump) = account::dump(&self.lane.server, &self.dir, CONTROL) {
            // Not being able to keep it is no reason to lose the part that is shown.
            let _ = std::fs::write(self.dir.join("dump.txt"), &dump);
            self.report.dump = Some(dump);
        }
    }

    /// QEMU first, so that the server sees an orderly disconnect.
    pub(crate) fn stop(&mut self) {
        if let Some(mut qemu) = self.qemu.take() {
            qemu.stop(GRACE);
        }
        if let Some(mut server) = self.server.take() {
            // One that ended by itself has been reported already.
            let finding = match server.ended() {
                Some(_) => None,
                None => match server.stop(GRACE) {
                    Some(status) if status.success() => None,
                    Some(status) => Some(format!(
                        "the device server ended with {status}: {}",
                        meaning(status)
                    )),
                    None => Some(format!(
                        "the device server ignored SIGTERM for {} s",
                        GRACE.as_secs()
                    )),
                },
            };
            self.report
                .findings
                .extend(finding.map(|text| Finding::new(Failure::Device, text)));
        }
        self.drain(Duration::from_millis(100));
    }

    /// What the server found out about the driver, once it has ended.
    pub(crate) fn take_findings(&mut self) {
        let directory = self.lane.report.as_deref().unwrap_or(&self.dir);
        match sanitizer::read(directory) {
            Ok((errors, suspicions)) => {
                self.report.findings.extend(errors);
                self.report.suspicions = suspicions;
            }
            Err(error) => self.report.findings.push(Finding::new(
                Failure::Device,
                format!("no findings from the device server: {error:#}"),
            )),
        }
    }

    pub(crate) fn tails(&self) -> Vec<(String, Vec<String>)> {
        let lines = |tail: &Tail| tail.iter().map(str::to_owned).collect::<Vec<_>>();
        let mut all = vec![
            ("guest".to_owned(), lines(&self.guest_tail)),
            ("QEMU".to_owned(), lines(&self.qemu_tail)),
            ("the device server".to_owned(), lines(&self.server_tail)),
        ];
        all.retain(|(_, lines)| !lines.is_empty());
        all
    }
}
