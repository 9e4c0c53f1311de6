//! Faults on purpose as a driver meets them: every action on every event that it fits.
#![allow(clippy::too_many_lines, reason = "tables")]
mod rig;

use std::time::Duration;

use neuron_protocol::cycle::QueuePair;
use neuron_protocol::descriptor::Barrier;
use neuron_protocol::generation::{Platform, Product};
use neuron_protocol::mailbox::{Command, Response, Sequence, Status, build_request};
use neuron_protocol::marker::MARKER;
use neuron_protocol::registers::{Direction, misc_ram, queue as register};
use neuron_vfio_user::observe::report::{Account, Detail};
use neuron_vfio_user::policy::Faults;
use neuron_vfio_user::policy::fault::rule::{ACTIONS, On};
use neuron_vfio_user::policy::fault::{MAX_RULES, inline};
use neuron_vfio_user::vfio::{PciFunction, Progress};
use proptest::prelude::*;
use rig::*;

const BYTES: usize = 256;
const SLOT: u64 = MARKERS + 4;

/// What of a write is to be seen.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Seen {
    None,
    Half,
    Wrong,
    All,
}
use Seen::{All, Half, None as Nothing, Wrong};

struct Scene {
    rig: Shared,
    device: Driver,
    pair: QueuePair,
}

fn install(rig: &mut Rig, rules: &[&str], seed: u64) {
    let mut faults = Faults::new(rig.generation, seed);
    for text in rules {
        for rule in inline(text).unwrap_or_else(|error| panic!("{text}: {error}")) {
            faults.add(rule).unwrap();
        }
    }
    rig.function.policies_mut().set_faults(Some(faults));
}

/// Lets the device work at a time, and answers its messages.
fn at(rig: &mut Rig, now: Duration) -> Progress {
    rig.function.tick(now);
    for _ in 0..100_000 {
        let progress = rig.function.run();
        let answered = rig.answer_messages();
        if progress != Progress::Again && !answered {
            return progress;
        }
    }
    panic!("the device never rests");
}

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

impl Scene {
    fn new(by_message: bool, rules: &[&str]) -> Self {
        let rig = if by_message {
            Rig::by_message(Product::Trn2, Platform::Silicon)
        } else {
            Rig::new(Product::Trn2, Platform::Silicon)
        };
        let (rig, mut device) = rig.driver();
        let pair = queue(&mut device, 0, 1, 64);
        rig.with(|rig| {
            install(rig, rules, 1);
            rig.fill(DATA, &pattern(BYTES, 3));
            rig.fill(MARKERS, &MARKER.to_le_bytes());
        });
        Self { rig, device, pair }
    }

    /// Copies and lets a marker follow.
    fn batch(&mut self) {
        let host = |address| self.rig.with(|rig| rig.host(address));
        let (device, pair) = (&mut self.device, &mut self.pair);
        let len = u32::try_from(BYTES).unwrap();
        pair.stage(device, host(DATA), host(RESULT), len, Barrier::Write)
            .unwrap();
        pair.stage(device, host(MARKERS), host(SLOT), 4, Barrier::None)
            .unwrap();
        pair.trigger(device, 2, 2).unwrap();
    }

    /// What has landed at a time since the last look: data, marker, and whether the engine is aborted.
    fn look(&mut self, now: Duration) -> (Seen, Seen, bool) {
        self.rig.with(|rig| {
            at(rig, now);
            let seen = |address, right: &[u8]| {
                let found = rig.bytes(address, right.len());
                let half = right.len() / 2;
                let blank = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
                let seen = if found == right {
                    All
                } else if blank(&found) {
                    Nothing
                } else if found[..half] == right[..half] && blank(&found[half..])
                    || found[half..] == right[half..] && blank(&found[..half])
                {
                    Half
                } else {
                    Wrong
                };
                rig.fill(address, &vec![0; right.len()]);
                seen
            };
            let data = seen(RESULT, &pattern(BYTES, 3));
            let marker = seen(SLOT, &MARKER.to_le_bytes());
            let aborted = !rig.function.report(Detail::Status).aborted.is_empty();
            (data, marker, aborted)
        })
    }
}

type Look = (Seen, Seen, bool);

