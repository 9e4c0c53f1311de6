//! Writes `driver/neuron_protocol.h`, the kernel module's view of `neuron-protocol`, so that each fact stands once.
//!
//! Run it after a change of the protocol: `cargo run -p neuron-guest-tests --bin gen-header`. `--check` only compares.
use std::fmt::{self, Write as _};
use std::process::ExitCode;

use neuron_protocol::descriptor::{self, LenCtrl, MetaCtrl};
use neuron_protocol::generation::{
    Block, Generation, Platform, Product, QUEUES_PER_ENGINE, V2, V3, V4, VENDOR_ID,
};
use neuron_protocol::ioctl::{self, Flow};
use neuron_protocol::registers::{
    Direction, engine, iofic, misc_ram, notification, queue, semaphore,
};
use neuron_protocol::{budget, mailbox, marker, ring};

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/driver/neuron_protocol.h");

const GENERATIONS: [&Generation; 3] = [&V2, &V3, &V4];

/// Kinds of block, with their C names. The C numbers are positions in this list.
const BLOCKS: [(Block, &str); 11] = [
    (Block::Udma, "UDMA"),
    (Block::Sdma, "SDMA"),
    (Block::SdmaNotification, "SDMA_NOTIFICATION"),
    (Block::ErrorTrigger, "ERROR_TRIGGER"),
    (Block::CoreTile, "CORE_TILE"),
    (Block::CoreNotification, "CORE_NOTIFICATION"),
    (Block::Activity, "ACTIVITY"),
    (Block::TopSp, "TOP_SP"),
    (Block::TopSpNotification, "TOP_SP_NOTIFICATION"),
    (Block::MiscRam, "MISC_RAM"),
    (Block::Reset, "RESET"),
];

