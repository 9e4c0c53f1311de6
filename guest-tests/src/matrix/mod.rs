//! Drivers x products x platforms x kernels x scenarios: many lanes, one result.
//!
//! [`drivers`] finds module files, [`plan`] makes the [`cell`]s and deals them to shards, [`run`] works them off with
//! [`boot`], [`record`] is what is kept, [`merge`] joins it, and [`table`] and [`junit`] show it.
pub mod boot;
pub mod cell;
pub mod cli;
pub mod drivers;
pub mod junit;
pub mod merge;
pub mod plan;
pub mod record;
pub mod run;
#[cfg(test)]
mod samples;
pub mod table;

/// Exit code when no cell failed for good, but some passed only when repeated.
pub const FLAKY: u8 = 7;

/// For `--help`.
pub const EXIT_CODES: &str = "\
A cell is one boot; its name is PRODUCT/PLATFORM/KERNEL/DRIVER, such as trn1/silicon/6.1/2.24.7.0.

Exit codes:
    0  every cell passed, is not supported by the driver itself, or failed by known defects alone (--known)
    1  a cell failed
    2  setup error: bad option, missing file, or cells that could not be run or are missing from merged results
    7  flaky: no cell failed for good, but some passed only when repeated
  130  stopped by a signal; the results so far are written";
