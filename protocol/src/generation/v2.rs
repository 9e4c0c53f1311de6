//! V2, "sunda": Trn1 and Inf2.
use crate::budget::Estimate;

use super::{Block, Generation, Hbm, HostAperture, ResetFlag, SocWindow, Window};

/// Trn1 and Inf2: two cores, 34 engines, two HBM stacks of 16 GiB.
pub static V2: Generation = Generation {
    name: "V2",
    arch: 2,
    cores: 2,
    engines: 34,
    engines_per_core: 16,
    first_h2t_engine: 32,
    cores_per_h2t_engine: 1,
    resettable_h2t_engines: 0,
    h2t_names: &["D2H", "H2D"],
    register_bar_size: 0x4000_0000,
    windows: WINDOWS,
    soc_windows: SOC_WINDOWS,
    hbm: Hbm {
        soc_bases: &[0, 0x10_0000_0000],
        stack_size: 16 << 30,
        bar_stride: 16 << 30,
        sized_by_bar: false,
    },
    // Bits 44 to 48 select a PCIe route; the driver tests exactly these (contract §6.1). Higher bits name nothing.
    host: HostAperture {
        mask: !((1 << 44) - 1),
        value: 1 << 44,
        address_mask: (1 << 44) - 1,
    },
    reset_flag: ResetFlag {
        offset: 0x3064_7010,
        with_firmware: true,
    },
    misc_ram: 0x30fa_0000,
    strong_order: false,
    estimate: Estimate::V2,
};

/// Contract §4, §5.1, §6.1, §7, §9.
const WINDOWS: &[Window] = &[
    Window::new(Block::Udma, 32, 1, 0x3060_0000, 0x4_0000, 0x4_0000),
    Window::new(Block::Udma, 33, 1, 0x30d0_0000, 0x4_0000, 0x4_0000),
    Window::new(Block::Udma, 0, 16, 0x3000_0000, 0x4_0000, 0x4_0000),
    Window::new(Block::Udma, 16, 16, 0x3070_0000, 0x4_0000, 0x4_0000),
    Window::pages(Block::MiscRam, 0, 1, 0x30fa_0000, 0x1000),
    Window::pages(Block::Reset, 0, 1, 0x3064_7000, 0x1000),
    Window::new(Block::CoreTile, 0, 2, 0, 0x400_0000, 0x400_0000),
    Window::new(Block::TopSp, 0, 6, 0x1000_0000, 0x40_0000, 0x40_0000),
    Window::pages(Block::Sdma, 0, 16, 0x3040_0000, 0x7000),
    Window::pages(Block::Sdma, 16, 16, 0x30b0_0000, 0x7000),
    Window::pages(Block::Sdma, 32, 1, 0x3064_0000, 0x1000),
    Window::pages(Block::Sdma, 33, 1, 0x30d4_0000, 0x1000),
    Window::pages(Block::SdmaNotification, 0, 16, 0x3040_1000, 0x7000),
    Window::pages(Block::SdmaNotification, 16, 16, 0x30b0_1000, 0x7000),
    Window::pages(Block::SdmaNotification, 32, 1, 0x3064_1000, 0x1000),
    Window::pages(Block::SdmaNotification, 33, 1, 0x30d4_1000, 0x1000),
    Window::pages(Block::CoreNotification, 0, 2, 0x3053_5000, 0x70_0000),
    Window::pages(Block::TopSpNotification, 0, 6, 0x30e0_4000, 0x4_0000),
    Window::pages(Block::Activity, 0, 2, 0x305b_1000, 0x70_0000),
];

/// Contract §6.1.
const SOC_WINDOWS: &[SocWindow] = &[
    SocWindow::new(0x0fff_c000_0000, 2 * 0x400_0000, 0),
    SocWindow::new(0x0fff_d000_0000, 6 * 0x40_0000, 0x1000_0000),
    SocWindow::new(0x0fff_f000_0000, 0x1000_0000, 0x3000_0000),
];
