//! Registers, programs and the firmware.
use std::fs::File;

use neuron_protocol::ioctl as abi;

use super::{Refused, address, call, count};

/// `BAR_READ` of the register BAR; addresses as `DEVICE_INFO` counts them.
pub fn bar_read(file: &File, addresses: &[u64], values: &mut [u32]) -> Result<(), Refused> {
    let count = u32::try_from(addresses.len().min(values.len())).unwrap_or(0);
    let mut argument = abi::BarRw {
        bar: 0,
        pad_0: 0,
        address: address(addresses.as_ptr()),
        data: address(values.as_mut_ptr()),
        count,
        pad_1: 0,
    };
    // SAFETY: the driver reads `count` addresses and writes `count` values, both slices are at least that long.
    unsafe { call(file, abi::BAR_READ, &mut argument) }
}

/// `BAR_WRITE` of one register of the register BAR.
pub fn bar_write(file: &File, register: u64, value: u32) -> Result<(), Refused> {
    let mut argument = abi::BarRw {
        bar: 0,
        pad_0: 0,
        address: address(&raw const register),
        data: address(&raw const value),
        count: 1,
        pad_1: 0,
    };
    // SAFETY: the driver reads one address and one value, both of which outlive the call.
    unsafe { call(file, abi::BAR_WRITE, &mut argument) }
}

/// `PROGRAM_ENGINE_NC`: writes user bytes to a device address through a core's queue.
pub fn program_engine(file: &File, nc_id: u32, dst: u64, bytes: &[u8]) -> Result<(), Refused> {
    let mut argument = abi::ProgramEngineNc {
        nc_id,
        pad_: 0,
        dst,
        buffer: address(bytes.as_ptr()),
        size: count(bytes),
        // The real driver adds the offset to both addresses; 0 keeps the buffer where it is.
        offset: 0,
    };
    // SAFETY: the driver reads `size` bytes from the borrowed slice.
    unsafe { call(file, abi::PROGRAM_ENGINE_NC, &mut argument) }
}

/// `POST_METRIC`: bytes through the firmware mailbox.
pub fn post_metric(file: &File, bytes: &[u8]) -> Result<(), Refused> {
    let mut argument = abi::PostMetric {
        data: address(bytes.as_ptr()),
        data_size: count(bytes),
        pad_: 0,
    };
    // SAFETY: the driver reads `data_size` bytes from the borrowed slice.
    unsafe { call(file, abi::POST_METRIC, &mut argument) }
}

/// `READ_HW_COUNTERS`: registers through the firmware mailbox.
pub fn read_counters(file: &File, addresses: &[u64], values: &mut [u32]) -> Result<(), Refused> {
    let mut argument = abi::ReadHwCounters {
        address: address(addresses.as_ptr()),
        data: address(values.as_mut_ptr()),
        count: u32::try_from(addresses.len().min(values.len())).unwrap_or(0),
        pad_: 0,
    };
    // SAFETY: the driver reads `count` addresses and writes `count` values, both slices are at least that long.
    unsafe { call(file, abi::READ_HW_COUNTERS, &mut argument) }
}
