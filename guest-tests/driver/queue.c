// SPDX-License-Identifier: GPL-2.0
/*
 * User queues: a process authors descriptors, the driver owns the doorbell. What
 * would crash a guest under the real driver (counts of zero, queues that have
 * no ring, sizes without cursors, numbers out of range) is refused here.
 */
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "neuron_test.h"

#define NT_DUMMY_RING 64

static struct nt_engine *nt_engine(struct nt_dev *nd, u32 index)
{
	return index < nd->gen->engines ? &nd->engines[index] : NULL;
}

static struct nt_engine *nt_engine_of_queue(struct nt_dev *nd, u32 index, u32 qid)
{
	return qid < NP_QUEUES_PER_ENGINE ? nt_engine(nd, index) : NULL;
}

/* Empties a queue's software side. The caller puts the chunks after it let go of the engine. */
void nt_queue_drop(struct nt_queue *queue, struct nt_chunk *put[2])
{
	put[0] = queue->tx_chunk;
	put[1] = queue->rx_chunk;
	memset(queue, 0, sizeof(*queue));
}

/* A chunk that can be a ring of @count descriptors, or NULL for no ring. */
static struct nt_chunk *nt_ring_chunk(struct nt_dev *nd, u64 handle, u32 count)
{
	struct nt_chunk *chunk;

	if (!handle)
		return NULL;
	chunk = nt_chunk_get(nd, handle);
	if (!chunk)
		return ERR_PTR(-EINVAL);
	/* The device would fetch beyond the chunk. */
	if (nt_ring_check(chunk->address, count) || !nt_chunk_holds(chunk, 0, (u64)count * NP_DESC_SIZE)) {
		nt_chunk_put(chunk);
		return ERR_PTR(-EINVAL);
	}
	return chunk;
}

static int nt_queue_init(struct nt_file *file, const struct np_dma_queue_init *arg)
{
	struct nt_dev *nd = file->nd;
	struct nt_engine *engine = nt_engine_of_queue(nd, arg->eng_id, arg->qid);
	struct nt_chunk *tx, *rx, *put[2] = {};
	struct nt_queue *queue;
	int ret = 0;

	if (!engine || arg->rxc_handle || arg->axi_port || (!arg->tx_handle && !arg->rx_handle))
		return -EINVAL;
	tx = nt_ring_chunk(nd, arg->tx_handle, arg->tx_desc_count);
	if (IS_ERR(tx))
		return PTR_ERR(tx);
	rx = nt_ring_chunk(nd, arg->rx_handle, arg->rx_desc_count);
	if (IS_ERR(rx)) {
		if (tx)
			nt_chunk_put(tx);
		return PTR_ERR(rx);
	}

	mutex_lock(&engine->lock);
	queue = &engine->queue[arg->qid];
	if (queue->h2t)
		ret = -EALREADY;
	else if (queue->owner && queue->owner != file)
		ret = -EBUSY;
	if (ret) {
		put[0] = tx;
		put[1] = rx;
		goto unlock;
	}
	nt_queue_drop(queue, put);
	queue->owner = file;
	queue->tx_chunk = tx;
	queue->rx_chunk = rx;
	if (tx)
		nt_ring_init(&queue->tx, tx->va, tx->address, arg->tx_desc_count);
	if (rx)
		nt_ring_init(&queue->rx, rx->va, rx->address, arg->rx_desc_count);
	nt_queue_program(engine, arg->qid);
unlock:
	mutex_unlock(&engine->lock);
	nt_chunk_put_pair(put);
	return ret;
}

static int nt_queue_init_batch(struct nt_file *file, void __user *user)
{
	struct np_dma_queue_init_batch *arg = memdup_user(user, sizeof(*arg));
	int ret = 0;
	u32 i;

	if (IS_ERR(arg))
		return PTR_ERR(arg);
	if (arg->count >= ARRAY_SIZE(arg->entries))
		ret = -E2BIG;
	for (i = 0; !ret && i < arg->count; i++)
		ret = nt_queue_init(file, &arg->entries[i]);
	kfree(arg);
	return ret;
}