fn main() -> ExitCode {
    let header = match header() {
        Ok(header) => header,
        Err(error) => {
            eprintln!("gen-header: {error}");
            return ExitCode::FAILURE;
        }
    };
    if std::env::args().any(|argument| argument == "--check") {
        return match std::fs::read_to_string(PATH) {
            Ok(committed) if committed == header => ExitCode::SUCCESS,
            Ok(_) => {
                eprintln!(
                    "gen-header: {PATH} is out of date: run cargo run -p neuron-guest-tests --bin gen-header"
                );
                ExitCode::FAILURE
            }
            Err(error) => {
                eprintln!("gen-header: cannot read {PATH}: {error}");
                ExitCode::FAILURE
            }
        };
    }
    match std::fs::write(PATH, header) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gen-header: cannot write {PATH}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The whole header.
fn header() -> Result<String, fmt::Error> {
    let mut out = String::new();
    out.push_str(
        "/* SPDX-License-Identifier: MIT OR Apache-2.0 */\n\
         /*\n \
          * Generated from the crate neuron-protocol, where each fact has its source:\n \
          * cargo run -p neuron-guest-tests --bin gen-header. Do not edit.\n \
          */\n\
         #ifndef NEURON_PROTOCOL_H\n\
         #define NEURON_PROTOCOL_H\n\n\
         #include <linux/types.h>\n",
    );
    identity(&mut out)?;
    descriptors(&mut out)?;
    rings(&mut out)?;
    registers(&mut out)?;
    firmware(&mut out)?;
    requests(&mut out)?;
    tables(&mut out)?;
    out.push_str("\n#endif\n");
    Ok(out)
}

fn section(out: &mut String, title: &str) -> fmt::Result {
    writeln!(out, "\n/* {title} */")
}

fn hex(out: &mut String, name: &str, value: impl Into<u64>) -> fmt::Result {
    writeln!(out, "#define NP_{name} {:#x}", value.into())
}

fn number(out: &mut String, name: &str, value: impl Into<u64>) -> fmt::Result {
    writeln!(out, "#define NP_{name} {}", value.into())
}

fn identity(out: &mut String) -> fmt::Result {
    section(out, "PCI identity")?;
    hex(out, "VENDOR_ID", VENDOR_ID)?;
    for (device, _) in products() {
        writeln!(out, "#define NP_DEVICE_{device:04X} {device:#x}")?;
    }
    let ids: Vec<_> = products()
        .map(|(device, _)| format!("{{ entry(NP_VENDOR_ID, NP_DEVICE_{device:04X}) }}"))
        .collect();
    writeln!(
        out,
        "#define NP_PCI_IDS(entry) \\\n\t{}",
        ids.join(", \\\n\t")
    )?;
    hex(out, "REVISION_SILICON", Platform::Silicon.revision_id())?;
    hex(out, "REVISION_QEMU", Platform::Qemu.revision_id())?;
    hex(out, "REVISION_EMULATOR", Platform::Emulator.revision_id())
}

/// Every PCI device id of the family with its product; one product has two.
fn products() -> impl Iterator<Item = (u16, Product)> {
    (0..=u16::MAX).filter_map(|device| Some((device, Product::from_device_id(device)?)))
}

fn descriptors(out: &mut String) -> fmt::Result {
    section(out, "Descriptors")?;
    out.push_str(
        "struct np_desc {\n\t__le32 len_ctrl;\n\t__le32 meta_ctrl;\n\t__le64 address;\n};\n\n",
    );
    writeln!(out, "#define NP_DESC_SIZE {}", descriptor::DESCRIPTOR_SIZE)?;
    hex(out, "MAX_DESC_LENGTH", descriptor::MAX_DESCRIPTOR_LENGTH)?;
    let len = LenCtrl::new;
    hex(out, "LEN_LENGTH", len().with_length(u16::MAX).into_bits())?;
    number(
        out,
        "LEN_RING_ID_SHIFT",
        len()
            .with_ring_id_bits(ring::RingId::MASK)
            .into_bits()
            .trailing_zeros(),
    )?;
    hex(out, "LEN_META", len().with_meta(true).into_bits())?;
    hex(out, "LEN_FIRST", len().with_first(true).into_bits())?;
    hex(out, "LEN_LAST", len().with_last(true).into_bits())?;
    hex(out, "LEN_INTERRUPT", len().with_interrupt(true).into_bits())?;
    hex(
        out,
        "LEN_STRONG_ORDER",
        len().with_strong_order(true).into_bits(),
    )?;
    hex(out, "LEN_DMB", len().with_dmb(true).into_bits())?;
    hex(out, "LEN_CONCAT", len().with_concat(true).into_bits())?;
    hex(out, "META_COPY", MetaCtrl::COPY.into_bits())?;
    hex(
        out,
        "META_WRITE_BARRIER",
        MetaCtrl::new().with_write_barrier(true).into_bits(),
    )
}

fn rings(out: &mut String) -> fmt::Result {
    section(out, "Rings, marker, poll budget (microseconds)")?;
    number(out, "RING_ID_INITIAL", ring::RingId::INITIAL.bits())?;
    hex(out, "RING_ID_MASK", ring::RingId::MASK)?;
    number(out, "RING_GUARD", ring::GUARD)?;
    number(out, "RING_MIN", ring::MIN_SIZE)?;
    number(out, "RING_MAX", ring::MAX_SIZE)?;
    number(out, "RING_STEP", ring::SIZE_STEP)?;
    number(out, "RING_ALIGN", ring::ALIGNMENT)?;
    number(out, "H2T_NOMINAL", ring::H2T_DESC_COUNT)?;
    number(
        out,
        "H2T_ALLOCATED",
        ring::allocated_count(ring::H2T_DESC_COUNT).unwrap_or_default(),
    )?;
    number(out, "SYNC_THRESHOLD", ring::SYNC_THRESHOLD)?;
    number(out, "BATCH_DATA", ring::FULL_BATCH_DATA)?;
    hex(out, "MARKER", marker::MARKER)?;
    number(out, "MARKER_SIZE", marker::MARKER_SIZE)?;
    number(out, "MARKER_SOURCE", marker::SOURCE_OFFSET)?;
    number(out, "MARKER_POLL", marker::POLL_OFFSET)?;
    number(out, "MARKER_SLOT", marker::SLOT_SIZE)?;
    writeln!(
        out,
        "#define NP_COMPL_QUEUE_CAPACITY {}u",
        ioctl::COMPL_QUEUE_CAPACITY
    )?;
    writeln!(out, "#define NP_CTX_NONE {:#x}u", ioctl::wait_handle::NONE)?;
    number(out, "CTX_SYNC", ioctl::wait_handle::SYNC)?;
    number(out, "CTX_ASYNC1", ioctl::wait_handle::ASYNC1)?;
    number(out, "CTX_ASYNC2", ioctl::wait_handle::ASYNC2)?;
    number(out, "BUDGET_STRETCH", budget::BUDGET_STRETCH)?;
    number(out, "BUDGET_ASYNC_FIRST", budget::ASYNC_FIRST_WAIT)?;
    number(out, "BUDGET_D2D_FIRST", budget::D2D_FIRST_WAIT)?;
    number(out, "BUDGET_D2D_CUT", budget::D2D_CUT)?;
    number(out, "BUDGET_POLL_US", budget::KERNEL_POLL_INTERVAL)?;
    number(out, "BUDGET_QEMU_SPLIT", budget::Scaling::SPLIT.qemu)?;
    number(out, "BUDGET_QEMU_COMMON", budget::Scaling::COMMON.qemu)?;
    number(out, "BUDGET_EMULATOR", budget::Scaling::SPLIT.emulator)
}

fn registers(out: &mut String) -> fmt::Result {
    use Direction::{M2s, S2m};

    section(out, "Engine: units, from its base")?;
    hex(out, "UDMA_S2M", engine::S2M)?;
    hex(out, "UDMA_GEN", engine::GEN)?;
    hex(out, "UDMA_GEN_EX", engine::GEN_EX)?;
    hex(out, "UDMA_STATE", engine::unit::STATE)?;
    hex(out, "UDMA_CHANGE_STATE", engine::unit::CHANGE_STATE)?;
    hex(
        out,
        "CHANGE_STATE_NORMAL",
        engine::ChangeState::new().with_normal(true).into_bits(),
    )?;
    hex(
        out,
        "CHANGE_STATE_DISABLE",
        engine::ChangeState::new().with_disable(true).into_bits(),
    )?;
    hex(
        out,
        "CHANGE_STATE_ABORT",
        engine::ChangeState::new().with_abort(true).into_bits(),
    )?;
    hex(out, "M2S_CFG_LEN", engine::M2S_CFG_LEN)?;
    hex(out, "UDMA_QUEUES", queue::QUEUES)?;
    hex(out, "UDMA_QUEUE_STRIDE", queue::QUEUE_STRIDE)?;
    number(out, "QUEUES_PER_ENGINE", QUEUES_PER_ENGINE)?;

    section(out, "Queue, from its block")?;
    for (name, offset) in [
        ("CFG", queue::CFG),
        ("STATUS", queue::STATUS),
        ("DRBP_LOW", queue::DRBP_LOW),
        ("DRBP_HIGH", queue::DRBP_HIGH),
        ("DRL", queue::DRL),
        ("DRHP", queue::DRHP),
        ("DRTP_INC", queue::DRTP_INC),
        ("DRTP", queue::DRTP),
        ("DCP", queue::DCP),
        ("CRBP_LOW", queue::CRBP_LOW),
        ("CRBP_HIGH", queue::CRBP_HIGH),
        ("CRHP", queue::CRHP),
        ("RLIMIT_MASK", queue::RLIMIT_MASK),
    ] {
        hex(out, &format!("Q_{name}"), offset)?;
    }
    for (name, direction) in [("M2S", M2s), ("S2M", S2m)] {
        hex(
            out,
            &format!("{name}_Q_COMP_CFG"),
            queue::comp_cfg(direction),
        )?;
        hex(out, &format!("{name}_Q_SW_CTRL"), queue::sw_ctrl(direction))?;
    }
    hex(out, "Q_INDEX", queue::INDEX_MASK)?;
    hex(out, "Q_CFG_RESET", queue::Cfg::RESET.into_bits())?;
    hex(
        out,
        "Q_CFG_ENABLED",
        queue::Cfg::new()
            .with_prefetch(true)
            .with_schedule(true)
            .into_bits(),
    )?;
    hex(
        out,
        "Q_SW_CTRL_RESET",
        queue::SwCtrl::new().with_reset_queue(true).into_bits(),
    )?;
    out.push_str("/* What user space must not write. */\n");
    let gated: Vec<_> = queue::BLOCKED
        .iter()
        .map(|offset| format!("{offset:#x}"))
        .collect();
    writeln!(out, "#define NP_Q_GATED {{ {} }}", gated.join(", "))?;

    section(out, "Interrupt controller, from a group")?;
    // The second of the primary groups.
    hex(out, "IOFIC_RX", engine::GEN + iofic::GROUP_STRIDE)?;
    hex(out, "IOFIC_CAUSE", iofic::CAUSE)?;
    hex(out, "IOFIC_MASK_CLEAR", iofic::MASK_CLEAR)?;
    hex(out, "IOFIC_CONTROL", iofic::CONTROL)?;
    hex(out, "IOFIC_ABORT_MASK", iofic::ABORT_MASK)?;

    section(out, "Events and semaphores, from a core's tile")?;
    number(out, "SEMAPHORE_COUNT", semaphore::COUNT)?;
    hex(out, "SEMAPHORE_CORE_OFFSET", semaphore::CORE_OFFSET)?;
    hex(out, "SEMAPHORE_READ", semaphore::READ)?;
    hex(out, "SEMAPHORE_SET", semaphore::SET)?;
    hex(out, "SEMAPHORE_INCREMENT", semaphore::INCREMENT)?;
    hex(out, "SEMAPHORE_DECREMENT", semaphore::DECREMENT)?;

    section(out, "Notification queues, from a notification block")?;
    hex(out, "NQ_QUEUES", notification::QUEUES)?;
    hex(out, "NQ_STRIDE", notification::QUEUE_STRIDE)?;
    number(out, "NQ_COUNT", notification::QUEUE_COUNT)?;
    hex(out, "NQ_BASE_LOW", notification::BASE_LOW)?;
    hex(out, "NQ_BASE_HIGH", notification::BASE_HIGH)?;
    hex(out, "NQ_SIZE", notification::SIZE)?;
    number(
        out,
        "NQ_TYPE_TRACE_DMA",
        ioctl::notification_type::TRACE_DMA,
    )
}

fn firmware(out: &mut String) -> fmt::Result {
    section(out, "Firmware window, from its base")?;
    for (name, offset) in [
        ("ROUTING_ID", misc_ram::ROUTING_ID),
        ("DATA", misc_ram::DATA),
        ("DATA_SIZE", misc_ram::DATA_SIZE),
        ("RESET_MAP", misc_ram::RESET_MAP),
        ("RESET", misc_ram::RESET),
        ("REQUEST_HIGH", misc_ram::REQUEST_HIGH),
        ("REQUEST_LOW", misc_ram::REQUEST_LOW),
        ("RESPONSE_HIGH", misc_ram::RESPONSE_HIGH),
        ("RESPONSE_LOW", misc_ram::RESPONSE_LOW),
        ("TRIGGER", misc_ram::TRIGGER),
        ("STATUS", misc_ram::STATUS),
        ("RESET_DEVICE", misc_ram::RESET_DEVICE),
        ("RESET_CORES", misc_ram::RESET_CORES),
    ] {
        hex(out, &format!("MISC_{name}"), offset)?;
    }
    section(out, "Legacy mailbox")?;
    out.push_str(
        "struct np_mailbox_request {\n\t__u8 seq;\n\t__u8 command;\n\t__le16 size;\n\t__le32 crc;\n};\n\n\
         struct np_mailbox_response {\n\t__u8 seq;\n\t__u8 error;\n\t__le16 size;\n};\n\n",
    );
    number(out, "MAILBOX_READ", mailbox::Command::Read.number())?;
    number(out, "MAILBOX_POST", mailbox::Command::PostToCw.number())?;
    number(
        out,
        "MAILBOX_UNKNOWN",
        u8::from(mailbox::Status::UnknownCommand),
    )?;
    writeln!(
        out,
        "#define NP_MAILBOX_MAX_READ {}",
        mailbox::MAX_READ_REGISTERS
    )
}

fn requests(out: &mut String) -> fmt::Result {
    section(out, "Ioctl arguments")?;
    for layout in ioctl::layouts() {
        writeln!(out, "struct np_{} {{", layout.name)?;
        for field in layout.fields {
            let prefix = if field.ctype.is_struct {
                "struct np_"
            } else {
                ""
            };
            let count = field
                .ctype
                .count
                .map(|count| format!("[{count}]"))
                .unwrap_or_default();
            writeln!(out, "\t{prefix}{} {}{count};", field.ctype.base, field.name)?;
        }
        writeln!(
            out,
            "}};\n_Static_assert(sizeof(struct np_{0}) == {1}, \"np_{0}\");\n",
            layout.name, layout.size
        )?;
    }
    section(
        out,
        "Ioctl requests; the comment says where data goes, which the encoding does not",
    )?;
    for request in ioctl::requests() {
        let flow = match request.flow {
            Flow::Unused => "unused",
            Flow::In => "in",
            Flow::Out => "out",
            Flow::InOut => "in, out",
            Flow::InPointers => "in, out by pointer",
        };
        let argument = request
            .argument
            .map(|layout| format!("struct np_{}, ", layout.name))
            .unwrap_or_default();
        writeln!(
            out,
            "#define NP_IOCTL_{} {:#010x} /* {argument}{flow} */",
            request.name, request.request
        )?;
    }
    out.push('\n');
    writeln!(out, "#define NP_NC_MAP_DEVICE {:#x}u", ioctl::NC_MAP_DEVICE)?;
    number(out, "QUEUE_TYPE_TX", ioctl::queue_type::TX)?;
    number(out, "QUEUE_TYPE_RX", ioctl::queue_type::RX)?;
    for (name, bit) in [
        ("ASYNC_DMA", ioctl::feature::ASYNC_DMA),
        ("BATCH_DMAQ_INIT", ioctl::feature::BATCH_DMAQ_INIT),
        ("MEM_ALLOC_TYPE", ioctl::feature::MEM_ALLOC_TYPE),
        ("MEM_ALLOC64", ioctl::feature::MEM_ALLOC64),
        ("ZEROCOPY", ioctl::feature::ZEROCOPY),
    ] {
        hex(out, &format!("FEATURE_{name}"), bit)?;
    }
    Ok(())
}

const TABLE_TYPES: &str = "\
struct np_window {
\t__u32 base;
\t__u32 stride;
\t__u32 count;
\t__u32 block; /* enum np_block */
\t__u32 first; /* index of the first one among its kind */
};

