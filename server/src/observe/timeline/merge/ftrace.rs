//! The guest's half: ftrace text, as `/sys/kernel/tracing/trace` gives it.
//!
//! ```text
//!    init-130     [001] .....    12.345678: dma_queue_copy_start: nd0 eng36 q0 tx_count 2 rx_count 2
//! ```
//! The driver's own events are read, and three probes on functions of the driver (docs/timeline.md has the commands),
//! since its own copies pass no event:
//!
//! | event | says |
//! |---|---|
//! | `dma_queue_copy_start: ndN engN qN tx_count N rx_count N` | about to ring both doorbells (for a process) |
//! | `neuron_doorbell: (...) name="UDMA_ENG_N" qid=N tx=N rx=N` | the same, whoever asked: probe on `udma_m2m_copy_start` |
//! | `dma_ack_completed: ndN engN qidN count N` | has seen the marker, acknowledges (for a process) |
//! | `neuron_wait: (...) eng=N count=N` | begins to poll: probe on `ndma_memcpy_wait_for_completion` |
//! | `neuron_done: (...) ret=N` | has seen the marker and acknowledged, or not (ret < 0): its return |
//! | any other | drawn, not interpreted |

/// Longest name of a process or an event that is kept.
const MAX_TEXT: usize = 256;

/// A queue as the guest names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// Engine number.
    pub engine: u8,
    /// Queue number, if the event tells it.
    pub queue: Option<u8>,
}

/// What an event means for the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Doorbells follow.
    Start {
        /// Where.
        place: Place,
        /// m2s descriptors.
        tx: u32,
        /// s2m descriptors.
        rx: u32,
        /// Seen by a probe, which sees them all.
        probe: bool,
    },
    /// The marker of the oldest batch of this size was seen.
    Done {
        /// Where.
        place: Place,
        /// m2s descriptors of the batch.
        count: u32,
    },
    /// Something else.
    Other,
}

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub struct GuestEvent {
    /// Guest time, nanoseconds; the truth is up to a microsecond later, for the text is cut there.
    pub at: u64,
    /// Process name and number, as ftrace writes them: `init-130`.
    pub task: String,
    /// The processor.
    pub cpu: u32,
    /// Event name.
    pub name: String,
    /// The rest.
    pub text: String,
    /// What it means.
    pub meaning: Meaning,
}

/// A parsed file.
#[derive(Clone, Debug, Default)]
pub struct Ftrace {
    /// In the order of the file, which is that of time.
    pub events: Vec<GuestEvent>,
    /// The kernel lost events: its buffer was too small.
    pub lost: bool,
    /// Lines that look like events and are none.
    pub odd: usize,
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FtraceError {
    /// No line is an event.
    #[error("no ftrace event in it; it should be the text of /sys/kernel/tracing/trace")]
    Empty,
    /// A clock that counts something else than time.
    #[error(
        "line {line}: the time stamp {stamp:?} is no time in seconds; set /sys/kernel/tracing/trace_clock to mono before tracing"
    )]
    Clock {
        /// Number of the line.
        line: usize,
        /// What stands there.
        stamp: String,
    },
}

impl Ftrace {
    /// Reads the text.
    ///
    /// # Errors
    /// See [`FtraceError`].
    pub fn parse(text: &str) -> Result<Self, FtraceError> {
        let mut ftrace = Self::default();
        // What each task waits for, by probe.
        let mut waits = std::collections::HashMap::new();
        for (number, line) in (1..).zip(text.lines()) {
            if line.trim_start().starts_with('#') {
                // "# entries-in-buffer/entries-written: 10/20   #P:2"
                if let Some((_, counts)) = line.split_once("entries-written:") {
                    let mut counts = counts.split_whitespace().next().unwrap_or("").split('/');
                    ftrace.lost |= counts.next() != counts.next();
                }
                continue;
            }
            if line.contains(" [LOST ") {
                ftrace.lost = true;
                continue;
            }
            let Some((task, cpu, stamp, rest)) = columns(line) else {
                ftrace.odd += usize::from(!line.trim().is_empty());
                continue;
            };
            let at = nanoseconds(stamp).ok_or_else(|| FtraceError::Clock {
                line: number,
                stamp: clip(stamp),
            })?;
            let (name, text) = rest.split_once(':').unwrap_or((rest, ""));
            let (name, text) = (name.trim(), text.trim());
            let meaning = meaning(name, text, task, &mut waits);
            ftrace.events.push(GuestEvent {
                at,
                task: clip(task),
                cpu,
                name: clip(name),
                text: clip(text),
                meaning,
            });
        }
        if ftrace.events.is_empty() {
            return Err(FtraceError::Empty);
        }
        // Buffers of processors are merged by time; a stable sort mends what rounding mixed.
        ftrace.events.sort_by_key(|event| event.at);
        Ok(ftrace)
    }
}