/* Onto the dummy ring, so that a late doorbell finds memory that stays. */
void nt_queue_retire(struct nt_engine *engine, u32 qid, struct nt_chunk *put[2])
{
	struct nt_dev *nd = engine->nd;
	struct nt_queue *queue = &engine->queue[qid];

	nt_queue_drop(queue, put);
	if (nd->gone)
		return;
	nt_ring_init(&queue->tx, nd->dummy_ring->va, nd->dummy_ring->address, NT_DUMMY_RING);
	nt_ring_init(&queue->rx, nd->dummy_ring->va, nd->dummy_ring->address, NT_DUMMY_RING);
	nt_queue_program(engine, qid);
	/* The device has let go of the old ring before its memory goes. */
	readl(nt_queue_regs(engine, qid, true) + NP_Q_DRTP);
	memset(queue, 0, sizeof(*queue));
}

void nt_queue_release_owned(struct nt_file *file)
{
	struct nt_dev *nd = file->nd;
	u32 i, q;

	for (i = 0; nd->engines && i < nd->gen->engines; i++) {
		struct nt_engine *engine = &nd->engines[i];

		for (q = 0; q < NP_QUEUES_PER_ENGINE; q++) {
			struct nt_chunk *put[2] = {};

			mutex_lock(&engine->lock);
			if (engine->queue[q].owner == file)
				nt_queue_retire(engine, q, put);
			mutex_unlock(&engine->lock);
			nt_chunk_put_pair(put);
		}
	}
}

/* Locks the engine of a queue that @file set up. */
static struct nt_queue *nt_queue_lock(struct nt_file *file, u32 eng_id, u32 qid, struct nt_engine **engine)
{
	struct nt_queue *queue;

	*engine = nt_engine_of_queue(file->nd, eng_id, qid);
	if (!*engine)
		return ERR_PTR(-EINVAL);
	mutex_lock(&(*engine)->lock);
	queue = &(*engine)->queue[qid];
	if (queue->owner == file && queue->programmed)
		return queue;
	mutex_unlock(&(*engine)->lock);
	return ERR_PTR(-EINVAL);
}

static int nt_queue_copy_start(struct nt_file *file, const struct np_dma_queue_copy_start *arg)
{
	struct nt_engine *engine;
	struct nt_queue *queue = nt_queue_lock(file, arg->eng_id, arg->qid, &engine);
	int ret;

	if (IS_ERR(queue))
		return PTR_ERR(queue);
	/* A missing ring has size 0 and takes no count. */
	ret = nt_ring_start(engine, arg->qid, arg->tx_desc_count, arg->rx_desc_count);
	mutex_unlock(&engine->lock);
	return ret;
}

static int nt_queue_ack(struct nt_file *file, const struct np_dma_ack_completed *arg)
{
	struct nt_engine *engine;
	struct nt_queue *queue = nt_queue_lock(file, arg->eng_id, arg->qid, &engine);
	int ret;

	if (IS_ERR(queue))
		return PTR_ERR(queue);
	ret = nt_ring_ack(&queue->rx, arg->count);
	if (!ret && queue->tx.size)
		ret = nt_ring_ack(&queue->tx, arg->count);
	mutex_unlock(&engine->lock);
	return ret;
}

static int nt_queue_get_state(struct nt_dev *nd, const struct np_dma_queue_get_state *arg)
{
	struct nt_engine *engine = nt_engine_of_queue(nd, arg->eng_id, arg->qid);
	struct np_dma_queue_state tx, rx;

	if (!engine)
		return -EINVAL;
	mutex_lock(&engine->lock);
	nt_queue_read_state(engine, arg->qid, false, &tx);
	nt_queue_read_state(engine, arg->qid, true, &rx);
	mutex_unlock(&engine->lock);
	if (copy_to_user(u64_to_user_ptr(arg->tx), &tx, sizeof(tx)) ||
	    copy_to_user(u64_to_user_ptr(arg->rx), &rx, sizeof(rx)))
		return -EFAULT;
	return 0;
}

/* A descriptor may name guest RAM only inside a chunk that user space holds. */
static int nt_check_descriptor(struct nt_dev *nd, const struct np_desc *desc)
{
	u32 len_ctrl = le32_to_cpu(desc->len_ctrl);
	u64 address = le64_to_cpu(desc->address);
	u32 bytes = len_ctrl & NP_LEN_LENGTH;
	struct nt_chunk *chunk;

	if (!nt_is_host_address(nd, address))
		return 0;
	chunk = nt_chunk_find_host(nd, address, bytes ? bytes : NP_MAX_DESC_LENGTH);
	if (!chunk)
		return -EINVAL;
	nt_chunk_put(chunk);
	return 0;
}

