//! Reports as text: what `ctl status`, `ctl dump` and the summary at exit print.
use std::fmt::Write as _;

use super::budget::BudgetReport;
use super::report::{
    Counters, DescriptorReport, DeviceReport, Direction, Doorbell, QueueReport, RingReport,
    UnmodelledReport, Wait, WireReport,
};

/// Queues listed by `status`; `dump` lists all.
const STATUS_QUEUES: usize = 16;
/// Unmodelled registers listed by `status` and at exit; `dump` lists all.
const SHORT_UNMODELLED: usize = 12;

/// `ctl status` for one device. The first lines answer "why is my copy stuck".
pub fn status(device: &DeviceReport) -> String {
    let mut out = String::new();
    headline(&mut out, device);
    for queue in device.queues.iter().take(STATUS_QUEUES) {
        queue_lines(&mut out, queue);
    }
    if device.queues.len() > STATUS_QUEUES {
        line(
            &mut out,
            format_args!(
                "  ... and {} more queues: see dump",
                device.queues.len() - STATUS_QUEUES
            ),
        );
    }
    line(
        &mut out,
        format_args!("  totals: {}", counters(&device.counters)),
    );
    line(
        &mut out,
        format_args!(
            "  guest map: {} ranges; hbm touched: {}",
            device.maps.len(),
            bytes(device.hbm_resident)
        ),
    );
    if let Some(text) = &device.adversary {
        line(&mut out, format_args!("  adversary, {text}"));
    }
    if let Some(text) = device.budget.as_ref().map(BudgetReport::text)
        && !text.is_empty()
    {
        line(
            &mut out,
            format_args!("  batches and the driver's patience:\n{}", text.trim_end()),
        );
    }
    unmodelled(&mut out, &device.unmodelled, SHORT_UNMODELLED);
    out
}

/// `ctl dump` for one device: everything in `status`, then rings, maps, recorders and registers.
pub fn dump(device: &DeviceReport) -> String {
    let mut out = status(device);
    for queue in &device.queues {
        line(
            &mut out,
            format_args!("queue e{}.q{}", queue.engine, queue.queue),
        );
        for (direction, ring, descriptors) in [
            (Direction::M2s, &queue.m2s, &queue.m2s_descriptors),
            (Direction::S2m, &queue.s2m, &queue.s2m_descriptors),
        ] {
            line(
                &mut out,
                format_args!("  {} ring: {}", direction.name(), ring_text(ring)),
            );
            for descriptor in descriptors {
                descriptor_line(&mut out, descriptor);
            }
        }
        if !queue.events.is_empty() {
            line(
                &mut out,
                format_args!("  last {} events, oldest first:", queue.events.len()),
            );
            for event in &queue.events {
                line(&mut out, format_args!("    {event}"));
            }
        }
    }
    if !device.maps.is_empty() {
        line(&mut out, format_args!("guest map"));
        for map in &device.maps {
            line(
                &mut out,
                format_args!(
                    "  {:#018x}..{:#018x}  {:>10}  {}  {}",
                    map.iova,
                    map.iova.saturating_add(map.size),
                    bytes(map.size),
                    map.access,
                    map.backing
                ),
            );
        }
    }
    if device.unmodelled.len() > SHORT_UNMODELLED {
        unmodelled(&mut out, &device.unmodelled, usize::MAX);
    }
    if !device.registers.is_empty() {
        line(&mut out, format_args!("registers"));
        for register in &device.registers {
            line(
                &mut out,
                format_args!(
                    "  {:#010x} = {:#010x}  {}",
                    register.offset, register.value, register.name
                ),
            );
        }
    }
    out
}

/// One line of totals, for the log at exit; then what was touched and is not modelled.
pub fn summary(device: &DeviceReport) -> String {
    let mut out = String::new();
    line(
        &mut out,
        format_args!(
            "{}/{}: {}",
            device.product,
            device.platform,
            counters(&device.counters)
        ),
    );
    if let Some(text) = &device.adversary {
        line(&mut out, format_args!("  adversary, {text}"));
    }
    for (engine, cause) in &device.aborted {
        line(
            &mut out,
            format_args!("  engine {engine} is aborted: {cause}"),
        );
    }
    unmodelled(&mut out, &device.unmodelled, SHORT_UNMODELLED);
    out
}