/* Device-side addresses that are a stretch of the register window. */
struct np_soc_window {
\t__u64 base;
\t__u64 size;
\t__u32 offset;
};

struct np_generation {
\tconst char *name;
\t__u32 arch;
\t__u32 cores;
\t__u32 engines;
\t__u32 engines_per_core;
\t__u32 first_h2t_engine;
\t__u32 cores_per_h2t_engine;
\t__u64 register_bar_size;
\tconst struct np_window *windows;
\t__u32 window_count;
\tconst struct np_soc_window *soc_windows;
\t__u32 soc_window_count;
\t__u32 hbm_count;
\t__u64 hbm_base[NP_MAX_HBM];
\t__u64 hbm_size;
\t__u64 hbm_bar_stride;
\t__u32 hbm_sized_by_bar; /* on the qemu platform: size and stride are BAR size / count */
\t__u64 host_mask;
\t__u64 host_value; /* what an address of guest RAM carries */
\t__u64 host_address_mask; /* the rest of it */
\t__u32 reset_flag;
\t__u32 reset_with_firmware;
\t__u32 misc_ram;
\t__u32 budget_us_per_descriptor;
\t__u32 budget_early_us;
\t__u32 budget_estimates;
};

struct np_product {
\t__u16 device_id;
\t__u8 generation; /* index in np_generations */
\tconst char *name;
\t__u8 node[NP_ROUTING_IDS]; /* N of /dev/neuronN by routing id */
};
";