static int nt_copy_descriptors(struct nt_file *file, u64 handle, u64 buffer, u32 count, u64 offset, u32 type)
{
	struct nt_dev *nd = file->nd;
	u64 left = (u64)count * NP_DESC_SIZE, done = 0;
	struct nt_chunk *ring, *bounce;
	int ret = -EINVAL;

	if (type != NP_QUEUE_TYPE_TX && type != NP_QUEUE_TYPE_RX)
		return -EINVAL;
	ring = nt_chunk_get(nd, handle);
	if (!ring)
		return -EINVAL;
	if (!nt_chunk_holds(ring, offset, left))
		goto put;

	mutex_lock(&file->lock);
	bounce = nt_bounce(file);
	ret = PTR_ERR_OR_ZERO(bounce);
	while (left && !ret) {
		u64 bytes = min_t(u64, left, bounce->size);
		u32 i;

		if (copy_from_user(bounce->va, u64_to_user_ptr(buffer + done), bytes)) {
			ret = -EFAULT;
			break;
		}
		for (i = 0; i < bytes / NP_DESC_SIZE && !ret; i++)
			ret = nt_check_descriptor(nd, (struct np_desc *)bounce->va + i);
		if (ret)
			break;
		if (ring->host)
			memcpy(ring->va + offset + done, bounce->va, bytes);
		else
			ret = nt_copy_chunks(nd, bounce, ring, 0, offset + done, bytes);
		left -= bytes;
		done += bytes;
	}
	mutex_unlock(&file->lock);
put:
	nt_chunk_put(ring);
	return ret;
}

static int nt_descriptor_copyout(struct nt_file *file, const struct np_dma_descriptor_copyout *arg)
{
	struct nt_dev *nd = file->nd;
	struct nt_engine *engine;
	struct nt_queue *queue;
	struct nt_chunk *ring, *bounce;
	u64 offset = (u64)arg->start_index * NP_DESC_SIZE, left = (u64)arg->count * NP_DESC_SIZE, done = 0;
	u32 size;
	int ret;

	if (!arg->count || (arg->queue_type != NP_QUEUE_TYPE_TX && arg->queue_type != NP_QUEUE_TYPE_RX))
		return -EINVAL;
	queue = nt_queue_lock(file, arg->eng_id, arg->qid, &engine);
	if (IS_ERR(queue))
		return PTR_ERR(queue);
	ring = arg->queue_type == NP_QUEUE_TYPE_TX ? queue->tx_chunk : queue->rx_chunk;
	size = arg->queue_type == NP_QUEUE_TYPE_TX ? queue->tx.size : queue->rx.size;
	if (ring)
		kref_get(&ring->ref);
	mutex_unlock(&engine->lock);
	if (!ring)
		return -EINVAL;
	ret = -EFBIG;
	if ((u64)arg->start_index + arg->count > size)
		goto put;

	mutex_lock(&file->lock);
	bounce = nt_bounce(file);
	ret = PTR_ERR_OR_ZERO(bounce);
	while (left && !ret) {
		u64 bytes = min_t(u64, left, bounce->size);
		void *from = bounce->va;

		if (ring->host)
			from = ring->va + offset + done;
		else
			ret = nt_copy_chunks(nd, ring, bounce, offset + done, 0, bytes);
		if (!ret && copy_to_user(u64_to_user_ptr(arg->buffer + done), from, bytes))
			ret = -EFAULT;
		left -= bytes;
		done += bytes;
	}
	mutex_unlock(&file->lock);
put:
	nt_chunk_put(ring);
	return ret;
}

static int nt_engine_state(struct nt_dev *nd, unsigned int cmd, u32 index, u32 state, u64 user)
{
	struct nt_engine *engine = nt_engine(nd, index);
	struct np_dma_eng_state result;
	int ret = 0;

	if (!engine)
		return -EINVAL;
	mutex_lock(&engine->lock);
	if (cmd == NP_IOCTL_DMA_ENG_SET_STATE)
		ret = nt_engine_set_state(engine, state);
	else
		nt_engine_get_state(engine, &result);
	mutex_unlock(&engine->lock);
	if (cmd == NP_IOCTL_DMA_ENG_GET_STATE && copy_to_user(u64_to_user_ptr(user), &result, sizeof(result)))
		ret = -EFAULT;
	return ret;
}