fn headline(out: &mut String, device: &DeviceReport) {
    line(
        out,
        format_args!(
            "nd{} {}/{} serial {:#x}: {}, {}",
            device.routing_id,
            device.product,
            device.platform,
            device.serial,
            client(device.connected, &device.wire),
            plural(device.counters.resets, "reset"),
        ),
    );
    for (engine, cause) in &device.aborted {
        line(out, format_args!("  engine {engine} IS ABORTED: {cause}"));
    }
    if device.private_memory {
        line(
            out,
            format_args!(
                "  GUEST MEMORY IS PRIVATE: nothing the device writes arrives; start QEMU with share=on"
            ),
        );
    }
    if !device.bus_master && device.queues.iter().any(|queue| queue.m2s.outstanding > 0) {
        line(
            out,
            format_args!("  DMA IS OFF: bus master is not set in the PCI command register"),
        );
    }
    let stuck = device
        .queues
        .iter()
        .filter(|queue| queue.wait != Wait::Nothing)
        .count();
    match (device.queues.len(), stuck) {
        (0, _) => line(
            out,
            format_args!("  no queue was ever set up or rung: the driver did not get that far"),
        ),
        (queues, 0) => line(
            out,
            format_args!("  all {queues} queues are done with what was rung for"),
        ),
        (queues, stuck) => line(
            out,
            format_args!("  {stuck} of {queues} queues have unfinished work"),
        ),
    }
}

fn client(connected: bool, wire: &WireReport) -> String {
    let WireReport {
        connections,
        turned_away,
        messages,
        posted_writes,
        refused,
        ..
    } = wire;
    let mut text = match (connected, connections) {
        (true, _) => "client connected".to_owned(),
        (false, 0) => return "no client yet".to_owned(),
        (false, connections) => format!("no client any more, {connections} so far"),
    };
    let _ = write!(
        text,
        " ({messages} messages, {posted_writes} posted, {refused} refused)"
    );
    if *turned_away > 0 {
        let _ = write!(text, ", {turned_away} turned away: one at a time");
    }
    text
}

fn queue_lines(out: &mut String, queue: &QueueReport) {
    let name = format!("e{}.q{}", queue.engine, queue.queue);
    let rung = queue
        .last_doorbell
        .as_ref()
        .map_or_else(|| "never rung".to_owned(), doorbell);
    if queue.wait == Wait::Nothing && queue.m2s.length == 0 && queue.s2m.length == 0 {
        return line(out, format_args!("  {name}: {rung}; reset since, no rings"));
    }
    line(
        out,
        format_args!("  {name}: {rung}; waits for {}", wait(&queue.wait)),
    );
    line(out, format_args!("      m2s {}", ring_short(&queue.m2s)));
    line(out, format_args!("      s2m {}", ring_short(&queue.s2m)));
}

fn doorbell(doorbell: &Doorbell) -> String {
    let age = doorbell
        .age_us
        .map_or_else(String::new, |us| format!(" {} ago", micros(us)));
    format!(
        "last doorbell {} +{}{age}",
        doorbell.direction.name(),
        doorbell.count
    )
}

/// What a queue waits for, in words.
pub fn wait(wait: &Wait) -> String {
    match wait {
        Wait::Nothing => "nothing".to_owned(),
        Wait::Turn => "its turn (it is running)".to_owned(),
        Wait::S2mDoorbell => {
            "an s2m doorbell: m2s descriptors are ready and no receive buffer is left (the driver rings s2m first)".into()
        }
        Wait::M2sDoorbell => {
            "an m2s doorbell: receive buffers are ready and nothing is there to fill them (normal after a prefetch-only start)"
                .into()
        }
        Wait::LastDescriptor => "the rest of a packet: FIRST was fetched, the tail came before its LAST".to_owned(),
        Wait::RingSetup { direction } => {
            format!("ring set-up: {} was rung and has no base or length since the last reset", direction.name())
        }
        Wait::QueueEnable { direction } => {
            format!("queue enable: prefetch or scheduling is off in {} cfg (+0x20, bits 16 and 17)", direction.name())
        }
        Wait::BusMaster => "bus master: the PCI command register forbids DMA".to_owned(),
        Wait::Recovery { cause } => format!("the driver to reset the queue or the device: {cause}"),
        Wait::DmaReply { iova, len } => {
            format!("the client's DMA reply for {len} bytes at {iova:#x} (guest RAM without a shared file: use share=on)")
        }
        Wait::Time { left_us, why } => format!("{} more ({why})", micros(*left_us)),
    }
}

fn ring_short(ring: &RingReport) -> String {
    format!(
        "head {} tail {} of {}: {} outstanding, {} done, {} doorbells",
        ring.head, ring.tail, ring.length, ring.outstanding, ring.done, ring.doorbells
    )
}

fn ring_text(ring: &RingReport) -> String {
    format!(
        "base {:#x} length {} head {} (ring id {}) tail {} (ring id {}), {} outstanding",
        ring.base,
        ring.length,
        ring.head,
        ring.head_ring_id,
        ring.tail,
        ring.tail_ring_id,
        ring.outstanding
    )
}

fn descriptor_line(out: &mut String, descriptor: &DescriptorReport) {
    let mut raw = String::new();
    for word in &descriptor.raw {
        let _ = write!(raw, "{word:08x} ");
    }
    line(
        out,
        format_args!(
            "    [{:>6}] {:<9} {raw} {} -> {}",
            descriptor.index, descriptor.at, descriptor.text, descriptor.target
        ),
    );
}