fn clip(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}

/// `TASK-PID [CPU] FLAGS STAMP: REST`; the task may hold spaces and brackets.
fn columns(line: &str) -> Option<(&str, u32, &str, &str)> {
    let mut from = 0;
    while let Some(at) = line[from..].find(" [").map(|at| at + from) {
        let (task, rest) = (&line[..at], &line[at + 2..]);
        if let Some((cpu, rest)) = rest.split_once(']')
            && cpu.len() >= 3
            && let Ok(cpu) = cpu.parse()
            && let Some((head, rest)) = rest.split_once(": ")
            && let Some(stamp) = head.split_whitespace().next_back()
            && let Some((_, pid)) = task.trim().rsplit_once('-')
            // With record-tgid a "(123)" stands between; it is part of the task column then.
            && pid.starts_with(|c: char| c.is_ascii_digit())
        {
            return Some((task.trim(), cpu, stamp, rest));
        }
        from = at + 2;
    }
    None
}

/// `12.345678`: seconds and microseconds.
fn nanoseconds(stamp: &str) -> Option<u64> {
    let (seconds, fraction) = stamp.split_once('.')?;
    let seconds: u64 = seconds.parse().ok()?;
    if fraction.is_empty() || fraction.len() > 9 || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let digits = u32::try_from(fraction.len()).ok()?;
    let fraction: u64 = fraction.parse().ok()?;
    seconds
        .checked_mul(1_000_000_000)?
        .checked_add(fraction * 10u64.pow(9 - digits))
}

fn meaning(
    name: &str,
    text: &str,
    task: &str,
    waits: &mut std::collections::HashMap<String, (Place, u32)>,
) -> Meaning {
    let found = || match name {
        "dma_queue_copy_start" => {
            let place = Place {
                engine: after(text, "eng")?,
                queue: Some(after(text, "q")?),
            };
            Some(Meaning::Start {
                place,
                tx: after(text, "tx_count ")?,
                rx: after(text, "rx_count ")?,
                probe: false,
            })
        }
        "neuron_doorbell" => {
            let place = Place {
                engine: after(text, "name=\"UDMA_ENG_")?,
                queue: Some(after(text, "qid=")?),
            };
            Some(Meaning::Start {
                place,
                tx: after(text, "tx=")?,
                rx: after(text, "rx=")?,
                probe: true,
            })
        }
        "dma_ack_completed" => {
            let place = Place {
                engine: after(text, "eng")?,
                queue: Some(after(text, "qid")?),
            };
            let count = after(text, "count ")?;
            Some(Meaning::Done { place, count })
        }
        "neuron_wait" => {
            let place = Place {
                engine: after(text, "eng=")?,
                queue: None,
            };
            waits.insert(task.to_owned(), (place, after(text, "count=")?));
            None
        }
        "neuron_done" => {
            let (place, count) = waits.remove(task)?;
            // A time-out says nothing about the marker.
            let returned: i64 = after(text, "ret=")?;
            (returned == 0).then_some(Meaning::Done { place, count })
        }
        _ => None,
    };
    let mut found = found;
    found().unwrap_or(Meaning::Other)
}