/// A rule, what is seen at once, and what comes within 20 ms after that.
const DMA: [(&str, Look, Look); 33] = [
    (
        "on=reset action=drop",
        (All, All, false),
        (Nothing, Nothing, false),
    ),
    (
        "on=doorbell action=drop direction=m2s",
        (Nothing, Nothing, false),
        (Nothing, Nothing, false),
    ),
    (
        "on=doorbell action=drop direction=s2m",
        (Nothing, Nothing, false),
        (Nothing, Nothing, false),
    ),
    (
        "on=doorbell action=delay by=10ms",
        (Nothing, Nothing, false),
        (All, All, false),
    ),
    // Stale descriptors behind ours: prefetch looks at them before any of ours is used.
    (
        "on=doorbell action=duplicate direction=m2s",
        (Nothing, Nothing, true),
        (Nothing, Nothing, true),
    ),
    (
        "on=doorbell action=stop descriptors=1 direction=m2s",
        (All, Nothing, false),
        (Nothing, Nothing, false),
    ),
    (
        "on=doorbell action=stall direction=m2s",
        (Nothing, Nothing, false),
        (Nothing, Nothing, false),
    ),
    (
        "on=doorbell action=stall by=10ms direction=m2s",
        (Nothing, Nothing, false),
        (All, All, false),
    ),
    (
        "on=doorbell action=pointer shift=-1 direction=m2s",
        (All, Nothing, false),
        (Nothing, Nothing, false),
    ),
    (
        "on=fetch action=drop",
        (Nothing, Nothing, false),
        (Nothing, Nothing, false),
    ),
    (
        "on=fetch action=delay by=5ms",
        (Nothing, Nothing, false),
        (All, All, false),
    ),
    (
        "on=fetch action=corrupt byte=15 mask=0x40 direction=m2s",
        (Nothing, Nothing, true),
        (Nothing, Nothing, true),
    ),
    (
        "on=fetch action=stall",
        (Nothing, Nothing, false),
        (Nothing, Nothing, false),
    ),
    (
        "on=fetch action=stall by=10ms nth=1",
        (Nothing, Nothing, false),
        (All, All, false),
    ),
    (
        "on=fetch action=error direction=s2m",
        (Nothing, Nothing, true),
        (Nothing, Nothing, true),
    ),
    // From one further on: the marker's descriptor, then a stale one.
    (
        "on=fetch action=pointer shift=1 direction=m2s",
        (Nothing, Nothing, true),
        (Nothing, Nothing, true),
    ),
    (
        "on=copy action=drop",
        (Nothing, All, false),
        (Nothing, Nothing, false),
    ),
    (
        "on=copy action=delay by=10ms",
        (Nothing, Nothing, false),
        (All, All, false),
    ),
    (
        "on=copy action=duplicate by=10ms",
        (All, All, false),
        (All, Nothing, false),
    ),
    (
        "on=copy action=tear-half by=10ms",
        (Half, All, false),
        (Half, Nothing, false),
    ),
    (
        "on=copy action=tear-half",
        (Half, All, false),
        (Nothing, Nothing, false),
    ),
    (
        "on=copy action=marker-first by=10ms",
        (Nothing, All, false),
        (All, Nothing, false),
    ),
    (
        "on=copy action=corrupt byte=200 mask=0x10",
        (Wrong, All, false),
        (Nothing, Nothing, false),
    ),
    (
        "on=copy action=stop descriptors=0",
        (Nothing, Nothing, false),
        (Nothing, Nothing, false),
    ),
    (
        "on=copy action=stop descriptors=1",
        (All, Nothing, false),
        (Nothing, Nothing, false),
    ),
    (
        "on=copy action=stall",
        (Nothing, Nothing, false),
        (Nothing, Nothing, false),
    ),
    (
        "on=copy action=error",
        (Nothing, Nothing, true),
        (Nothing, Nothing, true),
    ),
    (
        "on=marker action=drop",
        (All, Nothing, false),
        (Nothing, Nothing, false),
    ),
    (
        "on=marker action=delay by=10ms",
        (All, Nothing, false),
        (Nothing, All, false),
    ),
    (
        "on=marker action=duplicate by=10ms",
        (All, All, false),
        (Nothing, All, false),
    ),
    (
        "on=marker action=tear-half by=10ms",
        (All, Half, false),
        (Nothing, Half, false),
    ),
    (
        "on=marker action=corrupt byte=0 mask=0x1",
        (All, Wrong, false),
        (Nothing, Nothing, false),
    ),
    (
        "on=marker action=stop descriptors=0",
        (All, Nothing, false),
        (Nothing, Nothing, false),
    ),
];

