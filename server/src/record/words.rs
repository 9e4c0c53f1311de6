//! Entries for people: registers by name, descriptors taken apart.
use neuron_protocol::descriptor::{DESCRIPTOR_SIZE, LenCtrl, RxDescriptor, TxDescriptor};
use neuron_protocol::generation::Generation;
use neuron_protocol::registers::RegisterName;

use super::entry::{Content, Entry};
use crate::memory::Place;
use crate::vfio::{DmaRequest, DmaUnmap, Progress};

/// Most descriptors shown of one read.
const DESCRIPTORS: usize = 4;
/// Most bytes shown.
const BYTES: usize = 24;

/// Knows the names.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    /// Whose registers.
    pub generation: &'static Generation,
}

impl Words {
    /// An entry in one line.
    #[expect(clippy::too_many_lines, reason = "an entry per arm")]
    pub fn of(self, entry: &Entry) -> String {
        match entry {
            Entry::Tick(delta) => format!("{} later", time(*delta)),
            Entry::Read {
                region,
                offset,
                len,
            } => format!("client reads {}", self.place(*region, *offset, *len)),
            Entry::Write {
                region,
                offset,
                data,
            } => format!(
                "client writes {} = {}",
                self.place(*region, *offset, data.len()),
                value(data)
            ),
            Entry::Map {
                iova,
                size,
                protection,
                file,
            } => {
                let rights = match (protection.read, protection.write) {
                    (true, true) => "rw",
                    (true, false) => "r-",
                    _ => "-w",
                };
                let behind = match file {
                    Some(present) if present == size => "a file".to_owned(),
                    Some(present) => format!("a file of {present:#x} bytes"),
                    None => "messages".to_owned(),
                };
                format!("client maps {iova:#x}+{size:#x} {rights}, behind it {behind}")
            }
            Entry::Unmap(DmaUnmap::All) => "client unmaps everything".to_owned(),
            Entry::Unmap(DmaUnmap::Range { iova, size }) => {
                format!("client unmaps {iova:#x}+{size:#x}")
            }
            Entry::SetIrqs(irqs) => {
                let action = ["eventfds", "mask", "unmask", "trigger"];
                let action = action.get(usize::from(irqs.action)).unwrap_or(&"?");
                format!(
                    "client sets interrupts: index {}, vectors {}..+{}: {action}",
                    irqs.index,
                    irqs.start,
                    irqs.flags.len()
                )
            }
            Entry::Reset => "client resets the device".to_owned(),
            Entry::Disconnect => "client is gone".to_owned(),
            Entry::Run => "a slice of work".to_owned(),
            Entry::NextDma => "next access by message?".to_owned(),
            Entry::DmaReply {
                id,
                reply: Ok(data),
            } => {
                format!("client answers access {id}: {} bytes", data.len())
            }
            Entry::DmaReply {
                id,
                reply: Err(error),
            } => format!("client answers access {id}: {error}"),
            Entry::Order(text) => format!("order: notify {text}"),
            Entry::Done => "-> done".to_owned(),
            Entry::Failed(error) => format!("-> {error}"),
            Entry::Data(content) => format!("-> {}", words_of(content)),
            Entry::Progress(Progress::Idle) => "-> idle".to_owned(),
            Entry::Progress(Progress::Again) => "-> more to do".to_owned(),
            Entry::Progress(Progress::After(delay)) => {
                format!(
                    "-> more to do in {}",
                    time(super::entry::nanoseconds(*delay))
                )
            }
            Entry::Request(None) => "-> none".to_owned(),
            Entry::Request(Some((id, DmaRequest::Read { iova, len }))) => {
                format!("-> access {id}: read {len} bytes at {iova:#x}")
            }
            Entry::Request(Some((id, DmaRequest::Write { iova, data }))) => {
                format!("-> access {id}: write {} bytes at {iova:#x}", data.len())
            }
            Entry::Answer(text) => format!("-> {text}"),
            Entry::Loaded {
                place,
                content,
                lost,
            } => format!("   reads {place}: {}{}", Self::loaded(content), gone(*lost)),
            Entry::Stored {
                place,
                content,
                lost,
            } => format!("   writes {place}: {}{}", words_of(content), gone(*lost)),
            Entry::Present { guest, len, found } => format!(
                "   {} has {found} of {len} bytes: the client cut its file short",
                Place::Guest(*guest)
            ),
            Entry::Event { queue: None, text } => format!("   event: {text}"),
            Entry::Event {
                queue: Some((engine, queue)),
                text,
            } => format!(
                "   event: eng {engine} ({}) q{queue}: {text}",
                self.generation.engine_name(*engine)
            ),
            Entry::End(end) => format!("the recording ends: {end:?}"),
        }
    }

