// SPDX-License-Identifier: GPL-2.0
/*
 * The cycle over a driver ring: stage a batch and its marker, trigger, poll the
 * marker, re-arm it, acknowledge. Synchronous copies wait for each batch;
 * asynchronous ones stage the next batch before they wait for the last, in two
 * contexts that alternate.
 */
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "neuron_test.h"

/*
 * Drivers up to 2.25 stretch budgets by 10 000 on the qemu platform, later ones
 * by 100 000 as on the emulator. A lost marker is then a wait of minutes or
 * hours, in either case.
 */
static bool common_scaling;
module_param(common_scaling, bool, 0644);
MODULE_PARM_DESC(common_scaling, "stretch budgets on the qemu platform as drivers from 2.27 on do");

/*
 * The cut is in every driver's wait but no ioctl of a shipped one reaches it,
 * and 0.2 ms is less than an emulated guest needs for a round trip: off.
 */
static bool d2d_cut;
module_param(d2d_cut, bool, 0644);
MODULE_PARM_DESC(d2d_cut, "give synchronous device-to-device copies the budget divided by 200");

static void nt_delay(u64 us)
{
	while (us > 1000) {
		mdelay(1);
		us -= 1000;
		cond_resched();
	}
	udelay((unsigned long)us);
}

static void nt_budget(const struct nt_dev *nd, u32 count, bool async, bool d2d, u64 *first, u64 *polls)
{
	const struct np_generation *gen = nd->gen;
	u64 expected = (u64)gen->budget_us_per_descriptor * (count - 1);
	u64 budget;

	*first = async ? NP_BUDGET_ASYNC_FIRST : expected - gen->budget_early_us;
	budget = (expected * gen->budget_estimates - *first) * NP_BUDGET_STRETCH;
	if (nd->platform == NT_EMULATOR)
		budget *= NP_BUDGET_EMULATOR;
	else if (nd->platform == NT_QEMU)
		budget *= common_scaling ? NP_BUDGET_QEMU_COMMON : NP_BUDGET_QEMU_SPLIT;
	if (d2d && !async && d2d_cut) {
		*first = NP_BUDGET_D2D_FIRST;
		budget /= NP_BUDGET_D2D_CUT;
	}
	*polls = budget / NP_BUDGET_POLL_US + 1;
}

/* How long a batch of @count may take that has as much as a ring holds of other copies in front of it. */
u64 nt_budget_us(const struct nt_dev *nd, u32 count)
{
	u64 first, polls;

	nt_budget(nd, count + 2 * (NP_BATCH_DATA + 1), true, false, &first, &polls);
	return first + polls * NP_BUDGET_POLL_US;
}

static void nt_arm(struct nt_context *ctx)
{
	WRITE_ONCE(ctx->marker[NP_MARKER_SOURCE / 4], NP_MARKER);
	WRITE_ONCE(ctx->marker[NP_MARKER_POLL / 4], 0);
}

/* The last pair of a batch: copies the marker word beside itself. */
int nt_stage_marker(struct nt_h2t *h2t, struct nt_context *ctx, enum nt_barrier barrier)
{
	struct nt_ring *rx = &h2t->queue->rx;
	int ret;

	nt_arm(ctx);
	ret = nt_ring_stage(h2t->queue, ctx->marker_address + NP_MARKER_SOURCE,
			    ctx->marker_address + NP_MARKER_POLL, NP_MARKER_SIZE, barrier);
	/* Nothing waits for the interrupt: it is only counted. */
	if (!ret && h2t->engine == h2t->nd->irq_engine)
		rx->desc[(rx->next_desc - 1) & rx->mask].len_ctrl |= cpu_to_le32(NP_LEN_INTERRUPT);
	return ret;
}

/*
 * nt_wait_marker - poll for the end of what @ctx started
 *
 * Returns 0 with the slots acknowledged, or an error with the ring reset and
 * nothing of it in flight any more.
 */
