//! Notification queues (`NOTIFICATIONS_INIT_V2`): the driver makes a ring and tells the device, which posts into it; a
//! program polls the mapped ring (contract §9). The launcher makes the device post, by `ctl notify`.
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use neuron_protocol::generation::Block;
use neuron_protocol::ioctl as abi;
use neuron_protocol::registers::notification::{BASE_HIGH, BASE_LOW, HEAD, QUEUES, SIZE};
use rustix::mm::{MapFlags, ProtFlags};

use super::{Context, Outcome};
use crate::cmdline::Options;
use crate::device::Device;
use crate::job::stage;
use crate::{ioctl, report};

/// Bytes of a ring.
const RING: u32 = 0x4000;
/// Bytes of an entry; what the hardware puts into one is not known, and nothing here depends on it.
const ENTRY: usize = 16;
/// For the way of an entry from the guest's console to the launcher, the control socket and back.
const PATIENCE: Duration = Duration::from_secs(20);

/// Queue 0 of the first and last core and of the first `TopSP`, in guest memory: at an address of its own that the device
/// was told, mapped, empty but for the entries that were asked for.
pub fn run(context: &Context) -> Result<Outcome> {
    let device = &context.device;
    if !device.offers(abi::NOTIFICATIONS_INIT_V2) {
        return Ok(Outcome::NotOffered(
            "the driver has no NOTIFICATIONS_INIT_V2".into(),
        ));
    }
    let mut owners = vec![Owner::Core(0)];
    if device.cores > 1 {
        owners.push(Owner::Core(u8::try_from(device.cores - 1)?));
    }
    owners.push(Owner::TopSp(0));
    let answered = Options::answered();
    let mut seen = Vec::new();
    for owner in owners {
        let name = owner.name();
        stage(&name);
        let (id, block) = owner.block();
        let mut queue = abi::NotificationsInitV2 {
            nq_dev_id: u32::from(id),
            nq_dev_type: u32::from(block == Block::TopSpNotification),
            nq_type: 1,
            size: RING,
            on_host_memory: 1,
            ..Default::default()
        };
        ioctl::plain(device.file(), abi::NOTIFICATIONS_INIT_V2, &mut queue)?;
        let info = device.extended_info(queue.mem_handle)?;
        ensure!(
            info.size >= u64::from(RING),
            "{name}: a ring of {} bytes",
            info.size
        );
        ensure!(info.host_memory != 0, "{name}: asked for guest memory");
        ensure!(
            !seen.contains(&info.pa),
            "{name}: two queues at {:#x}",
            info.pa
        );
        seen.push(info.pa);
        let registers = Registers::of(device, id, block)?;
        registers.check(device, &info).context(name.clone())?;
        let ring = Ring::map(device, queue.mmap_offset).context(name.clone())?;
        if answered {
            posted(context, owner, &registers, &ring).context(name)?;
        }
    }
    if !answered {
        context.note("no entries were asked for: nobody answers (neuron.ask is not set)");
    }
    Ok(Outcome::Pass)
}

/// Whose queue.
#[derive(Clone, Copy)]
enum Owner {
    Core(u8),
    TopSp(u8),
}

impl Owner {
    fn block(self) -> (u8, Block) {
        match self {
            Self::Core(id) => (id, Block::CoreNotification),
            Self::TopSp(id) => (id, Block::TopSpNotification),
        }
    }

    /// As `ctl notify` takes it.
    fn name(self) -> String {
        match self {
            Self::Core(id) => format!("core {id}"),
            Self::TopSp(id) => format!("topsp {id}"),
        }
    }
}

