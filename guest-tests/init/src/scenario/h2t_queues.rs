//! Extra queues of the driver's own engines (`H2T_DMA_ALLOC_QUEUES`, since 2.25).
use anyhow::{Context as _, Result, ensure};
use neuron_protocol::ioctl as abi;

use super::{Context, Outcome, zero_copy};
use crate::canvas::Canvas;
use crate::ioctl::{self, User};
use crate::job::stage;

/// Two copy queues per core: allocated, copied through, freed, refused afterwards.
pub fn run(context: &Context) -> Result<Outcome> {
    let device = &context.device;
    if !device.offers(abi::H2T_DMA_ALLOC_QUEUES) {
        return Ok(Outcome::NotOffered(
            "the driver has no H2T_DMA_ALLOC_QUEUES".into(),
        ));
    }
    let request = match zero_copy::request_of(device)? {
        Ok(request) => request,
        Err(reason) => {
            return Ok(Outcome::NotOffered(format!(
                "nothing else names a queue: {reason}"
            )));
        }
    };
    for core in [0, device.cores - 1] {
        stage(format_args!("core {core}"));
        let mut take = abi::H2tDmaAllocQueues {
            sz: u16::try_from(size_of::<abi::H2tDmaAllocQueues>())?,
            nc_id: u16::try_from(core)?,
            copy_queue_cnt: 2,
            ..Default::default()
        };
        ioctl::plain(device.file(), abi::H2T_DMA_ALLOC_QUEUES, &mut take)?;
        let queues = take.copy_queue_bmap;
        ensure!(
            queues.count_ones() == 2,
            "asked for 2 queues, got bitmap {queues:#x}"
        );
        ensure!(
            queues & 1 << take.copy_default_queue == 0,
            "the default queue was handed out: {queues:#x}"
        );
        for queue in (0..16).filter(|q| queues & 1 << q != 0) {
            stage(format_args!("core {core} queue {queue}"));
            let mut canvas = Canvas::paint(
                device,
                "device",
                device.device_of(core, 512 << 10)?,
                context.pattern(u64::from(core)),
            )?;
            let data = context
                .pattern(100 + u64::try_from(queue)?)
                .bytes(0, 300_001);
            ioctl::zero_copy(
                device.file(),
                request,
                canvas.chunk.handle,
                77,
                User::Write(&data),
                0,
                queue,
            )?;
            canvas.expect(77, &data)?;
            canvas
                .check()
                .with_context(|| format!("core {core} queue {queue}"))?;
            canvas.free()?;
        }
        let mut give = abi::H2tDmaFreeQueues {
            sz: u16::try_from(size_of::<abi::H2tDmaFreeQueues>())?,
            nc_id: u8::try_from(core)?,
            fill0: 0,
            queue_bmap: queues,
        };
        ioctl::plain(device.file(), abi::H2T_DMA_FREE_QUEUES, &mut give)?;
        let chunk = device.device_of(core, 4096)?;
        let gone = i32::try_from(queues.trailing_zeros())?;
        let answer = ioctl::zero_copy(
            device.file(),
            request,
            chunk.handle,
            0,
            User::Write(&[1; 64]),
            0,
            gone,
        );
        ensure!(
            answer.is_err(),
            "queue {gone} still copies after it was freed"
        );
        device.free(chunk)?;
    }
    Ok(Outcome::Pass)
}