/// The number behind a word, decimal or with `0x`; the word must begin where another ends.
fn after<T: TryFrom<i64>>(text: &str, word: &str) -> Option<T> {
    let mut from = 0;
    while let Some(at) = text[from..].find(word).map(|at| at + from) {
        let begins = at == 0 || text[..at].ends_with(|c: char| c.is_whitespace());
        let digits = &text[at + word.len()..];
        let end = digits
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '-')
            .unwrap_or(digits.len());
        let number = match digits[..end].strip_prefix("0x") {
            Some(hex) => i64::from_str_radix(hex, 16).ok(),
            None => digits[..end].parse().ok(),
        };
        if begins && let Some(number) = number {
            return T::try_from(number).ok();
        }
        from = at + word.len();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# tracer: nop
#
# entries-in-buffer/entries-written: 6/6   #P:2
#
#                                _-----=> irqs-off/BH-disabled
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
            init-130     [001] .....    12.345678: dma_queue_copy_start: nd0 eng36 q3 tx_count 2 rx_count 5
 a [b] c-1-131     [000] d..2.    12.345679: neuron_doorbell: (udma_m2m_copy_start+0x0/0x80 [neuron]) name="UDMA_ENG_36" qid=3 tx=2 rx=5
            init-130     [001] .....    12.345700: neuron_wait: (ndma_memcpy_wait_for_completion+0x0/0x1b0 [neuron]) eng=36 count=2
            init-130     [001] .....    12.345800: neuron_done: (ndma_memcpy_mc_wait+0x60/0x80 [neuron] <- ndma_memcpy_wait_for_completion) ret=0
            init-130     [001] .....    12.345900: dma_ack_completed: nd0 eng36 qid3 count 2
            init-130     [001] .....    12.345901: ioctl_mem_free: nd0 nc-1 HOST:1000 (64 bytes) mc 00000000abc
"#;

    #[test]
    fn the_drivers_events_and_the_probes_are_read() {
        let ftrace = Ftrace::parse(TEXT).unwrap();
        assert!(!ftrace.lost);
        assert_eq!(ftrace.odd, 0);
        let place = |queue| Place { engine: 36, queue };
        let start = |probe| Meaning::Start {
            place: place(Some(3)),
            tx: 2,
            rx: 5,
            probe,
        };
        let done = |queue| Meaning::Done {
            place: place(queue),
            count: 2,
        };
        let meanings: Vec<_> = ftrace.events.iter().map(|event| event.meaning).collect();
        assert_eq!(
            meanings,
            [
                start(false),
                start(true),
                Meaning::Other,
                done(None),
                done(Some(3)),
                Meaning::Other
            ]
        );
        assert_eq!(ftrace.events[0].at, 12_345_678_000);
        assert_eq!(ftrace.events[1].task, "a [b] c-1-131");
        assert_eq!(ftrace.events[1].cpu, 0);
    }

    #[test]
    fn what_cannot_be_used_says_why() {
        assert!(matches!(
            Ftrace::parse("# nothing\n"),
            Err(FtraceError::Empty)
        ));
        let counter = TEXT.replace("12.345678", "999912");
        let error = Ftrace::parse(&counter).unwrap_err().to_string();
        assert!(
            error.contains("line 7") && error.contains("mono"),
            "{error}"
        );
        assert!(Ftrace::parse(&TEXT.replace("6/6", "6/9")).unwrap().lost);
        assert!(
            Ftrace::parse(&format!("CPU:1 [LOST 7 EVENTS]\n{TEXT}"))
                .unwrap()
                .lost
        );
        let failed = Ftrace::parse(&TEXT.replace("ret=0", "ret=-1")).unwrap();
        assert_eq!(failed.events[3].meaning, Meaning::Other);
        // Numbers that do not fit, and hostile text.
        for line in [
            "x-1 [000] ..... 1.000000: dma_ack_completed: nd0 eng300 qid3 count 2",
            "x-1 [000] ..... 1.000000: dma_ack_completed: nd0 eng3 qid-3 count 99999999999999999999",
            "x-1 [000] ..... 1.000000: \u{1F980}",
        ] {
            assert_eq!(
                Ftrace::parse(line).unwrap().events[0].meaning,
                Meaning::Other
            );
        }
        assert!(Ftrace::parse("x-1 [000] ..... 99999999999999999999.000000: a: b").is_err());
    }
}
