//! V4, "mariana": Trn3. V3 with larger HBM stacks (facts §1.8).
use super::v3::CAYMAN;
use super::{Generation, Hbm};

/// Trn3: eight cores, 132 engines, four HBM stacks of 36 GiB.
pub static V4: Generation = Generation {
    name: "V4",
    arch: 4,
    hbm: Hbm {
        stack_size: 36 << 30,
        ..CAYMAN.hbm
    },
    ..CAYMAN
};
