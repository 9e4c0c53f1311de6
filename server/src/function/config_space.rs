//! PCI configuration space: a header of type 0, a PCI Express capability, on request MSI-X, nothing extended.
use neuron_protocol::generation::VENDOR_ID;

/// Bytes of configuration space; all of it, so that QEMU keeps the extended part (qemu client "Limits").
pub const SIZE: usize = 4096;

const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const BARS: usize = 0x10;
const EXPRESS: usize = 0x40;
/// After the 60 bytes of that.
const MSIX: usize = 0x80;

/// Memory space, bus master, parity, SERR, `INTx` disable. There is no I/O space.
const COMMAND_WRITABLE: u16 = 0x0546;
const COMMAND_BUS_MASTER: u16 = 0x0004;
/// Capability list present.
const STATUS_CAPABILITIES: u16 = 0x0010;
/// Error bits, each cleared by writing 1.
const STATUS_CLEARABLE: u16 = 0xf900;
/// Processing accelerator. The driver matches vendor and device only (contract §1).
const CLASS: [u8; 3] = [0x00, 0x00, 0x12];

const BAR_64_BIT: u32 = 0x4;
const BAR_PREFETCHABLE: u32 = 0x8;

/// A 64-bit memory BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// Index of its lower half: 0, 2 or 4.
    pub index: usize,
    /// Bytes, a power of two.
    pub size: u64,
    /// Placed in prefetchable windows of bridges, the only ones that reach above 4 GiB.
    pub prefetchable: bool,
}

/// Where MSI-X is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsixCapability {
    /// Entries of the table, 1 to 2048.
    pub vectors: u16,
    /// BAR of table and PBA.
    pub bar: usize,
    /// The table's offset in it, a multiple of 8 below 4 GiB.
    pub table: u64,
    /// The PBA's.
    pub pba: u64,
}

/// Who the function is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// PCI device id.
    pub device_id: u16,
    /// PCI revision id.
    pub revision_id: u8,
    /// Its BARs.
    pub bars: Vec<Bar>,
    /// Its message-signalled interrupts, if it has any.
    pub msix: Option<MsixCapability>,
}

/// The configuration space of one function.
#[derive(Clone, Debug)]
pub struct ConfigSpace {
    bytes: Vec<u8>,
    writable: Vec<u8>,
    clearable: Vec<u8>,
}

impl ConfigSpace {
    /// Power-on state.
    pub fn new(identity: &Identity) -> Self {
        let mut space = Self {
            bytes: vec![0; SIZE],
            writable: vec![0; SIZE],
            clearable: vec![0; SIZE],
        };
        space.set(0x00, VENDOR_ID.to_le_bytes());
        space.set(0x02, identity.device_id.to_le_bytes());
        space.allow(COMMAND, COMMAND_WRITABLE.to_le_bytes());
        space.set(STATUS, STATUS_CAPABILITIES.to_le_bytes());
        space.clearable[STATUS..STATUS + 2].copy_from_slice(&STATUS_CLEARABLE.to_le_bytes());
        space.set(0x08, [identity.revision_id]);
        space.set(0x09, CLASS);
        space.allow(0x0c, [0xff]);
        for bar in &identity.bars {
            let kind = if bar.prefetchable {
                BAR_64_BIT | BAR_PREFETCHABLE
            } else {
                BAR_64_BIT
            };
            space.set(BARS + bar.index * 4, kind.to_le_bytes());
            // Address bits below the size stay 0: that is how software learns the size.
            space.allow(BARS + bar.index * 4, (!(bar.size - 1) & !0xf).to_le_bytes());
        }
        // Subsystem ids as the device's own; nobody looks at them (contract §1).
        space.set(0x2c, VENDOR_ID.to_le_bytes());
        space.set(0x2e, identity.device_id.to_le_bytes());
        space.set(0x34, [u8::try_from(EXPRESS).unwrap_or(0)]);
        space.allow(0x3c, [0xff]);
        space.express();
        if let Some(msix) = identity.msix {
            space.msix(msix);
        }
        space
    }

    /// A version 2 endpoint capability, first in the list: 16 GT/s, 16 lanes, no function-level reset.
    fn express(&mut self) {
        self.set(EXPRESS, [0x10, 0x00, 0x02, 0x00]);
        // Role-based error reporting; device control as after reset, writable.
        self.set(EXPRESS + 0x04, 0x0000_8000u32.to_le_bytes());
        self.set(EXPRESS + 0x08, 0x2810u16.to_le_bytes());
        self.allow(EXPRESS + 0x08, 0x7fffu16.to_le_bytes());
        self.clearable[EXPRESS + 0x0a] = 0x0f;
        self.set(EXPRESS + 0x0c, 0x0000_0104u32.to_le_bytes());
        self.allow(EXPRESS + 0x10, 0x0fc3u16.to_le_bytes());
        self.set(EXPRESS + 0x12, 0x0104u16.to_le_bytes());
        self.allow(EXPRESS + 0x28, 0x001fu16.to_le_bytes());
        self.set(EXPRESS + 0x2c, 0x0000_001eu32.to_le_bytes());
        self.set(EXPRESS + 0x30, [0x04]);
    }

