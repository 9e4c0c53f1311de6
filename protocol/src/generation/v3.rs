//! V3, "cayman": Trn2.
use crate::budget::Estimate;

use super::{Block, Generation, Hbm, HostAperture, ResetFlag, SocWindow, Window};

/// Trn2: eight cores, 132 engines, four HBM stacks of 24 GiB.
pub static V3: Generation = CAYMAN;

/// What V3 and V4 share, with V3's values where they differ (facts §1.8).
pub(super) const CAYMAN: Generation = Generation {
    name: "V3",
    arch: 3,
    cores: 8,
    engines: 132,
    engines_per_core: 16,
    first_h2t_engine: 128,
    cores_per_h2t_engine: 2,
    resettable_h2t_engines: 4,
    h2t_names: &["D2H_0", "H2D_0", "D2H_1", "H2D_1"],
    register_bar_size: 1 << 32,
    windows: WINDOWS,
    soc_windows: SOC_WINDOWS,
    hbm: Hbm {
        soc_bases: &[0, 0x40_0000_0000, 0x8000_0000_0000, 0x8040_0000_0000],
        stack_size: 24 << 30,
        bar_stride: 64 << 30,
        sized_by_bar: true,
    },
    // Bit 47 picks the die whose PCIe port is used; both lead to the same memory. Bits 52 up name neighbours (facts §1.7).
    host: HostAperture {
        mask: !((1 << 48) - 1) | 1 << 46,
        value: 1 << 46,
        address_mask: (1 << 46) - 1,
    },
    reset_flag: ResetFlag {
        offset: 0x0630_0010,
        with_firmware: false,
    },
    misc_ram: 0x06c8_4000,
    strong_order: true,
    estimate: Estimate::V3,
};

const ENGINE_STRIDE: u32 = 0x10_0000;

const fn udma(first: u8, count: u8, base: u32) -> Window {
    Window::new(Block::Udma, first, count, base, ENGINE_STRIDE, 0x4_0000)
}

/// The SDMA wrapper and its notification block follow each UDMA.
const fn sdma(first: u8, count: u8, udma: u32) -> Window {
    Window::pages(Block::Sdma, first, count, udma + 0x4_0000, ENGINE_STRIDE)
}

const fn sdma_notification(first: u8, count: u8, udma: u32) -> Window {
    Window::pages(
        Block::SdmaNotification,
        first,
        count,
        udma + 0x4_1000,
        ENGINE_STRIDE,
    )
}

/// Contract §4, §5.1, §6.1, §7, §9; facts §1.6.
const WINDOWS: &[Window] = &[
    udma(128, 2, 0x0680_0000),
    udma(130, 2, 0x4680_0000),
    udma(0, 32, 0x8200_0000),
    udma(32, 32, 0x9400_0000),
    udma(64, 32, 0xa200_0000),
    udma(96, 32, 0xb400_0000),
    Window::pages(Block::MiscRam, 0, 1, 0x06c8_4000, 0x1000),
    Window::pages(Block::Reset, 0, 1, 0x0630_0000, 0x1000),
    Window::new(Block::CoreTile, 0, 8, 0xd000_0000, 0x400_0000, 0x400_0000),
    Window::new(Block::TopSp, 0, 20, 0xf000_0000, 0x40_0000, 0x40_0000),
    sdma(128, 2, 0x0680_0000),
    sdma(130, 2, 0x4680_0000),
    sdma(0, 32, 0x8200_0000),
    sdma(32, 32, 0x9400_0000),
    sdma(64, 32, 0xa200_0000),
    sdma(96, 32, 0xb400_0000),
    sdma_notification(128, 2, 0x0680_0000),
    sdma_notification(130, 2, 0x4680_0000),
    sdma_notification(0, 32, 0x8200_0000),
    sdma_notification(32, 32, 0x9400_0000),
    sdma_notification(64, 32, 0xa200_0000),
    sdma_notification(96, 32, 0xb400_0000),
    Window::pages(Block::ErrorTrigger, 0, 32, 0x8c00_0000, 0x2_0000),
    Window::pages(Block::ErrorTrigger, 32, 32, 0x9c40_0000, 0x2_0000),
    Window::pages(Block::ErrorTrigger, 64, 32, 0xac00_0000, 0x2_0000),
    Window::pages(Block::ErrorTrigger, 96, 32, 0xbc40_0000, 0x2_0000),
    Window::pages(Block::CoreNotification, 0, 2, 0x0600_1000, 0x18_0000),
    Window::pages(Block::CoreNotification, 2, 2, 0x0640_1000, 0x18_0000),
    Window::pages(Block::CoreNotification, 4, 2, 0x4600_1000, 0x18_0000),
    Window::pages(Block::CoreNotification, 6, 2, 0x4640_1000, 0x18_0000),
    Window::pages(Block::TopSpNotification, 0, 8, 0x06a0_0000, 0x4_0000),
    Window::pages(Block::TopSpNotification, 8, 8, 0x46a0_0000, 0x4_0000),
    Window::pages(Block::Activity, 0, 2, 0x0614_1000, 0x18_0000),
    Window::pages(Block::Activity, 2, 2, 0x0654_1000, 0x18_0000),
    Window::pages(Block::Activity, 4, 2, 0x4614_1000, 0x18_0000),
    Window::pages(Block::Activity, 6, 2, 0x4654_1000, 0x18_0000),
];