#[test]
fn each_fault_of_the_cycle_has_its_effect_and_no_other() {
    for by_message in [false, true] {
        for (rule, first, second) in DMA {
            let mut scene = Scene::new(by_message, &[rule]);
            scene.batch();
            assert_eq!(
                scene.look(ms(0)),
                first,
                "{rule}, by message: {by_message}, at once"
            );
            assert_eq!(
                scene.look(ms(9)),
                (Nothing, Nothing, first.2),
                "{rule}, by message: {by_message}, too early"
            );
            assert_eq!(
                scene.look(ms(15)),
                second,
                "{rule}, by message: {by_message}, later"
            );
        }
    }
}

#[test]
fn markers_that_fail_or_stall_their_engine_leave_the_data() {
    for (rule, aborted) in [
        ("on=marker action=stall", false),
        ("on=marker action=error", true),
    ] {
        let mut scene = Scene::new(false, &[rule]);
        scene.batch();
        assert_eq!(scene.look(ms(0)), (All, Nothing, aborted), "{rule}");
        assert_eq!(scene.look(ms(99)), (Nothing, Nothing, aborted), "{rule}");
    }
}

#[test]
fn a_reset_ends_what_a_fault_began_and_lets_nothing_of_it_land_later() {
    for rule in [
        "on=doorbell action=delay by=10ms nth=1",
        "on=doorbell action=stall nth=1",
        "on=doorbell action=stop descriptors=0 nth=1",
        "on=fetch action=drop nth=1",
        "on=copy action=stall nth=1",
        "on=copy action=error nth=1",
        "on=copy action=tear-half by=10ms nth=1",
        "on=copy action=marker-first by=10ms nth=1",
        "on=marker action=duplicate by=10ms nth=1",
    ] {
        let mut scene = Scene::new(false, &[rule]);
        scene.batch();
        scene.look(ms(0));
        scene.rig.with(|rig| {
            let ram = rig.generation.misc_ram;
            rig.write(ram + misc_ram::RESET, misc_ram::RESET_DEVICE);
            rig.write(ram + misc_ram::TRIGGER, 1);
            assert_eq!(rig.read(ram + misc_ram::RESET), 0, "{rule}");
        });
        assert_eq!(
            scene.look(ms(20)),
            (Nothing, Nothing, false),
            "{rule}: after the reset"
        );
        scene.pair = queue(&mut scene.device, 0, 1, 64);
        scene.batch();
        assert_eq!(
            scene.look(ms(40)),
            (All, All, false),
            "{rule}: the driver went on"
        );
    }
}

#[test]
fn resets_are_late_or_never_acknowledged() {
    for (rule, first, second, third) in [
        ("on=reset action=drop nth=1", true, true, false),
        ("on=reset action=delay by=10ms nth=1", true, false, false),
        ("on=reset action=drop", true, true, true),
    ] {
        for platform in [Platform::Silicon, Platform::Qemu] {
            let (rig, _device) = Rig::new(Product::Trn2, platform).driver();
            rig.with(|rig| {
                install(rig, &[rule], 1);
                let ram = rig.generation.misc_ram;
                let flag = rig.generation.reset_flag.offset;
                let ask = |rig: &mut Rig| {
                    if platform == Platform::Qemu {
                        rig.write(flag, 0);
                    } else {
                        rig.write(ram + misc_ram::RESET, misc_ram::RESET_DEVICE);
                        rig.write(ram + misc_ram::TRIGGER, 1);
                    }
                };
                let pending = |rig: &mut Rig| {
                    rig.read(if platform == Platform::Qemu {
                        flag
                    } else {
                        ram + misc_ram::RESET
                    }) != 0
                };
                ask(rig);
                at(rig, ms(5));
                assert_eq!(pending(rig), first, "{rule} {platform}");
                at(rig, ms(15));
                assert_eq!(pending(rig), second, "{rule} {platform}");
                // The driver's next window.
                ask(rig);
                at(rig, ms(30));
                assert_eq!(pending(rig), third, "{rule} {platform}");
            });
        }
    }
}

/// Asks by the legacy mailbox; what stands in the response buffer at each time.
fn ask_firmware(rule: &str, times: [u64; 2]) -> [Result<(u8, Status, usize), bool>; 2] {
    let (rig, _device) = Rig::new(Product::Trn2, Platform::Silicon).driver();
    rig.with(|rig| {
        install(rig, &[rule], 1);
        let mut request = vec![0; 64];
        let address = 0x8040_0000_0000_u64.to_le_bytes();
        let len = build_request(&mut request, Sequence::FIRST, Command::Read, &address).unwrap();
        rig.fill(DATA, &request[..len]);
        rig.ask_firmware(DATA, RESULT);
        times.map(|time| {
            at(rig, ms(time));
            let bytes = rig.bytes(RESULT, 64);
            match Response::parse(&bytes) {
                Ok(response) => Ok((response.sequence, response.status, response.payload.len())),
                // Whether anything came at all.
                Err(_) => Err(bytes.iter().any(|byte| *byte != 0)),
            }
        })
    })
}

