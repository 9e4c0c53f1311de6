// SPDX-License-Identifier: GPL-2.0
/*
 * The ring cursors: a producer and a completion counter that chase each other
 * modulo a power of two, a two-bit phase that changes on every lap, and a gap
 * of 16 descriptors that is never filled. There is no completion ring: the
 * counter only moves when software saw a marker and acknowledges.
 */
#include <linux/module.h>

#include "neuron_test.h"

/* Faults on purpose, which a device in order forgives and --adversary does not. */
static bool no_write_barrier;
module_param(no_write_barrier, bool, 0444);
MODULE_PARM_DESC(no_write_barrier, "a fault: let the marker pass the data (docs/adversary.md)");

static bool no_strong_order;
module_param(no_strong_order, bool, 0444);
MODULE_PARM_DESC(no_strong_order, "a fault: let the zero-copy marker pass the data (docs/adversary.md)");

/* What the hardware takes as a ring: prefetch works in 256-byte lines. */
int nt_ring_check(u64 address, u32 size)
{
	if (size < NP_RING_MIN || size > NP_RING_MAX || size % NP_RING_STEP)
		return -EINVAL;
	if (address % NP_RING_ALIGN)
		return -EINVAL;
	return 0;
}

void nt_ring_init(struct nt_ring *ring, struct np_desc *desc, u64 address, u32 size)
{
	ring->desc = desc;
	ring->address = address;
	ring->size = size;
	ring->mask = size - 1;
	ring->next_desc = 0;
	atomic_set(&ring->next_cdesc, 0);
	ring->ring_id = NP_RING_ID_INITIAL;
}

u32 nt_ring_available(const struct nt_ring *ring)
{
	return ((u32)atomic_read_acquire(&ring->next_cdesc) - (ring->next_desc + NP_RING_GUARD)) &
	       ring->mask;
}

/*
 * Gives slots back. Without lock, since a process may acknowledge its queue
 * from several threads. Rings of other sizes than powers of two have no
 * cursors: they are authored whole.
 */
int nt_ring_ack(struct nt_ring *ring, u32 count)
{
	int old;

	if (!is_power_of_2(ring->size) || count > ring->size)
		return -EINVAL;
	old = atomic_read(&ring->next_cdesc);
	while (!atomic_try_cmpxchg(&ring->next_cdesc, &old, (old + count) & ring->mask))
		cpu_relax();
	return 0;
}

/* Phase of the descriptor just taken; the next lap gets the next one. */
static u32 nt_ring_next(struct nt_ring *ring, u32 *phase)
{
	u32 index = ring->next_desc;

	*phase = ring->ring_id;
	ring->next_desc = (index + 1) & ring->mask;
	if (!ring->next_desc)
		ring->ring_id = (ring->ring_id + 1) & NP_RING_ID_MASK;
	return index;
}

/* Writes one tx/rx pair. The caller rings later. */
int nt_ring_stage(struct nt_queue *queue, u64 src, u64 dst, u32 bytes, enum nt_barrier barrier)
{
	u32 phase, length = bytes & NP_LEN_LENGTH, len_ctrl, meta = NP_META_COPY;
	struct np_desc *desc;

	/* Length 0 is how 64 KiB are written. */
	if (!bytes || bytes > NP_MAX_DESC_LENGTH)
		return -EINVAL;
	if (!nt_ring_available(&queue->tx) || !nt_ring_available(&queue->rx))
		return -ENOSPC;

	desc = &queue->rx.desc[nt_ring_next(&queue->rx, &phase)];
	len_ctrl = length | phase << NP_LEN_RING_ID_SHIFT;
	if (barrier == NT_BARRIER_SOW && !no_strong_order)
		len_ctrl |= NP_LEN_STRONG_ORDER;
	desc->len_ctrl = cpu_to_le32(len_ctrl);
	desc->meta_ctrl = 0;
	desc->address = cpu_to_le64(dst);

	desc = &queue->tx.desc[nt_ring_next(&queue->tx, &phase)];
	if (barrier == NT_BARRIER_WRITE && !no_write_barrier)
		meta |= NP_META_WRITE_BARRIER;
	desc->len_ctrl = cpu_to_le32(length | phase << NP_LEN_RING_ID_SHIFT | NP_LEN_FIRST | NP_LEN_LAST);
	desc->meta_ctrl = cpu_to_le32(meta);
	desc->address = cpu_to_le64(src);
	return 0;
}

/*
 * The doorbell. Irrevocable: whatever is in the ring is executed, so every
 * byte of it must be visible first.
 */
int nt_ring_doorbell(struct nt_engine *engine, u32 qid, bool rx, u32 count)
{
	struct nt_ring *ring = rx ? &engine->queue[qid].rx : &engine->queue[qid].tx;

	if (!count || count > ring->size)
		return -EINVAL;
	mb();
	writel(count, nt_queue_regs(engine, qid, rx) + NP_Q_DRTP_INC);
	return 0;
}

/*
 * The trigger: the receiving ring is armed before the first byte can come. No
 * transmit count arms it ahead of a later start.
 */
int nt_ring_start(struct nt_engine *engine, u32 qid, u32 tx_count, u32 rx_count)
{
	struct nt_queue *queue = &engine->queue[qid];
	int ret;

	if (!rx_count || rx_count > queue->rx.size || tx_count > queue->tx.size)
		return -EINVAL;
	ret = nt_ring_doorbell(engine, qid, true, rx_count);
	if (!ret && tx_count)
		ret = nt_ring_doorbell(engine, qid, false, tx_count);
	return ret;
}