/// Routing ids a driver accepts (contract §4).
const ROUTING_IDS: u8 = 64;

fn tables(out: &mut String) -> fmt::Result {
    section(out, "Generations and products")?;
    let stacks = GENERATIONS
        .iter()
        .map(|generation| generation.hbm.soc_bases.len())
        .max()
        .unwrap_or_default();
    writeln!(out, "#define NP_MAX_HBM {stacks}")?;
    number(out, "ROUTING_IDS", ROUTING_IDS)?;
    out.push_str("\nenum np_block {\n");
    for (_, name) in BLOCKS {
        writeln!(out, "\tNP_BLOCK_{name},")?;
    }
    out.push_str("};\n\n");
    out.push_str(TABLE_TYPES);
    out.push_str("\n#ifdef NP_TABLES /* defined by the one file that holds them */\n");
    for generation in GENERATIONS {
        generation_windows(out, generation)?;
    }
    out.push_str("\nstatic const struct np_generation np_generations[] = {\n");
    for generation in GENERATIONS {
        generation_row(out, generation)?;
    }
    out.push_str("};\n\nstatic const struct np_product np_products[] = {\n");
    for (device, product) in products() {
        let generation = GENERATIONS
            .iter()
            .position(|generation| generation.arch == product.generation().arch);
        let nodes: Vec<_> = (0..ROUTING_IDS)
            .map(|id| product.node(id).to_string())
            .collect();
        writeln!(
            out,
            "\t{{ NP_DEVICE_{device:04X}, {}, \"{product}\",\n\t  {{ {} }} }},",
            generation.ok_or(fmt::Error)?,
            nodes
                .chunks(16)
                .map(|row| row.join(", "))
                .collect::<Vec<_>>()
                .join(",\n\t    ")
        )?;
    }
    out.push_str("};\n#endif\n");
    Ok(())
}