#[test]
fn firmware_is_late_silent_or_wrong() {
    let right = Ok((1, Status::Ok, 4));
    for (rule, first, second) in [
        ("on=reset action=drop", right, right),
        ("on=mailbox action=drop command=0", right, right),
        ("on=mailbox action=drop", Err(false), Err(false)),
        ("on=mailbox action=delay by=10ms", Err(false), right),
        (
            "on=mailbox action=error",
            Ok((1, Status::Failed, 0)),
            Ok((1, Status::Failed, 0)),
        ),
        (
            "on=mailbox action=wrong-sequence",
            Ok((2, Status::Ok, 4)),
            Ok((2, Status::Ok, 4)),
        ),
        (
            "on=mailbox action=corrupt byte=0 mask=0xff",
            Ok((254, Status::Ok, 4)),
            Ok((254, Status::Ok, 4)),
        ),
    ] {
        assert_eq!(ask_firmware(rule, [1, 20]), [first, second], "{rule}");
    }
}

#[test]
fn registers_lie() {
    for (rule, value) in [
        (
            "on=register action=value value=0xdeadbeef register=drhp",
            0xdead_beef,
        ),
        ("on=register action=value value=0xffffffff", 0xffff_ffff),
        (
            "on=register action=corrupt byte=0 mask=0x3 register=m2s.q1.drhp",
            (1 << 30 | 2) ^ 3,
        ),
        (
            "on=register action=pointer shift=-1 register=drhp",
            (1 << 30 | 2) - 1,
        ),
        (
            "on=register action=value value=7 register=drtp",
            1 << 30 | 2,
        ),
    ] {
        let mut scene = Scene::new(false, &[rule]);
        scene.batch();
        scene.look(ms(0));
        scene.rig.with(|rig| {
            let head = rig.register(0, 1, Direction::M2s, register::DRHP);
            assert_eq!(rig.read(head), value, "{rule}");
        });
    }
}

#[test]
fn a_device_leaves_at_any_event_and_is_there_again_after_power_on() {
    for on in On::ALL {
        for action in ["remove", "disconnect"] {
            let rule = format!("on={} action={action} nth=1", on.name());
            let mut scene = Scene::new(false, &[&rule]);
            let firmware = matches!(on, On::Reset | On::Mailbox);
            if firmware {
                scene.rig.with(|rig| {
                    let (from, to) = (rig.host(DATA), rig.host(RESULT));
                    let mut request = vec![0; 64];
                    build_request(&mut request, Sequence::FIRST, Command::Read, &[0; 8]).unwrap();
                    rig.fill(DATA, &request);
                    let ram = rig.generation.misc_ram;
                    let reset = if on == On::Reset {
                        misc_ram::RESET_DEVICE
                    } else {
                        0
                    };
                    rig.write(ram + misc_ram::RESET, reset);
                    for (offset, value) in
                        [(misc_ram::REQUEST_LOW, from), (misc_ram::RESPONSE_LOW, to)]
                    {
                        rig.write(ram + offset, u32::try_from(value & 0xffff_ffff).unwrap());
                        rig.write(ram + offset - 4, u32::try_from(value >> 32).unwrap());
                    }
                    rig.write(
                        ram + misc_ram::REQUEST_HIGH,
                        u32::try_from(from >> 32).unwrap(),
                    );
                    rig.write(
                        ram + misc_ram::RESPONSE_HIGH,
                        u32::try_from(to >> 32).unwrap(),
                    );
                    rig.write(ram + misc_ram::TRIGGER, 1);
                });
            } else {
                scene.batch();
            }
            scene.look(ms(0));
            scene.rig.with(|rig| {
                let head = rig.register(0, 1, Direction::M2s, register::DRHP);
                if on == On::Register {
                    rig.read(head);
                }
                assert_eq!(rig.read(head), u32::MAX, "{rule}");
                let mut config = [0; 4];
                rig.function.region_read(7, 0, &mut config).unwrap();
                assert_eq!(config, [0xff; 4], "{rule}");
                assert_eq!(rig.function.leaves(), action == "disconnect", "{rule}");
                assert_eq!(at(rig, ms(1)), Progress::Idle, "{rule}");
                rig.function.reset();
                assert!(!rig.function.leaves());
                assert_eq!(rig.read(head) & 0xffff, 0, "{rule}");
                rig.function.region_read(7, 0, &mut config).unwrap();
                assert_eq!(config[..2], [0x0f, 0x1d], "{rule}");
            });
        }
    }
}