/// Entries that the device is asked for arrive in order, each where the head was, and nothing else is written.
fn posted(context: &Context, owner: Owner, registers: &Registers, ring: &Ring) -> Result<()> {
    let device = &context.device;
    let mut expected = ring.read();
    let mut head = usize::try_from(registers.head(device)?)?;
    for nth in 0..3 {
        let mut entry = [0; ENTRY];
        context
            .pattern(100 + nth)
            .fill(&mut entry, u64::try_from(head)?);
        report::line(format_args!(
            "ask notify {} {} 0 {:032x}",
            device.index,
            owner.name(),
            u128::from_be_bytes(entry)
        ));
        let at = head % usize::try_from(RING)?;
        expected[at..at + ENTRY].copy_from_slice(&entry);
        ring.poll(at, &entry)
            .with_context(|| format!("entry {nth}"))?;
        head = (at + ENTRY) % usize::try_from(RING)?;
        // The head follows the entry.
        let begin = Instant::now();
        while usize::try_from(registers.head(device)?)? != head {
            ensure!(
                begin.elapsed() < PATIENCE,
                "the head is {:#x}, not {head:#x}, after entry {nth}",
                registers.head(device)?
            );
        }
    }
    let now = ring.read();
    if let Some(at) = (0..now.len()).find(|at| now[*at] != expected[*at]) {
        bail!("byte {at:#x} of the ring is written, which no entry has");
    }
    Ok(())
}

/// The registers of queue 0 of a block, as `BAR_READ` counts them.
struct Registers {
    queue: u64,
}

impl Registers {
    fn of(device: &Device, id: u8, block: Block) -> Result<Self> {
        let (bar, _) = device.register_bar()?;
        let base = device
            .generation
            .block_base(block, id)
            .context("the notification block has no place in the BAR")?;
        Ok(Self {
            queue: bar + u64::from(base + QUEUES),
        })
    }

    fn read<const N: usize>(&self, device: &Device, registers: [u32; N]) -> Result<[u32; N]> {
        let addresses = registers.map(|register| self.queue + u64::from(register));
        let mut values = [0; N];
        ioctl::bar_read(device.file(), &addresses, &mut values)?;
        Ok(values)
    }

    fn head(&self, device: &Device) -> Result<u32> {
        self.read(device, [HEAD]).map(|[head]| head)
    }

    /// The device was told of this ring.
    fn check(&self, device: &Device, info: &abi::MemGetExtendedInfo) -> Result<()> {
        let [low, high, size] = self.read(device, [BASE_LOW, BASE_HIGH, SIZE])?;
        let base = u64::from(high) << 32 | u64::from(low);
        let guest = device.generation.host_address(base);
        ensure!(
            guest == Some(info.pa & device.generation.host.address_mask),
            "the registers point at {base:#x}, the ring is at {:#x}",
            info.pa
        );
        ensure!(size == RING, "size {size:#x}");
        Ok(())
    }
}

/// A mapped ring. It stays until the process ends.
struct Ring {
    start: *mut rustix::ffi::c_void,
}

impl Ring {
    fn map(device: &Device, offset: u64) -> Result<Self> {
        ensure!(offset != 0, "no offset to map it at");
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                usize::try_from(RING)?,
                ProtFlags::READ,
                MapFlags::SHARED,
                device.file(),
                offset,
            )
        }
        .context("map the ring")?;
        Ok(Self { start })
    }

    fn byte(&self, at: usize) -> u8 {
        // SAFETY: callers stay inside the mapping, which lives as long as the process; the device alone writes it.
        let byte = unsafe { AtomicU8::from_ptr(self.start.wrapping_byte_add(at).cast()) };
        byte.load(Ordering::Acquire)
    }

    fn read(&self) -> Vec<u8> {
        (0..usize::try_from(RING).unwrap_or(0))
            .map(|at| self.byte(at))
            .collect()
    }

    /// Waits until an entry stands there, as a program does that has nothing but the ring.
    fn poll(&self, at: usize, entry: &[u8]) -> Result<()> {
        let begin = Instant::now();
        loop {
            let seen: Vec<u8> = (at..at + entry.len()).map(|at| self.byte(at)).collect();
            if seen == entry {
                return Ok(());
            }
            ensure!(
                begin.elapsed() < PATIENCE,
                "no entry came to {at:#x} within {} s",
                PATIENCE.as_secs()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
