//! What the client is told a device consists of: identity, BARs, regions, interrupts.
use neuron_protocol::generation::Platform;

use super::config_space::{self, Bar};
use super::msix::{self, Msix};
use super::{CONFIG_REGION, Config, ERR_IRQ, HBM_BAR, REGISTER_BAR, REGISTER_BAR_ALIAS};
use crate::memory::{HbmGeometry, Memory};
use crate::vfio::{FunctionInfo, Irq, Region, RegionMmap, SparseArea};

/// The device as configuration space shows it.
pub(super) fn identity(config: &Config) -> config_space::Identity {
    let registers = config.product.generation().register_bar_size;
    let register_bar = |index| Bar {
        index,
        size: registers,
        // Too large for the 32-bit windows that bridges have for memory that is not prefetchable.
        prefetchable: registers >= 1 << 32,
    };
    let mut bars = vec![register_bar(REGISTER_BAR)];
    if config.platform == Platform::Qemu {
        bars.push(register_bar(REGISTER_BAR_ALIAS));
    }
    bars.push(Bar {
        index: HBM_BAR,
        size: config.hbm.bar_size(),
        prefetchable: true,
    });
    config_space::Identity {
        device_id: config.product.device_id(),
        revision_id: config.platform.revision_id(),
        bars,
        msix: config.msix.then(|| config_space::MsixCapability {
            vectors: config.product.generation().engines.into(),
            bar: REGISTER_BAR,
            table: registers - msix::WINDOW,
            pba: registers - msix::WINDOW + msix::PBA,
        }),
    }
}

/// The device as its regions and interrupts.
pub(super) fn info(
    config: &Config,
    identity: &config_space::Identity,
    memory: &Memory,
    msix: Option<&Msix>,
) -> FunctionInfo {
    let mut regions = vec![Region::default(); 9];
    for bar in &identity.bars {
        regions[bar.index] = Region {
            size: bar.size,
            read: true,
            write: true,
            mmap: None,
        };
    }
    if config.mmap_hbm {
        let HbmGeometry {
            soc_bases,
            stack_size,
            bar_stride,
        } = config.hbm;
        let areas = (0..).zip(soc_bases).map(|(stack, _)| SparseArea {
            offset: stack * bar_stride,
            size: stack_size,
        });
        regions[HBM_BAR].mmap = Some(RegionMmap {
            file: memory.hbm.file().clone(),
            areas: areas.collect(),
        });
    }
    let size = config_space::SIZE as u64;
    regions[CONFIG_REGION as usize] = Region {
        size,
        read: true,
        write: true,
        mmap: None,
    };
    let mut irqs = vec![Irq::default(); 5];
    // Offered because QEMU warns about a device without it.
    irqs[ERR_IRQ as usize] = Irq {
        count: 1,
        eventfd: true,
        maskable: false,
        noresize: true,
    };
    if let Some(msix) = msix {
        irqs[msix::INDEX as usize] = msix.irq();
    }
    FunctionInfo { regions, irqs }
}