int nt_wait_marker(struct nt_h2t *h2t, struct nt_context *ctx, bool async)
{
	struct nt_dev *nd = h2t->nd;
	u64 first, polls, i;
	int ret = -ETIMEDOUT;

	if (ctx->lost) {
		ctx->lost = false;
		return -EIO;
	}
	/* Copies that go on by themselves may be in front. */
	nt_budget(nd, ctx->count + ctx->ahead, async, ctx->d2d, &first, &polls);
	nt_delay(first);
	for (i = 0; i <= polls; i++) {
		if (READ_ONCE(ctx->marker[NP_MARKER_POLL / 4]) == NP_MARKER) {
			/* Nothing read after this may be older than the marker. */
			dma_rmb();
			nt_arm(ctx);
			nt_ring_ack(&h2t->queue->rx, ctx->count);
			nt_ring_ack(&h2t->queue->tx, ctx->count);
			return 0;
		}
		udelay(NP_BUDGET_POLL_US);
		if (i % 256)
			continue;
		/* Stretched budgets are long: stay killable and removable. */
		cond_resched();
		if (READ_ONCE(nd->dying)) {
			ret = -ENODEV;
			break;
		}
		if (fatal_signal_pending(current) && !(current->flags & PF_EXITING)) {
			ret = -EINTR;
			break;
		}
	}
	if (ret == -ETIMEDOUT)
		dev_err(&nd->dev, "no marker after %llu polls: engine %u queue %u, %u descriptors\n",
			polls, h2t->engine->index, h2t->qid, ctx->count);
	nt_h2t_reset(h2t);
	ctx->lost = false;
	return ret;
}

/*
 * Stages up to a batch of data descriptors and its marker, and triggers. The
 * last data descriptor carries the write barrier: the marker must not be seen
 * before the data. Advances the cursors it is given.
 */
static int nt_batch(struct nt_h2t *h2t, struct nt_context *ctx, u64 *src, u64 *dst, u64 *size, bool move_source)
{
	u32 pending = 0;
	int ret = 0;

	while (*size && pending < NP_BATCH_DATA && !ret) {
		u32 bytes = min_t(u64, *size, NP_MAX_DESC_LENGTH);
		bool last = bytes == *size || pending + 1 == NP_BATCH_DATA;

		ret = nt_ring_stage(h2t->queue, *src, *dst, bytes, last ? NT_BARRIER_WRITE : NT_BARRIER_NONE);
		*size -= bytes;
		*dst += bytes;
		if (move_source)
			*src += bytes;
		pending++;
	}
	if (!ret)
		ret = nt_stage_marker(h2t, ctx, NT_BARRIER_NONE);
	ctx->count = pending + 1;
	ctx->ahead = h2t->async.descriptors;
	if (!ret)
		ret = nt_ring_start(h2t->engine, h2t->qid, ctx->count, ctx->count);
	if (ret)
		/* Half a batch is staged: the cursors no longer match the device. */
		nt_h2t_reset(h2t);
	return ret;
}

static int nt_copy_on(struct nt_h2t *h2t, u64 src, u64 dst, u64 size, bool move_source, bool d2d)
{
	struct nt_context *ctx = &h2t->context[NT_CTX_SYNC];
	int ret = 0;

	mutex_lock(&h2t->lock);
	ctx->d2d = d2d;
	while (size && !ret) {
		ret = nt_batch(h2t, ctx, &src, &dst, &size, move_source);
		if (!ret)
			ret = nt_wait_marker(h2t, ctx, false);
	}
	mutex_unlock(&h2t->lock);
	return ret;
}

/* nt_copy - copy between addresses as descriptors take them, and wait */
int nt_copy(struct nt_dev *nd, u32 core, u64 src, u64 dst, u64 size, bool d2d)
{
	return nt_copy_on(&nd->h2t[core], src, dst, size, true, d2d);
}

int nt_copy_chunks(struct nt_dev *nd, struct nt_chunk *src, struct nt_chunk *dst, u64 src_offset,
		   u64 dst_offset, u64 size)
{
	return nt_copy(nd, nt_pair_core(src, dst), src->address + src_offset, dst->address + dst_offset,
		       size, !src->host && !dst->host);
}

/*
 * nt_memset - fill by DMA: one block from the host, the rest from that block
 *
 * The source stays put while the destination moves, so later descriptors read
 * what earlier ones of the same batch wrote: only right if a queue works in
 * order.
 */
int nt_memset(struct nt_dev *nd, struct nt_chunk *chunk, u64 offset, u32 value, u64 size)
{
	u64 block = min_t(u64, size, nd->memset_chunk->size);
	u64 to = chunk->address + offset;
	int ret;

	if (mutex_lock_killable(&nd->memset_lock))
		return -EINTR;
	memset(nd->memset_chunk->va, value, block);
	ret = nt_copy(nd, chunk->core, nd->memset_chunk->address, to, block, false);
	if (!ret && size > block)
		ret = nt_copy_on(&nd->h2t[chunk->core], to, to + block, size - block, false, !chunk->host);
	mutex_unlock(&nd->memset_lock);
	return ret;
}

