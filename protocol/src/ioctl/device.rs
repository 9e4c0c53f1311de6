//! Identity, reset, registers, metrics (contract §11, facts §6).

use super::abi::{ioctls, structs};

structs! {
    /// Argument of [`DEVICE_BASIC_INFO`].
    DeviceBasicInfo = "device_basic_info" {
        /// Out: 2, 3 or 4.
        architecture: u32,
        /// Out: PCI revision byte.
        revision: u32,
    }
    /// Argument of [`DRIVER_INFO_GET`].
    DriverInfo = "device_driver_info" {
        /// Out: 2, 3 or 4.
        architecture: u32,
        /// Out: PCI revision byte.
        revision: u32,
        /// Out: version of this struct, 0.
        version: u32,
        /// Out: size of this struct, bytes.
        size: u32,
        /// Out: [`feature`] bits.
        feature_flags1: u64,
    }
    /// Argument of [`COMPATIBLE_VERSION`].
    CompatibleVersion = "compatible_version" {
        /// Out: highest supported runtime version.
        max: u32,
        /// Out: lowest supported runtime version.
        min: u32,
    }
    /// Argument of [`DEVICE_INFO`].
    DeviceInfo = "device_info" {
        /// Out: 2, 3 or 4.
        architecture: u32,
        /// Out: PCI revision byte.
        revision: u32,
        /// Out: number of valid entries in `connected_devices`.
        connected_device_count: u32,
        /// Out: neighbours, from a table in the driver.
        connected_devices: [u32; 8],
        /// Always zero; padding.
        pad_: u32,
        /// Out: bases to add offsets to in [`BarRw::address`]: the register window and the unused second one. Kernel
        /// addresses in the real driver (2.25.4.0 `neuron_cdev.c`), so opaque.
        bar_address: [u64; 2],
        /// Out: their sizes, bytes.
        bar_size: [u64; 2],
    }
    /// Argument of [`NC_RESET`].
    DeviceReset = "device_reset" {
        /// In: one bit per core, or [`super::NC_MAP_DEVICE`].
        nc_map: u32,
        /// Out: identifies the request in [`NC_RESET_READY`].
        request_id: u32,
    }
    /// Argument of [`NC_RESET_READY`].
    DeviceReady = "device_ready" {
        /// In: from [`NC_RESET`].
        request_id: u32,
        /// Out: 0 when the reset succeeded.
        result: i32,
    }
    /// Argument of [`DEVICE_INIT`]; not looked at.
    DeviceInit = "device_init" {
        /// In: regions per channel.
        mem_regions: u32,
    }
    /// Argument of [`BAR_READ`] and [`BAR_WRITE`].
    BarRw = "bar_rw" {
        /// In: 0, the register window whatever PCI BAR it is; the real driver refuses 4.
        bar: u32,
        /// Always zero; padding.
        pad_0: u32,
        /// In: user pointer to `count` 64-bit addresses, each [`DeviceInfo::bar_address`]`[0]` plus the offset in the
        /// register window. The real driver dereferences what it is given (2.25.4.0 `neuron_cdev.c`): a bare offset
        /// crashes the guest.
        address: u64,
        /// In or out: user pointer to `count` 32-bit values.
        data: u64,
        /// In: number of registers.
        count: u32,
        /// Always zero; padding.
        pad_1: u32,
    }
    /// Argument of [`POST_METRIC`].
    PostMetric = "post_metric" {
        /// In: user pointer to the bytes.
        data: u64,
        /// In: number of bytes, at most 128.
        data_size: u32,
        /// Always zero; padding.
        pad_: u32,
    }
    /// Argument of [`READ_HW_COUNTERS`].
    ReadHwCounters = "read_hw_counters" {
        /// In: user pointer to `count` 64-bit device addresses.
        address: u64,
        /// Out: user pointer to `count` 32-bit values.
        data: u64,
        /// In: number of counters.
        count: u32,
        /// Always zero; padding.
        pad_: u32,
    }
    /// Argument of [`DEVICE_BDF_EXT`].
    DeviceBdfExt = "device_bdf_ext" {
        /// In: N of `/dev/neuronN`.
        nd_index: u32,
        /// Out: PCI domain.
        domain: u32,
        /// Out: PCI bus.
        bus_number: u32,
        /// Out: PCI slot.
        slot: u8,
        /// Out: PCI function.
        func: u8,
        /// Always zero; padding.
        pad_: u16,
    }
    /// Argument of [`HOST_DEVICE_ID`].
    HostDeviceId = "host_device_id" {
        /// Out: N of `/dev/neuronN` on the host.
        host_device_id: u32,
    }
    /// Argument of [`POWER_PROFILE`].
    PowerProfile = "power_profile" {
        /// In: size of this struct, bytes.
        sz: u16,
        /// In: 0 sets, 1 gets.
        ctrl: u16,
        /// In: profile.
        profile: u32,
    }
    /// Argument of [`METRICS_CTRL`].
    MetricsCtrl = "metrics_ctrl" {
        /// In: 0 periodic posts on, 1 off.
        mode: u32,
    }
}

