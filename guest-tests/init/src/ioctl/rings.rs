//! A process's own rings, and what queues and engines say.
use std::fs::File;

use neuron_protocol::ioctl as abi;

use super::{Refused, address, call, count};

/// `DMA_COPY_DESCRIPTORS`: 16-byte descriptors at `offset` bytes into a ring.
pub fn copy_descriptors(
    file: &File,
    mem_handle: u64,
    offset: u32,
    queue_type: u32,
    descriptors: &[[u8; 16]],
) -> Result<(), Refused> {
    let mut argument = abi::DmaCopyDescriptors {
        mem_handle,
        buffer: address(descriptors.as_ptr()),
        num_descs: count(descriptors),
        offset,
        queue_type,
        pad_: 0,
    };
    // SAFETY: the driver reads `num_descs` times 16 bytes from the borrowed slice.
    unsafe { call(file, abi::DMA_COPY_DESCRIPTORS, &mut argument) }
}

/// `DMA_DESCRIPTOR_COPYOUT` into `descriptors`, from `start_index`.
pub fn descriptor_copyout(
    file: &File,
    eng_id: u32,
    qid: u32,
    queue_type: u32,
    start_index: u32,
    descriptors: &mut [[u8; 16]],
) -> Result<(), Refused> {
    let mut argument = abi::DmaDescriptorCopyout {
        eng_id,
        qid,
        queue_type,
        start_index,
        count: count(descriptors),
        pad_: 0,
        buffer: address(descriptors.as_mut_ptr()),
    };
    // SAFETY: the driver writes `count` times 16 bytes into the exclusively borrowed slice.
    unsafe { call(file, abi::DMA_DESCRIPTOR_COPYOUT, &mut argument) }
}

/// `DMA_QUEUE_GET_STATE`: transmit and receive.
pub fn queue_state(
    file: &File,
    eng_id: u32,
    qid: u32,
) -> Result<(abi::DmaQueueState, abi::DmaQueueState), Refused> {
    let (mut tx, mut rx) = (abi::DmaQueueState::default(), abi::DmaQueueState::default());
    let mut argument = abi::DmaQueueGetState {
        eng_id,
        qid,
        tx: address(&raw mut tx),
        rx: address(&raw mut rx),
    };
    // SAFETY: both structs are the ones the driver writes and outlive the call.
    unsafe { call(file, abi::DMA_QUEUE_GET_STATE, &mut argument) }?;
    Ok((tx, rx))
}

/// `DMA_ENG_GET_STATE`.
pub fn engine_state(file: &File, eng_id: u32) -> Result<abi::DmaEngState, Refused> {
    let mut state = abi::DmaEngState::default();
    let mut argument = abi::DmaEngGetState {
        eng_id,
        pad_: 0,
        state: address(&raw mut state),
    };
    // SAFETY: the struct is the one the driver writes and outlives the call.
    unsafe { call(file, abi::DMA_ENG_GET_STATE, &mut argument) }?;
    Ok(state)
}