/// Device-side bit that selects the second die (facts §1.7).
const DIE_1: u64 = 1 << 47;
/// From a core's state buffer to its PSUM, events and semaphores, device-side (facts §1.7).
const TILE_HIGH: u64 = 0x8_0200_0000;

const fn state_buffer(base: u64, core: u32) -> SocWindow {
    SocWindow::new(base, 0x200_0000, 0xd000_0000 + core * 0x400_0000)
}

const fn tile_high(base: u64, core: u32) -> SocWindow {
    SocWindow::new(
        base + TILE_HIGH,
        0x200_0000,
        0xd200_0000 + core * 0x400_0000,
    )
}

const fn top_sp(base: u64, index: u32) -> SocWindow {
    SocWindow::new(base, 0x40_0000, 0xf000_0000 + index * 0x40_0000)
}

/// Contract §6.1, facts §1.6 and §1.7.
const SOC_WINDOWS: &[SocWindow] = &[
    SocWindow::new(0x10_0000_0000, 0x1000_0000, 0x8000_0000),
    SocWindow::new(0x12_0000_0000, 0x34c_0000, 0xc000_0000),
    state_buffer(0x20_0000_0000, 0),
    tile_high(0x20_0000_0000, 0),
    state_buffer(0x30_0000_0000, 1),
    tile_high(0x30_0000_0000, 1),
    SocWindow::new(0x50_0000_0000, 0x1000_0000, 0x9000_0000),
    SocWindow::new(0x52_0000_0000, 0x34c_0000, 0xc400_0000),
    state_buffer(0x60_0000_0000, 2),
    tile_high(0x60_0000_0000, 2),
    state_buffer(0x70_0000_0000, 3),
    tile_high(0x70_0000_0000, 3),
    SocWindow::new(0x80_0000_0000, 0x2000_0000, 0),
    top_sp(0x82_8000_0000, 0),
    top_sp(0x82_c000_0000, 1),
    top_sp(0x83_0000_0000, 2),
    top_sp(0x83_4000_0000, 3),
    top_sp(0x83_8000_0000, 4),
    top_sp(0x83_c000_0000, 5),
    top_sp(0x84_0000_0000, 6),
    top_sp(0x84_4000_0000, 7),
    top_sp(0x84_8000_0000, 8),
    top_sp(0x84_c000_0000, 9),
    SocWindow::new(DIE_1 | 0x10_0000_0000, 0x1000_0000, 0xa000_0000),
    SocWindow::new(DIE_1 | 0x12_0000_0000, 0x34c_0000, 0xc800_0000),
    state_buffer(DIE_1 | 0x20_0000_0000, 4),
    tile_high(DIE_1 | 0x20_0000_0000, 4),
    state_buffer(DIE_1 | 0x30_0000_0000, 5),
    tile_high(DIE_1 | 0x30_0000_0000, 5),
    SocWindow::new(DIE_1 | 0x50_0000_0000, 0x1000_0000, 0xb000_0000),
    SocWindow::new(DIE_1 | 0x52_0000_0000, 0x34c_0000, 0xcc00_0000),
    state_buffer(DIE_1 | 0x60_0000_0000, 6),
    tile_high(DIE_1 | 0x60_0000_0000, 6),
    state_buffer(DIE_1 | 0x70_0000_0000, 7),
    tile_high(DIE_1 | 0x70_0000_0000, 7),
    SocWindow::new(DIE_1 | 0x80_0000_0000, 0x2000_0000, 0x4000_0000),
    top_sp(DIE_1 | 0x82_8000_0000, 10),
    top_sp(DIE_1 | 0x82_c000_0000, 11),
    top_sp(DIE_1 | 0x83_0000_0000, 12),
    top_sp(DIE_1 | 0x83_4000_0000, 13),
    top_sp(DIE_1 | 0x83_8000_0000, 14),
    top_sp(DIE_1 | 0x83_c000_0000, 15),
    top_sp(DIE_1 | 0x84_0000_0000, 16),
    top_sp(DIE_1 | 0x84_4000_0000, 17),
    top_sp(DIE_1 | 0x84_8000_0000, 18),
    top_sp(DIE_1 | 0x84_c000_0000, 19),
];