fn generation_windows(out: &mut String, generation: &Generation) -> fmt::Result {
    let lower = generation.name.to_lowercase();
    writeln!(
        out,
        "\nstatic const struct np_window np_{lower}_windows[] = {{"
    )?;
    for window in generation.windows {
        let (_, block) = BLOCKS
            .iter()
            .find(|(block, _)| *block == window.block)
            .ok_or(fmt::Error)?;
        writeln!(
            out,
            "\t{{ {:#x}, {:#x}, {}, NP_BLOCK_{block}, {} }},",
            window.base, window.stride, window.count, window.first
        )?;
    }
    writeln!(
        out,
        "}};\n\nstatic const struct np_soc_window np_{lower}_soc_windows[] = {{"
    )?;
    for window in generation.soc_windows {
        writeln!(
            out,
            "\t{{ {:#x}, {:#x}, {:#x} }},",
            window.base, window.size, window.bar_offset
        )?;
    }
    out.push_str("};\n");
    Ok(())
}

fn generation_row(out: &mut String, generation: &Generation) -> fmt::Result {
    let lower = generation.name.to_lowercase();
    let hbm = &generation.hbm;
    let bases: Vec<_> = hbm
        .soc_bases
        .iter()
        .map(|base| format!("{base:#x}"))
        .collect();
    writeln!(out, "\t{{\n\t\t.name = \"{}\",", generation.name)?;
    for (field, value) in [
        ("arch", u64::from(generation.arch)),
        ("cores", generation.cores.into()),
        ("engines", generation.engines.into()),
        ("engines_per_core", generation.engines_per_core.into()),
        ("first_h2t_engine", generation.first_h2t_engine.into()),
        (
            "cores_per_h2t_engine",
            generation.cores_per_h2t_engine.into(),
        ),
        ("hbm_sized_by_bar", hbm.sized_by_bar.into()),
        (
            "reset_with_firmware",
            generation.reset_flag.with_firmware.into(),
        ),
        (
            "budget_us_per_descriptor",
            generation.estimate.microseconds_per_descriptor,
        ),
        ("budget_early_us", generation.estimate.early_microseconds),
        ("budget_estimates", generation.estimate.estimates),
    ] {
        writeln!(out, "\t\t.{field} = {value},")?;
    }
    for (field, value) in [
        ("register_bar_size", generation.register_bar_size),
        ("hbm_size", hbm.stack_size),
        ("hbm_bar_stride", hbm.bar_stride),
        ("host_mask", generation.host.mask),
        ("host_value", generation.host.value),
        ("host_address_mask", generation.host.address_mask),
        ("reset_flag", generation.reset_flag.offset.into()),
        ("misc_ram", generation.misc_ram.into()),
    ] {
        writeln!(out, "\t\t.{field} = {value:#x},")?;
    }
    writeln!(
        out,
        "\t\t.windows = np_{lower}_windows,\n\t\t.window_count = {},",
        generation.windows.len()
    )?;
    writeln!(
        out,
        "\t\t.soc_windows = np_{lower}_soc_windows,\n\t\t.soc_window_count = {},",
        generation.soc_windows.len()
    )?;
    writeln!(
        out,
        "\t\t.hbm_count = {},\n\t\t.hbm_base = {{ {} }},\n\t}},",
        bases.len(),
        bases.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_header_is_up_to_date() {
        let committed = std::fs::read_to_string(PATH).unwrap();
        let current = header().unwrap();
        let difference = committed
            .lines()
            .zip(current.lines())
            .find(|(old, new)| old != new);
        assert!(
            committed == current,
            "driver/neuron_protocol.h is out of date: run cargo run -p neuron-guest-tests --bin gen-header; \
             first difference: {difference:?}"
        );
    }

    #[test]
    fn what_the_module_relies_on_is_there() {
        let header = header().unwrap();
        for line in [
            "#define NP_IOCTL_DMA_QUEUE_COPY_START 0x80084e23 /* struct np_dma_queue_copy_start, in */",
            "#define NP_MARKER 0xabcdef01",
            "#define NP_H2T_ALLOCATED 8192",
            "#define NP_Q_DRTP_INC 0x38",
            "#define NP_Q_GATED { 0x28, 0x2c, 0x44, 0x48, 0x38 }",
        ] {
            assert!(header.lines().any(|found| found == line), "missing: {line}");
        }
    }
}