/// `1 reset`, `2 resets`.
fn plural(n: u64, word: &str) -> String {
    format!("{n} {word}{}", if n == 1 { "" } else { "s" })
}

fn counters(counters: &Counters) -> String {
    let mut text = format!(
        "{}, {}, {} batches, {} ({} bytes), {}, {}, {} register reads, {} writes",
        plural(counters.doorbells, "doorbell"),
        plural(counters.descriptors, "descriptor"),
        counters.batches,
        bytes(counters.bytes),
        counters.bytes,
        plural(counters.errors, "error"),
        plural(counters.resets, "reset"),
        counters.register_reads,
        counters.register_writes
    );
    if counters.notifications + counters.notifications_lost > 0 {
        let _ = write!(
            text,
            ", {} notifications, {} lost",
            counters.notifications, counters.notifications_lost
        );
    }
    text
}

fn unmodelled(out: &mut String, registers: &[UnmodelledReport], limit: usize) {
    if registers.is_empty() {
        return;
    }
    line(
        out,
        format_args!("  touched but not modelled: {} registers", registers.len()),
    );
    for register in registers.iter().take(limit) {
        line(
            out,
            format_args!(
                "    {:#010x}  {} reads, {} writes  {}",
                register.offset, register.reads, register.writes, register.name
            ),
        );
    }
    if registers.len() > limit {
        line(
            out,
            format_args!("    ... and {} more: see dump", registers.len() - limit),
        );
    }
}

/// Bytes with a binary unit, one decimal.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    for (unit, shift) in UNITS {
        let one = 1_u64 << shift;
        if bytes >= one {
            let tenths = u128::from(bytes) * 10 / u128::from(one);
            return format!("{}.{} {unit}", tenths / 10, tenths % 10);
        }
    }
    format!("{bytes} B")
}

/// A duration given in microseconds, in the unit a reader expects.
pub fn micros(us: u64) -> String {
    match us {
        0..=9_999 => format!("{us} us"),
        10_000..=9_999_999 => format!("{} ms", us / 1_000),
        _ => format!("{} s", us / 1_000_000),
    }
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stuck() -> DeviceReport {
        DeviceReport {
            product: "trn2".to_owned(),
            platform: "qemu".to_owned(),
            routing_id: 3,
            connected: true,
            wire: WireReport {
                connections: 1,
                messages: 9,
                ..WireReport::default()
            },
            bus_master: true,
            queues: vec![QueueReport {
                engine: 128,
                queue: 1,
                wait: Wait::S2mDoorbell,
                last_doorbell: Some(Doorbell {
                    direction: Direction::M2s,
                    count: 17,
                    age_us: Some(2_500_000),
                }),
                m2s: RingReport {
                    length: 8192,
                    head: 40,
                    tail: 57,
                    outstanding: 17,
                    ..RingReport::default()
                },
                s2m: RingReport {
                    length: 8192,
                    head: 40,
                    tail: 40,
                    ..RingReport::default()
                },
                m2s_descriptors: vec![],
                s2m_descriptors: vec![],
                events: vec![],
            }],
            ..DeviceReport::default()
        }
    }

    #[test]
    fn first_lines_answer_why_a_copy_is_stuck() {
        let text = status(&stuck());
        let head: Vec<&str> = text.lines().take(5).collect();
        assert_eq!(head[1], "  1 of 1 queues have unfinished work");
        assert!(head[2].starts_with(
            "  e128.q1: last doorbell m2s +17 2500 ms ago; waits for an s2m doorbell"
        ));
        assert!(head[3].contains("m2s head 40 tail 57 of 8192: 17 outstanding"));
        assert!(head[4].contains("s2m head 40 tail 40"));
    }

    #[test]
    fn a_queue_without_rings_takes_one_line() {
        let mut device = stuck();
        device.queues[0].wait = Wait::Nothing;
        device.queues[0].m2s = RingReport::default();
        device.queues[0].s2m = RingReport::default();
        assert!(status(&device).contains("2500 ms ago; reset since, no rings\n  totals"));
    }

    #[test]
    fn dma_off_is_said_only_when_work_waits() {
        let mut device = stuck();
        device.bus_master = false;
        assert!(status(&device).contains("DMA IS OFF"));
        device.queues.clear();
        assert!(!status(&device).contains("DMA IS OFF"));
    }

    #[test]
    fn status_is_short_and_dump_is_whole() {
        let mut device = stuck();
        let queue = device.queues[0].clone();
        device.queues = vec![queue; STATUS_QUEUES + 3];
        assert!(status(&device).contains("... and 3 more queues"));
        assert_eq!(
            dump(&device).matches("queue e128.q1").count(),
            STATUS_QUEUES + 3
        );
    }

    #[test]
    fn sizes_round_down_and_keep_small_ones_exact() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(u64::MAX), "16777215.9 TiB");
    }
}
