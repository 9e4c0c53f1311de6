//! One cell of the matrix: what is booted, and the name by which people ask for it again.
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use neuron_protocol::generation::{Platform, Product, VENDOR_ID};

/// Scenarios of a cell when nothing else is asked for.
pub const ALL_SCENARIOS: &str = "all";
/// Label of the module of this project.
pub const OWN: &str = "own";

/// A guest kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelChoice {
    /// Name of its folder: `6.1`.
    pub name: String,
    /// What `--kernel` takes: the name, or an image file that lies in the folder.
    pub source: String,
}

/// A driver, as far as its file tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    /// Version from `.modinfo`, or [`OWN`].
    pub label: String,
    /// The module; `None`: ours, which is built for the kernel when the cell runs.
    pub file: Option<PathBuf>,
    /// Device ids in its PCI table. Empty: none was found, so that the file says nothing about products.
    pub pci_ids: BTreeSet<u16>,
}

/// One cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Guest kernel.
    pub kernel: KernelChoice,
    /// Driver.
    pub driver: Arc<Driver>,
    /// Device model.
    pub product: Product,
    /// What the driver takes its surroundings to be.
    pub platform: Platform,
    /// Devices in the guest.
    pub devices: u8,
    /// What is run in one boot, as `--scenario` takes it.
    pub scenarios: String,
}

impl Cell {
    /// `product/platform/kernel/driver`, with the device count behind the product if it is not one, and the scenarios
    /// last if they are not all. It depends on nothing but the cell itself, so that it is the same in every run.
    pub fn name(&self) -> String {
        match self.scenarios.as_str() {
            ALL_SCENARIOS => self.place(),
            some => format!("{}/{some}", self.place()),
        }
    }

    /// The name without scenarios.
    pub fn place(&self) -> String {
        let devices = match self.devices {
            1 => String::new(),
            n => format!("x{n}"),
        };
        format!(
            "{}{devices}/{}/{}/{}",
            self.product, self.platform, self.kernel.name, self.driver.label
        )
    }

    /// Why the driver cannot drive this product, if its file says so: the kernel binds a driver by its PCI table alone.
    pub fn unsupported(&self) -> Option<String> {
        let ids = &self.driver.pci_ids;
        let id = self.product.device_id();
        (!ids.is_empty() && !ids.contains(&id)).then(|| {
            format!(
                "the driver's PCI table has no {VENDOR_ID:04x}:{id:04x} ({})",
                self.product
            )
        })
    }

    /// What is asked of the guest. A scenario that needs two devices is no gap of a driver that has one.
    pub fn asked(&self) -> String {
        if self.devices == 1 && self.scenarios == ALL_SCENARIOS {
            format!("{ALL_SCENARIOS},-all_devices")
        } else {
            self.scenarios.clone()
        }
    }

    /// Estimated seconds, to balance shards and to guess the remaining time. Only the ratios matter: the driver's own
    /// waits for a reset dominate (contract §13.2: revision 255 costs 2 s each, drivers up to 2.22 sleep 7 s and 3 s).
    pub fn cost(&self) -> u32 {
        let boot = 12 + 3 * (u32::from(self.devices) - 1);
        if self.scenarios != ALL_SCENARIOS {
            let listed = self.scenarios.split(',').filter(|s| !s.is_empty()).count();
            return boot + 2 * u32::try_from(listed).unwrap_or(u32::MAX / 4).min(1000);
        }
        let resets = if sleeps_in_reset(&self.driver.label) {
            60
        } else if self.platform == Platform::Qemu {
            25
        } else {
            10
        };
        boot + 15 + resets * u32::from(self.devices)
    }
}

/// Drivers before 2.23 sleep a fixed time after a reset request (contract §13.2).
fn sleeps_in_reset(label: &str) -> bool {
    let numbers = version_key(label);
    matches!(numbers.as_slice(), [2, minor, ..] if *minor < 23)
}

/// The numbers of a version, to sort by.
pub fn version_key(label: &str) -> Vec<u64> {
    label
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|n| n.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(ids: &[u16]) -> Cell {
        Cell {
            kernel: KernelChoice {
                name: "6.1".into(),
                source: "6.1".into(),
            },
            driver: Arc::new(Driver {
                label: "2.24.7.0".into(),
                file: Some("x.ko".into()),
                pci_ids: ids.iter().copied().collect(),
            }),
            product: Product::Trn1,
            platform: Platform::Silicon,
            devices: 1,
            scenarios: ALL_SCENARIOS.into(),
        }
    }

    #[test]
    fn names_tell_everything_and_nothing_else() {
        let mut cell = cell(&[]);
        assert_eq!(cell.name(), "trn1/silicon/6.1/2.24.7.0");
        assert_eq!(cell.asked(), "all,-all_devices");
        cell.devices = 16;
        cell.scenarios = "info,all_devices".into();
        assert_eq!(cell.name(), "trn1x16/silicon/6.1/2.24.7.0/info,all_devices");
        assert_eq!(cell.asked(), "info,all_devices");
    }

    #[test]
    fn a_product_is_unsupported_only_where_the_pci_table_says_so() {
        assert_eq!(cell(&[0x7164]).unsupported(), None);
        assert_eq!(cell(&[]).unsupported(), None);
        let why = cell(&[0x7264, 0x7364]).unsupported().unwrap();
        assert!(why.contains("1d0f:7164") && why.contains("trn1"), "{why}");
    }

    #[test]
    fn old_drivers_cost_more_and_versions_sort_by_number() {
        assert!(sleeps_in_reset("2.19.64.0") && sleeps_in_reset("2.22.2.0"));
        assert!(!sleeps_in_reset("2.23.9.0") && !sleeps_in_reset(OWN));
        assert!(version_key("2.9.1") < version_key("2.19.64.0"));
    }
}
