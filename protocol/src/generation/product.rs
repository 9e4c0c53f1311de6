//! What PCI ids select: products and platforms.
use core::fmt;
use core::str::FromStr;

use super::{Generation, V2, V3, V4};

/// PCI vendor of every product (contract §1).
pub const VENDOR_ID: u16 = 0x1d0f;

/// A name that is none of the known ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not one of: {known}")]
pub struct UnknownName {
    /// The accepted names, comma separated.
    pub known: &'static str,
}

/// A PCI device of the family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Product {
    /// Trainium 1.
    Trn1,
    /// Inferentia 2.
    Inf2,
    /// Trainium 2.
    Trn2,
    /// Trainium 3.
    Trn3,
}

/// Node numbers by routing id, Trn1 (contract §4).
const TRN1_NODES: [u8; 16] = [0, 4, 1, 5, 3, 7, 2, 6, 12, 8, 13, 9, 15, 11, 14, 10];
/// Node numbers by routing id, Trn2 and Trn3 outside `UltraServers` (contract §4).
const TRN2_NODES: [u8; 16] = [0, 3, 4, 7, 12, 15, 8, 11, 1, 2, 5, 6, 13, 14, 9, 10];

impl Product {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Trn1, Self::Inf2, Self::Trn2, Self::Trn3];

    /// Command-line name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Trn1 => "trn1",
            Self::Inf2 => "inf2",
            Self::Trn2 => "trn2",
            Self::Trn3 => "trn3",
        }
    }

    /// PCI device id (contract §1).
    #[must_use]
    pub const fn device_id(self) -> u16 {
        match self {
            Self::Trn1 => 0x7164,
            Self::Inf2 => 0x7264,
            Self::Trn2 => 0x7364,
            Self::Trn3 => 0x7564,
        }
    }

    /// The product of a PCI device id; Trn3 has a second one (contract §1).
    #[must_use]
    pub fn from_device_id(id: u16) -> Option<Self> {
        match id {
            0x7565 => Some(Self::Trn3),
            id => Self::ALL
                .into_iter()
                .find(|product| product.device_id() == id),
        }
    }

    /// Its architecture.
    #[must_use]
    pub const fn generation(self) -> &'static Generation {
        match self {
            Self::Trn1 | Self::Inf2 => &V2,
            Self::Trn2 => &V3,
            Self::Trn3 => &V4,
        }
    }

    /// The N of `/dev/neuronN` that the driver gives a routing id (contract §4).
    #[must_use]
    pub fn node(self, routing_id: u8) -> u8 {
        let table = match self {
            Self::Inf2 => return routing_id,
            Self::Trn1 => &TRN1_NODES,
            Self::Trn2 | Self::Trn3 => &TRN2_NODES,
        };
        table[usize::from(routing_id % 16)]
    }

    /// The routing id below 16 that becomes `/dev/neuronN`, the inverse of [`Self::node`].
    #[must_use]
    pub fn routing_id(self, node: u8) -> Option<u8> {
        (0..16).find(|id| self.node(*id) == node)
    }
}

impl fmt::Display for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Product {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let found = Self::ALL.into_iter().find(|product| product.name() == name);
        found.ok_or(UnknownName {
            known: "trn1, inf2, trn2, trn3",
        })
    }
}

/// What the driver takes its surroundings to be, from the PCI revision id (contract §2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Platform {
    /// Real hardware: tight budgets, reset by firmware.
    Silicon,
    /// The driver's "qemu": stretched budgets, reset by a flag register.
    Qemu,
    /// A hardware emulator: stretched budgets, reset by firmware.
    Emulator,
}

impl Platform {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Silicon, Self::Qemu, Self::Emulator];

    /// Command-line name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Silicon => "silicon",
            Self::Qemu => "qemu",
            Self::Emulator => "emulator",
        }
    }

    /// PCI revision id (contract §2).
    #[must_use]
    pub const fn revision_id(self) -> u8 {
        match self {
            Self::Silicon => 0,
            Self::Qemu => 255,
            Self::Emulator => 240,
        }
    }

    /// The platform of a PCI revision id.
    #[must_use]
    pub const fn from_revision_id(id: u8) -> Self {
        match id {
            255 => Self::Qemu,
            240 => Self::Emulator,
            _ => Self::Silicon,
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Platform {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let found = Self::ALL
            .into_iter()
            .find(|platform| platform.name() == name);
        found.ok_or(UnknownName {
            known: "silicon, qemu, emulator",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_a_permutation_and_invert() {
        for product in Product::ALL {
            for node in 0..16 {
                assert_eq!(product.node(product.routing_id(node).unwrap()), node);
            }
        }
        assert_eq!(Product::Trn1.node(1), 4);
        assert_eq!(Product::Trn3.node(4), 12);
    }

    #[test]
    fn ids_invert() {
        for product in Product::ALL {
            assert_eq!(Product::from_device_id(product.device_id()), Some(product));
        }
        assert_eq!(Product::from_device_id(0x7565), Some(Product::Trn3));
        assert_eq!(Product::from_device_id(0x7064), None);
        for platform in Platform::ALL {
            assert_eq!(Platform::from_revision_id(platform.revision_id()), platform);
        }
    }
}