/// Any rule that the table allows.
fn any_rule() -> impl Strategy<Value = String> {
    let fits: Vec<_> = ACTIONS
        .iter()
        .flat_map(|fit| fit.on.iter().map(move |on| (fit, *on)))
        .collect();
    let params = (
        0..20_000_u64,
        0..4_u32,
        any::<u32>(),
        1..=u32::MAX,
        -70..70_i32,
        any::<u32>(),
    );
    let when = prop_oneof![
        Just(String::new()),
        (1..5_u64).prop_map(|n| format!("nth={n}")),
        (1..5_u64).prop_map(|n| format!("every={n}")),
        (1..5_u64).prop_map(|n| format!("first={n}")),
        (1..100_u32).prop_map(|n| format!("chance=0.{n:02}").replace("0.00", "0.01")),
    ];
    (proptest::sample::select(fits), params, when).prop_map(
        |((fit, on), (by, descriptors, byte, mask, shift, value), when)| {
            let all = [
                ("by", format!("by={by}us")),
                ("descriptors", format!("descriptors={descriptors}")),
                ("byte", format!("byte={byte}")),
                ("mask", format!("mask={mask}")),
                ("shift", format!("shift={shift}")),
                ("value", format!("value={value}")),
            ];
            let takes = fit.needs.iter().chain(fit.takes);
            let params: Vec<_> = takes
                .filter_map(|param| all.iter().find(|(name, _)| *name == param.name()))
                .map(|(_, text)| text.as_str())
                .collect();
            format!(
                "on={} action={} {when} {}",
                on.name(),
                fit.name,
                params.join(" ")
            )
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever goes wrong: no panic, no hang, nothing outside the buffers, and a power-on reset mends everything.
    #[test]
    fn any_combination_of_faults_leaves_a_device_that_a_reset_mends(
        rules in prop::collection::vec(any_rule(), 1..8),
        seed in any::<u64>(),
        by_message in any::<bool>(),
        steps in prop::collection::vec(0..4_u8, 1..30),
    ) {
        let texts: Vec<_> = rules.iter().map(String::as_str).collect();
        prop_assert!(texts.len() <= MAX_RULES);
        let mut scene = Scene::new(by_message, &[]);
        scene.rig.with(|rig| install(rig, &texts, seed));
        let mut now = Duration::ZERO;
        for step in steps {
            match step {
                // A lost doorbell makes the driver's ring full in the end: it would stop, and so does this one.
                0 if scene.pair.available() >= 2 => scene.batch(),
                1 => scene.rig.with(|rig| {
                    let ram = rig.generation.misc_ram;
                    rig.write(ram + misc_ram::RESET, misc_ram::RESET_DEVICE);
                    rig.write(ram + misc_ram::TRIGGER, 1);
                }),
                2 => scene.rig.with(|rig| {
                    let head = rig.register(0, 1, Direction::M2s, register::DRHP);
                    rig.read(head);
                }),
                _ => now += ms(3),
            }
            scene.look(now);
        }
        scene.rig.with(|rig| {
            rig.function.policies_mut().set_faults(None);
            rig.function.reset();
            rig.function.region_write(7, 4, &6u16.to_le_bytes()).unwrap();
        });
        scene.pair = queue(&mut scene.device, 0, 1, 64);
        scene.look(now + Duration::from_secs(7200));
        scene.batch();
        prop_assert_eq!(scene.look(now + Duration::from_secs(7200)), (All, All, false));
    }

    /// The same seed, rules and accesses: the same faults.
    #[test]
    fn runs_repeat(rules in prop::collection::vec(any_rule(), 1..8), seed in any::<u64>()) {
        let texts: Vec<_> = rules.iter().map(String::as_str).collect();
        let run = || {
            let mut scene = Scene::new(false, &[]);
            scene.rig.with(|rig| install(rig, &texts, seed));
            let mut seen = Vec::new();
            for nth in 0..12 {
                if scene.pair.available() >= 2 {
                    scene.batch();
                }
                seen.push((scene.look(ms(4 * nth)), scene.rig.with(|rig| rig.log.take())));
            }
            seen
        };
        prop_assert_eq!(run(), run());
    }
}
