//! The lines that the guest's `init` prints for the launcher; their grammar is documented in its `report` module.

/// Marks such a line anywhere in a console line, behind the kernel's time stamp.
pub const PREFIX: &str = "@neuron ";

/// How a scenario ended in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Everything held.
    Pass,
    /// Something did not.
    Fail,
    /// Not finished in its time.
    Hang,
    /// The driver has no such ioctl.
    NotOffered,
    /// It failed by a defect that the driver is known to have; only the launcher says so.
    KnownDefect,
}

/// One parsed line.
#[derive(Clone, Debug, PartialEq)]
pub enum GuestLine {
    /// PID 1 runs.
    Boot(String),
    /// The module was loaded, or why not.
    Module {
        /// It loaded.
        ok: bool,
        /// Everything behind `module`.
        text: String,
        /// The version it states.
        version: Option<String>,
    },
    /// The devices are up.
    Ready {
        /// How many.
        devices: u32,
        /// Seconds since the guest kernel started.
        uptime: f64,
    },
    /// The devices did not come up, and why.
    NotReady(String),
    /// A scenario's result.
    Scenario {
        /// Name.
        name: String,
        /// Device number, or `all`.
        device: String,
        /// Result.
        verdict: Verdict,
        /// Reason when it is not a pass.
        reason: String,
        /// Milliseconds.
        millis: f64,
    },
    /// A measured value.
    Metric {
        /// Device number, or `all`.
        device: String,
        /// Name without spaces.
        name: String,
        /// Value.
        value: f64,
        /// Unit.
        unit: String,
    },
    /// The guest wants a device gone, or back.
    Slot {
        /// Back.
        plug: bool,
        /// The slot, as the kernel calls it.
        slot: u32,
    },
    /// For people.
    Note(String),
    /// A scenario wants the device to post a notification.
    Notify {
        /// N of `/dev/neuronN`.
        node: u8,
        /// The words that `ctl notify` takes.
        words: Vec<String>,
    },
    /// A device that came up.
    Device(String),
    /// The end of the scenarios.
    Summary {
        /// The guest's own verdict.
        pass: bool,
        /// Everything behind `summary`.
        text: String,
    },
    /// The guest is about to power off.
    Poweroff,
    /// Starts like one of these, but is none: `init` and launcher do not match, or the line was damaged.
    Unknown(String),
}

/// The part of a console line behind the prefix, if it has one.
pub fn payload(line: &str) -> Option<&str> {
    line.find(PREFIX)
        .map(|at| line[at + PREFIX.len()..].trim_end())
}

/// Parses a console line. `None`: not a line of `init`.
pub fn parse(line: &str) -> Option<GuestLine> {
    let text = payload(line)?;
    Some(known(text).unwrap_or_else(|| GuestLine::Unknown(text.to_owned())))
}

fn known(text: &str) -> Option<GuestLine> {
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    Some(match word {
        "boot" => GuestLine::Boot(rest.to_owned()),
        "module" => {
            let ok = rest.contains(": LOADED");
            let version = rest
                .split_once(" version ")
                .and_then(|(_, v)| v.split(' ').next())
                .map(str::to_owned);
            GuestLine::Module {
                ok,
                text: rest.to_owned(),
                version,
            }
        }
        "READY" => GuestLine::Ready {
            devices: after(rest, "devices")?,
            uptime: after(rest, "uptime")?,
        },
        "NOT" => GuestLine::NotReady(rest.strip_prefix("READY")?.trim().to_owned()),
        "scenario" => scenario(rest)?,
        "metric" => {
            let mut words = rest.strip_prefix("device ")?.split(' ');
            GuestLine::Metric {
                device: words.next()?.to_owned(),
                name: words.next()?.to_owned(),
                value: words.next()?.parse().ok()?,
                unit: words.next().unwrap_or_default().to_owned(),
            }
        }
        "plug" | "unplug" => GuestLine::Slot {
            plug: word == "plug",
            slot: after(rest, "slot")?,
        },
        "note" => GuestLine::Note(rest.to_owned()),
        "ask" => {
            let mut words = rest.strip_prefix("notify ")?.split(' ');
            GuestLine::Notify {
                node: words.next()?.parse().ok()?,
                words: words.map(str::to_owned).collect(),
            }
        }
        "device" => GuestLine::Device(rest.to_owned()),
        "summary" => {
            let pass = match rest.split(' ').next()? {
                "PASS" => true,
                "FAIL" => false,
                _ => return None,
            };
            GuestLine::Summary {
                pass,
                text: rest.to_owned(),
            }
        }
        "poweroff" => GuestLine::Poweroff,
        _ => return None,
    })
}