/// Bits of [`DriverInfo::feature_flags1`]; 2.25.4.0 reports all nine (facts §6).
pub mod feature {
    /// dma-buf export.
    pub const DMABUF: u64 = 1 << 0;
    /// [`super::super::MEM_COPY_ASYNC`].
    pub const ASYNC_DMA: u64 = 1 << 1;
    /// [`super::super::DMA_QUEUE_INIT_BATCH`].
    pub const BATCH_DMAQ_INIT: u64 = 1 << 2;
    /// Core maps wider than 64 bits.
    pub const BIG_CORE_MAPS: u64 = 1 << 3;
    /// [`super::super::MEM_ALLOC_V2MT`].
    pub const MEM_ALLOC_TYPE: u64 = 1 << 4;
    /// HBM scrubbing.
    pub const HBM_SCRUB: u64 = 1 << 5;
    /// [`super::super::MEM_ALLOC_V2MT64`] and copies of 4 GiB and more.
    pub const MEM_ALLOC64: u64 = 1 << 6;
    /// Contiguous scratchpad.
    pub const CONTIGUOUS_SCRATCHPAD: u64 = 1 << 7;
    /// [`super::super::MEM_BUF_ZEROCOPY64`].
    pub const ZEROCOPY: u64 = 1 << 8;
}

ioctls! {
    /// Deprecated; returns 0 without touching the device. A real reset is [`NC_RESET`].
    DEVICE_RESET = 0x4e01, None, 1, none, Unused;
    /// Deprecated; the argument is one byte, set to 1.
    DEVICE_READY = 0x8001_4e02, Read, 2, 1, Unused;
    /// Topology and BARs. No errors beyond faults.
    DEVICE_INFO = 0x8008_4e03, Read, 3, p8, Out, DeviceInfo;
    /// Deprecated; returns 0.
    DEVICE_INIT = 0x8008_4e04, Read, 4, p8, Unused, DeviceInit;
    /// Deprecated; returns 0.
    DEVICE_RELEASE = 0x4e05, None, 5, none, Unused;
    /// Reads registers. `-ENOMEM` for arrays too large; an address outside the window is the caller's risk.
    BAR_READ = 0x8008_4e0b, Read, 11, p8, InPointers, BarRw;
    /// Writes registers. Needs an attached process (`-EACCES`); `-EINVAL` for a queue's drbp, crbp and `drtp_inc`,
    /// both directions, and for the mailbox's doorbells (seed §3, facts §5.1).
    BAR_WRITE = 0x4008_4e0c, Write, 12, p8, In, BarRw;
    /// Posts bytes through the firmware mailbox, command 2 (contract §4.1). Needs an attached process (`-EACCES`).
    POST_METRIC = 0x4008_4e0d, Write, 13, p8, In, PostMetric;
    /// Reads counters through the firmware mailbox, command 1 (contract §4.1).
    READ_HW_COUNTERS = 0x8008_4e3d, Read, 61, p8, InPointers, ReadHwCounters;
    /// Runtime versions this driver serves. Works on a write-only open.
    COMPATIBLE_VERSION = 0x4008_4e5d, Write, 93, p8, Out, CompatibleVersion;
    /// Architecture and revision. Works on a write-only open, even during reset.
    DEVICE_BASIC_INFO = 0x4008_4e64, Write, 100, p8, Out, DeviceBasicInfo;
    /// Resets cores or the device, asynchronously. Closes their engines first.
    NC_RESET = 0x8008_4e67, Read, 103, p8, InOut, DeviceReset;
    /// Waits for a reset; the outcome is in the struct, the ioctl itself returns 0.
    NC_RESET_READY = 0x8008_4e68, Read, 104, p8, InOut, DeviceReady;
    /// PCI address of any device. Works on a write-only open. Shares its number with a one-byte ioctl.
    DEVICE_BDF_EXT = 0x8008_4e6a, Read, 106, p8, InOut, DeviceBdfExt;
    /// Superset of [`DEVICE_BASIC_INFO`]. Works on a write-only open.
    DRIVER_INFO_GET = 0x8018_4e6e, Read, 110, real, Out, DriverInfo;
    /// N of this device.
    HOST_DEVICE_ID = 0x8004_4e72, Read, 114, real, Out, HostDeviceId;
    /// Sets a power profile through the register mailbox (V3, V4, firmware version 7; contract §4.2). Since 2.25.
    POWER_PROFILE = 0x4008_4e7f, Write, 127, real, In, PowerProfile;
    /// Turns periodic metric posts on or off. Since 2.25.
    METRICS_CTRL = 0x4004_4e80, Write, 128, real, In, MetricsCtrl;
}