/* nt_ioctl_queue - requests on engines and queues; -ENOIOCTLCMD for others */
long nt_ioctl_queue(struct nt_file *file, unsigned int cmd, void __user *user)
{
	struct nt_dev *nd = file->nd;
	union {
		struct np_dma_eng_set_state set_state;
		struct np_dma_eng_get_state get_state;
		struct np_dma_queue_init init;
		struct np_dma_queue_copy_start start;
		struct np_dma_ack_completed ack;
		struct np_dma_queue_get_state state;
		struct np_dma_queue_release release;
		struct np_dma_copy_descriptors copy;
		struct np_dma_copy_descriptors64 copy64;
		struct np_dma_descriptor_copyout copyout;
	} arg;
	size_t size;

	switch (cmd) {
	case NP_IOCTL_DMA_ENG_INIT:
		return 0;
	case NP_IOCTL_DMA_QUEUE_INIT_BATCH:
		return nt_queue_init_batch(file, user);
	case NP_IOCTL_H2T_DMA_ALLOC_QUEUES:
		return nt_h2t_alloc_queues(file, user);
	case NP_IOCTL_H2T_DMA_FREE_QUEUES:
		return nt_h2t_free_queues(file, user);
	case NP_IOCTL_DMA_ENG_SET_STATE:
		size = sizeof(arg.set_state);
		break;
	case NP_IOCTL_DMA_ENG_GET_STATE:
		size = sizeof(arg.get_state);
		break;
	case NP_IOCTL_DMA_QUEUE_INIT:
		size = sizeof(arg.init);
		break;
	case NP_IOCTL_DMA_QUEUE_COPY_START:
		size = sizeof(arg.start);
		break;
	case NP_IOCTL_DMA_ACK_COMPLETED:
		size = sizeof(arg.ack);
		break;
	case NP_IOCTL_DMA_QUEUE_GET_STATE:
		size = sizeof(arg.state);
		break;
	case NP_IOCTL_DMA_QUEUE_RELEASE:
		size = sizeof(arg.release);
		break;
	case NP_IOCTL_DMA_COPY_DESCRIPTORS:
		size = sizeof(arg.copy);
		break;
	case NP_IOCTL_DMA_COPY_DESCRIPTORS64:
		size = sizeof(arg.copy64);
		break;
	case NP_IOCTL_DMA_DESCRIPTOR_COPYOUT:
		size = sizeof(arg.copyout);
		break;
	default:
		return -ENOIOCTLCMD;
	}
	if (copy_from_user(&arg, user, size))
		return -EFAULT;

	switch (cmd) {
	case NP_IOCTL_DMA_ENG_SET_STATE:
		return nt_engine_state(nd, cmd, arg.set_state.eng_id, arg.set_state.state, 0);
	case NP_IOCTL_DMA_ENG_GET_STATE:
		return nt_engine_state(nd, cmd, arg.get_state.eng_id, 0, arg.get_state.state);
	case NP_IOCTL_DMA_QUEUE_INIT:
		return nt_queue_init(file, &arg.init);
	case NP_IOCTL_DMA_QUEUE_COPY_START:
		return nt_queue_copy_start(file, &arg.start);
	case NP_IOCTL_DMA_ACK_COMPLETED:
		return nt_queue_ack(file, &arg.ack);
	case NP_IOCTL_DMA_QUEUE_GET_STATE:
		return nt_queue_get_state(nd, &arg.state);
	case NP_IOCTL_DMA_QUEUE_RELEASE:
		/* Like the real driver: rings stay until the process closes. */
		return nt_engine_of_queue(nd, arg.release.eng_id, arg.release.qid) ? 0 : -EINVAL;
	case NP_IOCTL_DMA_COPY_DESCRIPTORS:
		return nt_copy_descriptors(file, arg.copy.mem_handle, arg.copy.buffer, arg.copy.num_descs,
					   arg.copy.offset, arg.copy.queue_type);
	case NP_IOCTL_DMA_COPY_DESCRIPTORS64:
		return nt_copy_descriptors(file, arg.copy64.mem_handle, arg.copy64.buffer, arg.copy64.num_descs,
					   arg.copy64.offset, arg.copy64.queue_type);
	default:
		return nt_descriptor_copyout(file, &arg.copyout);
	}
}