void nt_context_finish(struct nt_context *ctx, struct nt_chunk *put[2])
{
	put[0] = ctx->src;
	put[1] = ctx->dst;
	ctx->src = NULL;
	ctx->dst = NULL;
	ctx->owner = NULL;
	ctx->in_use = false;
	ctx->lost = false;
}

/* The asynchronous context of @handle, if @file has a transfer in it. */
static struct nt_context *nt_context_of(struct nt_h2t *h2t, struct nt_file *file, u32 handle)
{
	struct nt_context *ctx;

	if (handle != NT_CTX_ASYNC1 && handle != NT_CTX_ASYNC2)
		return NULL;
	ctx = &h2t->context[handle];
	return ctx->in_use && ctx->owner == file ? ctx : NULL;
}

/*
 * nt_copy_async - start a copy, then wait for the one before it
 *
 * At most one batch. @previous names the context of the copy before, or none;
 * @handle receives that of this one.
 */
int nt_copy_async(struct nt_file *file, struct nt_chunk *src, struct nt_chunk *dst, u64 src_offset,
		  u64 dst_offset, u64 size, u32 previous, u32 *handle)
{
	struct nt_dev *nd = file->nd;
	struct nt_h2t *h2t = &nd->h2t[nt_pair_core(src, dst)];
	struct nt_chunk *put[2] = {};
	struct nt_context *ctx, *before = NULL;
	u64 from = src->address + src_offset, to = dst->address + dst_offset;
	int ret;

	if (previous == NT_CTX_SYNC) {
		*handle = NT_CTX_SYNC;
		return nt_copy_chunks(nd, src, dst, src_offset, dst_offset, size);
	}
	if (size > (u64)NP_BATCH_DATA * NP_MAX_DESC_LENGTH)
		return -EINVAL;

	mutex_lock(&h2t->lock);
	ret = -EINVAL;
	if (previous != NP_CTX_NONE) {
		before = nt_context_of(h2t, file, previous);
		if (!before)
			goto unlock;
	}
	*handle = previous == NT_CTX_ASYNC1 ? NT_CTX_ASYNC2 : NT_CTX_ASYNC1;
	ctx = &h2t->context[*handle];
	ret = -EBUSY;
	if (ctx->in_use)
		goto unlock;
	ctx->d2d = !src->host && !dst->host;
	ret = nt_batch(h2t, ctx, &from, &to, &size, true);
	if (ret)
		goto unlock;
	kref_get(&src->ref);
	kref_get(&dst->ref);
	ctx->src = src;
	ctx->dst = dst;
	ctx->owner = file;
	ctx->in_use = true;
	if (before) {
		ret = nt_wait_marker(h2t, before, true);
		nt_context_finish(before, put);
	}
unlock:
	mutex_unlock(&h2t->lock);
	nt_chunk_put_pair(put);
	return ret;
}

int nt_copy_async_wait(struct nt_file *file, struct nt_chunk *src, struct nt_chunk *dst, u32 handle)
{
	struct nt_h2t *h2t = &file->nd->h2t[nt_pair_core(src, dst)];
	struct nt_chunk *put[2] = {};
	struct nt_context *ctx;
	int ret = -EINVAL;

	mutex_lock(&h2t->lock);
	ctx = nt_context_of(h2t, file, handle);
	if (ctx) {
		ret = nt_wait_marker(h2t, ctx, true);
		nt_context_finish(ctx, put);
	}
	mutex_unlock(&h2t->lock);
	nt_chunk_put_pair(put);
	return ret;
}

/* A file that goes away leaves nothing in flight. */
void nt_copy_async_drain(struct nt_file *file)
{
	struct nt_dev *nd = file->nd;
	u32 core, i;

	for (core = 0; nd->h2t && core < nd->gen->cores; core++) {
		struct nt_h2t *h2t = &nd->h2t[core];

		for (i = NT_CTX_ASYNC1; i <= NT_CTX_ASYNC2; i++) {
			struct nt_chunk *put[2] = {};
			struct nt_context *ctx;

			mutex_lock(&h2t->lock);
			ctx = nt_context_of(h2t, file, i);
			if (ctx) {
				if (!nd->gone)
					nt_wait_marker(h2t, ctx, true);
				nt_context_finish(ctx, put);
			}
			mutex_unlock(&h2t->lock);
			nt_chunk_put_pair(put);
		}
	}
}