/// `NAME device N: VERDICT (reason) in X ms`; the reason may hold anything.
fn scenario(rest: &str) -> Option<GuestLine> {
    let (head, tail) = rest.split_once(": ")?;
    let (name, device) = head.split_once(" device ")?;
    let (body, time) = tail.rsplit_once(" in ")?;
    let (word, verdict) = [
        ("PASS", Verdict::Pass),
        ("FAIL", Verdict::Fail),
        ("HANG", Verdict::Hang),
        ("NOT OFFERED", Verdict::NotOffered),
    ]
    .into_iter()
    .find(|(word, _)| body.starts_with(word))?;
    let reason = body[word.len()..].trim();
    let reason = reason
        .strip_prefix('(')
        .and_then(|r| r.strip_suffix(')'))
        .unwrap_or(reason);
    Some(GuestLine::Scenario {
        name: name.to_owned(),
        device: device.to_owned(),
        verdict,
        reason: reason.to_owned(),
        millis: time.strip_suffix(" ms")?.parse().ok()?,
    })
}

fn after<T: std::str::FromStr>(text: &str, key: &str) -> Option<T> {
    let mut words = text.split(' ');
    words.find(|w| *w == key)?;
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_behind_the_time_stamp() {
        assert_eq!(parse("[    3.2] neuron: probe"), None);
        assert_eq!(
            parse("[    9.123456] @neuron poweroff"),
            Some(GuestLine::Poweroff)
        );
        assert_eq!(
            parse("[    4.0] @neuron READY devices 2 uptime 4.01 s"),
            Some(GuestLine::Ready {
                devices: 2,
                uptime: 4.01
            })
        );
        assert_eq!(
            parse("@neuron unplug slot 2"),
            Some(GuestLine::Slot {
                plug: false,
                slot: 2
            })
        );
        assert_eq!(
            parse("@neuron NOT READY (no /dev/neuron0)"),
            Some(GuestLine::NotReady("(no /dev/neuron0)".into()))
        );
    }

    #[test]
    fn scenario_results() {
        let line = |text: &str| match parse(&format!("@neuron scenario {text}")) {
            Some(GuestLine::Scenario {
                name,
                device,
                verdict,
                reason,
                millis,
            }) => (name, device, verdict, reason, millis),
            other => panic!("{other:?}"),
        };
        assert_eq!(
            line("info device 0: PASS in 1 ms"),
            ("info".into(), "0".into(), Verdict::Pass, String::new(), 1.0)
        );
        assert_eq!(
            line("copy device all: FAIL (byte 3 in page 2: 1 != 2 (x)) in 12.5 ms"),
            (
                "copy".into(),
                "all".into(),
                Verdict::Fail,
                "byte 3 in page 2: 1 != 2 (x)".into(),
                12.5
            )
        );
        assert_eq!(
            line("zero-copy device 1: NOT OFFERED (ENOTTY) in 0 ms").2,
            Verdict::NotOffered
        );
        assert_eq!(
            line("reset device 1: HANG (60 s) in 60000 ms").2,
            Verdict::Hang
        );
    }

    #[test]
    fn metrics_and_modules() {
        assert_eq!(
            parse("@neuron metric device 0 h2d 565.20 MB/s"),
            Some(GuestLine::Metric {
                device: "0".into(),
                name: "h2d".into(),
                value: 565.2,
                unit: "MB/s".into()
            })
        );
        let Some(GuestLine::Module { ok, version, .. }) =
            parse("@neuron module a.ko: LOADED version 2.25.4.0 in 30 ms")
        else {
            panic!()
        };
        assert!(ok);
        assert_eq!(version.as_deref(), Some("2.25.4.0"));
        assert!(matches!(
            parse("@neuron module a.ko: FAIL (ENOEXEC)"),
            Some(GuestLine::Module { ok: false, .. })
        ));
    }

    #[test]
    fn what_a_scenario_asks_for() {
        assert_eq!(
            parse("[ 9.1] @neuron ask notify 1 core 0 2 00ff"),
            Some(GuestLine::Notify {
                node: 1,
                words: ["core", "0", "2", "00ff"].map(str::to_owned).into()
            })
        );
    }

    #[test]
    fn damaged_lines_are_not_mistaken() {
        for bad in [
            "ask reset 0",
            "ask notify x core 0 0 ff",
            "summary MAYBE",
            "scenario x",
            "scenario x device 0: GOOD in 1 ms",
            "metric device 0 h2d fast MB/s",
            "x",
        ] {
            assert!(
                matches!(
                    parse(&format!("@neuron {bad}")),
                    Some(GuestLine::Unknown(_))
                ),
                "{bad}"
            );
        }
    }
}