    fn place(self, region: u32, offset: u64, len: usize) -> String {
        match region {
            0 | 2 => {
                let name = RegisterName {
                    generation: self.generation,
                    offset,
                };
                if len == 4 {
                    name.to_string()
                } else {
                    format!("{name} ({len} bytes)")
                }
            }
            4 => format!("HBM {offset:#x}+{len}"),
            7 => format!("configuration space {offset:#x}+{len}"),
            _ => format!("region {region} {offset:#x}+{len}"),
        }
    }

    fn loaded(content: &Content) -> String {
        let Content::Bytes(bytes) = content else {
            return words_of(content);
        };
        let (descriptors, rest) = bytes.as_chunks::<DESCRIPTOR_SIZE>();
        let plausible = |raw: &[u8; DESCRIPTOR_SIZE]| raw[3] & 0x0c != 0 || raw[8..] != [0; 8];
        if descriptors.is_empty() || !rest.is_empty() || !descriptors.iter().all(plausible) {
            return value(bytes);
        }
        let shown: Vec<_> = descriptors
            .iter()
            .take(DESCRIPTORS)
            .map(descriptor)
            .collect();
        let more = match descriptors.len().saturating_sub(DESCRIPTORS) {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        format!("as descriptors [{}{more}]", shown.join("; "))
    }
}

fn words_of(content: &Content) -> String {
    match content {
        Content::Bytes(bytes) => value(bytes),
        Content::Fill { byte, len } => format!("{len} bytes of {byte:#04x}"),
        Content::Absent { len, hash } => format!("{len} bytes left out, hash {hash:016x}"),
        Content::AsRead { len } => format!("the {len} bytes just read"),
        Content::Digest { len, hash, head } => {
            format!("{len} bytes {}.., hash {hash:016x}", hex(head))
        }
    }
}

/// The fields that both kinds have where they are the same.
fn descriptor(raw: &[u8; DESCRIPTOR_SIZE]) -> String {
    let tx: TxDescriptor = zerocopy::transmute!(*raw);
    let rx: RxDescriptor = zerocopy::transmute!(*raw);
    let len_ctrl: LenCtrl = tx.len_ctrl();
    let flags = [
        (len_ctrl.first(), " FIRST"),
        (len_ctrl.last(), " LAST"),
        (len_ctrl.meta(), " META"),
        (len_ctrl.interrupt(), " INT_EN"),
    ];
    let flags: String = flags
        .iter()
        .filter_map(|(set, name)| set.then_some(*name))
        .collect();
    format!(
        "{} bytes{flags} ring id {} at {:#x}",
        len_ctrl.byte_length(),
        len_ctrl.ring_id(),
        if len_ctrl.first() || len_ctrl.last() {
            tx.source()
        } else {
            rx.destination()
        }
    )
}

fn gone(lost: bool) -> &'static str {
    if lost { ", and the memory is gone" } else { "" }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for byte in bytes {
        // Fails for no String.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn value(bytes: &[u8]) -> String {
    if let Ok(word) = <[u8; 4]>::try_from(bytes) {
        return format!("{:#010x}", u32::from_le_bytes(word));
    }
    match bytes.get(..BYTES) {
        Some(head) if bytes.len() > BYTES => format!("{} bytes {}..", bytes.len(), hex(head)),
        _ => format!("{} bytes {}", bytes.len(), hex(bytes)),
    }
}

/// A time for people.
pub fn time(nanoseconds: u64) -> String {
    match nanoseconds {
        0..10_000 => format!("{nanoseconds} ns"),
        10_000..10_000_000 => format!("{} us", nanoseconds / 1_000),
        10_000_000..10_000_000_000 => format!("{} ms", nanoseconds / 1_000_000),
        _ => format!("{} s", nanoseconds / 1_000_000_000),
    }
}