    /// Second and last in the list. The guest enables it and masks all of it; vectors are masked in the table.
    fn msix(&mut self, msix: MsixCapability) {
        let word = |offset: u64| {
            let bar = u32::try_from(msix.bar).unwrap_or(0);
            u32::try_from(offset).unwrap_or(0) & !0x7 | bar
        };
        self.set(EXPRESS + 1, [u8::try_from(MSIX).unwrap_or(0)]);
        self.set(MSIX, [0x11, 0x00]);
        self.set(MSIX + 2, (msix.vectors.saturating_sub(1)).to_le_bytes());
        self.allow(MSIX + 2, 0xc000u16.to_le_bytes());
        self.set(MSIX + 4, word(msix.table).to_le_bytes());
        self.set(MSIX + 8, word(msix.pba).to_le_bytes());
    }

    fn set<const N: usize>(&mut self, at: usize, bytes: [u8; N]) {
        self.bytes[at..at + N].copy_from_slice(&bytes);
    }

    fn allow<const N: usize>(&mut self, at: usize, mask: [u8; N]) {
        self.writable[at..at + N].copy_from_slice(&mask);
    }

    /// Reads; past the end reads 0.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        for (at, byte) in (offset..).zip(data) {
            *byte = usize::try_from(at)
                .ok()
                .and_then(|at| self.bytes.get(at))
                .copied()
                .unwrap_or(0);
        }
    }

    /// Writes what is writable, clears what is cleared by 1, ignores the rest.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        for (at, value) in (offset..).zip(data) {
            let Some(at) = usize::try_from(at).ok().filter(|at| *at < SIZE) else {
                return;
            };
            let (writable, clearable) = (self.writable[at], self.clearable[at]);
            let byte = &mut self.bytes[at];
            *byte = (*byte & !writable | value & writable) & !(value & clearable);
        }
    }

    /// The function may access memory.
    pub fn bus_master(&self) -> bool {
        u16::from_le_bytes([self.bytes[COMMAND], self.bytes[COMMAND + 1]]) & COMMAND_BUS_MASTER != 0
    }

    /// MSI-X is enabled, and masked as a whole. Both are off without the capability.
    pub fn msix_control(&self) -> (bool, bool) {
        let high = self.bytes[MSIX + 3];
        (high & 0x80 != 0, high & 0x40 != 0)
    }

    /// Where the guest placed a 64-bit BAR.
    pub fn bar_address(&self, index: usize) -> u64 {
        let at = BARS + index * 4;
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.bytes[at..at + 8]);
        u64::from_le_bytes(bytes) & !0xf
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> ConfigSpace {
        let bars = vec![
            Bar {
                index: 0,
                size: 1 << 32,
                prefetchable: false,
            },
            Bar {
                index: 4,
                size: 1 << 38,
                prefetchable: true,
            },
        ];
        ConfigSpace::new(&Identity {
            device_id: 0x7364,
            revision_id: 255,
            bars,
            msix: None,
        })
    }

    fn word(space: &ConfigSpace, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        space.read(offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn identity_is_read_only() {
        let mut space = space();
        space.write(0, &[0xff; 12]);
        assert_eq!(word(&space, 0), 0x7364_1d0f);
        assert_eq!(word(&space, 8), 0x1200_00ff);
    }

    #[test]
    fn writing_ones_tells_the_size_of_a_bar() {
        let mut space = space();
        space.write(0x10, &[0xff; 24]);
        assert_eq!((word(&space, 0x10), word(&space, 0x14)), (0x4, 0xffff_ffff));
        assert_eq!((word(&space, 0x18), word(&space, 0x1c)), (0, 0));
        assert_eq!((word(&space, 0x20), word(&space, 0x24)), (0xc, 0xffff_ffc0));
        space.write(0x20, &0x80_0000_000cu64.to_le_bytes());
        assert_eq!(space.bar_address(4), 0x80_0000_0000);
    }

    #[test]
    fn bus_master_follows_the_command_register() {
        let mut space = space();
        assert!(!space.bus_master());
        space.write(4, &[0xff, 0xff]);
        assert!(space.bus_master());
        assert_eq!(word(&space, 4) & 0xffff, 0x0546);
        space.write(4, &[0, 0]);
        assert!(!space.bus_master());
    }

    #[test]
    fn status_errors_clear_by_writing_one_and_the_list_ends() {
        let mut space = space();
        space.bytes[STATUS + 1] = 0xf9;
        space.write(6, &[0xff, 0xff]);
        assert_eq!(word(&space, 4) >> 16, 0x0010);
        let first = word(&space, 0x34) & 0xff;
        assert!(first >= 0x40);
        assert_eq!(word(&space, u64::from(first)) & 0xffff, 0x0010);
        assert_eq!(word(&space, 0x100), 0);
    }

    #[test]
    fn msix_follows_express_when_it_is_asked_for() {
        let msix = MsixCapability {
            vectors: 132,
            bar: 0,
            table: 0xffff_0000,
            pba: 0xffff_8000,
        };
        let mut space = ConfigSpace::new(&Identity {
            device_id: 0x7364,
            revision_id: 0,
            bars: Vec::new(),
            msix: Some(msix),
        });
        assert_eq!(
            u64::from(word(&space, EXPRESS as u64) >> 8 & 0xff),
            MSIX as u64
        );
        space.write(MSIX as u64, &[0xff; 12]);
        assert_eq!(word(&space, MSIX as u64), 0xc083_0011);
        assert_eq!(word(&space, MSIX as u64 + 4), 0xffff_0000);
        assert_eq!(word(&space, MSIX as u64 + 8), 0xffff_8000);
        assert_eq!(space.msix_control(), (true, true));
    }
}
