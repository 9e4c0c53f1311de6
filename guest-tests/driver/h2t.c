// SPDX-License-Identifier: GPL-2.0
/*
 * The driver's own rings: one per core that its copies go through, and the
 * extra ones that a process may ask for. They share the top engines, one for
 * one or two cores.
 */
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "neuron_test.h"

/*
 * Brings a driver ring back to power-on. Whatever was in flight is dropped by
 * the device before the register read returns, so that no late write can reach
 * memory that is given back. Caller holds the ring's lock, or nobody else can.
 */
void nt_h2t_reset(struct nt_h2t *h2t)
{
	struct nt_queue *queue = h2t->queue;
	struct nt_chunk *tx = queue->tx_chunk, *rx = queue->rx_chunk;
	u32 i;

	mutex_lock(&h2t->engine->lock);
	nt_ring_init(&queue->tx, tx->va, tx->address, NP_H2T_ALLOCATED);
	nt_ring_init(&queue->rx, rx->va, rx->address, NP_H2T_ALLOCATED);
	nt_queue_program(h2t->engine, h2t->qid);
	readl(nt_queue_regs(h2t->engine, h2t->qid, true) + NP_Q_DRTP);
	mutex_unlock(&h2t->engine->lock);

	for (i = 0; i < NT_CTX_COUNT; i++)
		h2t->context[i].lost = h2t->context[i].in_use;
	for (i = 0; i < ARRAY_SIZE(h2t->window); i++)
		h2t->window[i].lost = h2t->window[i].in_use;
	nt_async_lose(h2t);
}

/* Takes queue @qid of the core's top engine, which is free. Undone by nt_h2t_cleanup(), also after a failure. */
static int nt_h2t_setup(struct nt_h2t *h2t, struct nt_dev *nd, u32 core, u32 qid)
{
	struct nt_chunk **chunks[] = { &h2t->queue->tx_chunk, &h2t->queue->rx_chunk, &h2t->markers,
				       &h2t->async.markers };
	u64 sizes[] = { NP_H2T_ALLOCATED * NP_DESC_SIZE, NP_H2T_ALLOCATED * NP_DESC_SIZE, PAGE_SIZE,
			NT_ASYNC_WINDOWS * NP_MARKER_SLOT };
	u32 i;

	for (i = 0; i < ARRAY_SIZE(chunks); i++) {
		struct nt_chunk *chunk = nt_chunk_alloc(nd, NULL, sizes[i], 0, true, 0, core);

		if (IS_ERR(chunk))
			return PTR_ERR(chunk);
		*chunks[i] = chunk;
	}
	h2t->completions = nt_chunk_alloc(nd, NULL, NT_COMPL_SIZE, 0, true, 0, core);
	if (IS_ERR(h2t->completions) || nt_chunk_publish(h2t->completions)) {
		if (!IS_ERR(h2t->completions))
			nt_chunk_put(h2t->completions);
		h2t->completions = NULL;
		return -ENOMEM;
	}
	/* The table has a reference, the ring another: freeing the handle does not pull it from under the worker. */
	kref_get(&h2t->completions->ref);
	((struct np_h2t_compl_queue *)h2t->completions->va)->capacity = NP_COMPL_QUEUE_CAPACITY;
	for (i = 0; i < NT_CTX_COUNT + ARRAY_SIZE(h2t->window); i++) {
		struct nt_context *ctx = i < NT_CTX_COUNT ? &h2t->context[i] : &h2t->window[i - NT_CTX_COUNT];

		ctx->marker = h2t->markers->va + NP_MARKER_SLOT * i;
		ctx->marker_address = h2t->markers->address + NP_MARKER_SLOT * i;
	}
	return 0;
}

static void nt_h2t_attach(struct nt_h2t *h2t, struct nt_dev *nd, struct nt_file *owner, u32 core, u32 qid)
{
	kref_init(&h2t->ref);
	mutex_init(&h2t->lock);
	nt_async_init(h2t);
	h2t->nd = nd;
	h2t->owner = owner;
	h2t->core = core;
	h2t->qid = qid;
	h2t->engine = nt_h2t_engine(nd, core);
	h2t->queue = &h2t->engine->queue[qid];
	h2t->queue->h2t = h2t;
}

static void nt_h2t_cleanup(struct nt_h2t *h2t)
{
	struct nt_chunk *put[2];
	u32 i;

	for (i = 0; i < NT_CTX_COUNT; i++) {
		nt_context_finish(&h2t->context[i], put);
		nt_chunk_put_pair(put);
	}
	if (h2t->markers)
		nt_chunk_put(h2t->markers);
	h2t->markers = NULL;
	if (h2t->async.markers)
		nt_chunk_put(h2t->async.markers);
	h2t->async.markers = NULL;
	if (h2t->completions) {
		struct nt_chunk *ring = h2t->completions;

		h2t->completions = NULL;
		if (xa_cmpxchg(&h2t->nd->handles, ring->handle, ring, NULL, 0) == ring)
			nt_chunk_put(ring);
		nt_chunk_put(ring);
	}
}

static void nt_h2t_release(struct kref *ref)
{
	kfree(container_of(ref, struct nt_h2t, ref));
}

void nt_h2t_put(struct nt_h2t *h2t)
{
	kref_put(&h2t->ref, nt_h2t_release);
}

struct nt_engine *nt_h2t_engine(struct nt_dev *nd, u32 core)
{
	return &nd->engines[nd->gen->first_h2t_engine + core / nd->gen->cores_per_h2t_engine];
}

/* The ring of a core that user space names, -1 for the core's own. With a reference. */
struct nt_h2t *nt_h2t_find(struct nt_dev *nd, u32 core, int qid)
{
	struct nt_engine *engine = nt_h2t_engine(nd, core);
	struct nt_h2t *h2t;

	if (qid == -1)
		qid = nd->h2t[core].qid;
	if (qid < 0 || qid >= NP_QUEUES_PER_ENGINE)
		return NULL;
	mutex_lock(&engine->lock);
	h2t = engine->queue[qid].h2t;
	if (h2t && h2t->core == core)
		kref_get(&h2t->ref);
	else
		h2t = NULL;
	mutex_unlock(&engine->lock);
	return h2t;
}

/* Gives an extra ring back, after the copy that may be running on it. */
static void nt_h2t_close(struct nt_h2t *h2t)
{
	struct nt_chunk *put[2];

	mutex_lock(&h2t->lock);
	h2t->closed = true;
	mutex_lock(&h2t->engine->lock);
	nt_queue_retire(h2t->engine, h2t->qid, put);
	mutex_unlock(&h2t->engine->lock);
	nt_async_lose(h2t);
	mutex_unlock(&h2t->lock);
	nt_async_stop(h2t);
	nt_chunk_put_pair(put);
	nt_h2t_cleanup(h2t);
	nt_h2t_put(h2t);
}

static int nt_h2t_extra(struct nt_file *file, u32 core, bool service, u32 *qid)
{
	struct nt_dev *nd = file->nd;
	struct nt_engine *engine = nt_h2t_engine(nd, core);
	struct nt_h2t *h2t = NULL;
	int ret = -ENOSPC;
	u32 q;

	if (!service) {
		h2t = kzalloc(sizeof(*h2t), GFP_KERNEL);
		if (!h2t)
			return -ENOMEM;
	}
	/* The queues of the cores themselves come first; they are never free. */
	mutex_lock(&engine->lock);
	for (q = nd->gen->cores_per_h2t_engine; q < NP_QUEUES_PER_ENGINE; q++) {
		if (engine->queue[q].h2t || engine->queue[q].owner)
			continue;
		if (service)
			engine->queue[q].owner = file;
		else
			nt_h2t_attach(h2t, nd, file, core, q);
		*qid = q;
		ret = 0;
		break;
	}
	mutex_unlock(&engine->lock);
	if (ret) {
		kfree(h2t);
		return ret;
	}
	if (service)
		return 0;

	/* Others find the ring only by a number that nobody was told yet. */
	mutex_lock(&h2t->lock);
	ret = nt_h2t_setup(h2t, nd, core, *qid);
	if (!ret)
		nt_h2t_reset(h2t);
	mutex_unlock(&h2t->lock);
	if (ret)
		nt_h2t_close(h2t);
	return ret;
}

/* Frees queue @qid if @file has it: an extra ring of @core, or a queue set aside. */
static int nt_h2t_free_one(struct nt_file *file, u32 core, u32 qid)
{
	struct nt_engine *engine = nt_h2t_engine(file->nd, core);
	struct nt_queue *queue = &engine->queue[qid];
	struct nt_chunk *put[2] = {};
	struct nt_h2t *h2t;
	int ret = -EINVAL;

	mutex_lock(&engine->lock);
	h2t = queue->h2t;
	if (h2t && h2t->core == core && h2t->owner == file) {
		/* Only the owner closes it, and this entry is one at a time. */
		ret = 0;
	} else {
		h2t = NULL;
		if (queue->owner == file) {
			nt_queue_retire(engine, qid, put);
			ret = 0;
		}
	}
	mutex_unlock(&engine->lock);
	nt_chunk_put_pair(put);
	if (h2t)
		nt_h2t_close(h2t);
	return ret;
}

int nt_h2t_alloc_queues(struct nt_file *file, void __user *user)
{
	struct nt_dev *nd = file->nd;
	struct np_h2t_dma_alloc_queues arg;
	u32 i, qid, total;
	int ret = 0;

	if (copy_from_user(&arg, user, sizeof(arg)))
		return -EFAULT;
	total = (u32)arg.copy_queue_cnt + arg.service_queue_cnt;
	if (arg.nc_id >= nd->gen->cores || total >= NP_QUEUES_PER_ENGINE)
		return -E2BIG;
	arg.copy_queue_bmap = 0;
	arg.service_queue_bmap = 0;
	arg.copy_default_queue = nd->h2t[arg.nc_id].qid;

	mutex_lock(&file->lock);
	for (i = 0; i < total && !ret; i++) {
		bool service = i >= arg.copy_queue_cnt;

		ret = nt_h2t_extra(file, arg.nc_id, service, &qid);
		if (ret)
			break;
		if (service)
			arg.service_queue_bmap |= BIT(qid);
		else
			arg.copy_queue_bmap |= BIT(qid);
	}
	if (!ret && copy_to_user(user, &arg, sizeof(arg)))
		ret = -EFAULT;
	for (i = 0; ret && i < NP_QUEUES_PER_ENGINE; i++)
		if ((arg.copy_queue_bmap | arg.service_queue_bmap) & BIT(i))
			nt_h2t_free_one(file, arg.nc_id, i);
	mutex_unlock(&file->lock);
	return ret;
}

int nt_h2t_free_queues(struct nt_file *file, void __user *user)
{
	struct np_h2t_dma_free_queues arg;
	int ret = 0, err;
	u32 i;

	if (copy_from_user(&arg, user, sizeof(arg)))
		return -EFAULT;
	if (arg.nc_id >= file->nd->gen->cores)
		return -E2BIG;
	mutex_lock(&file->lock);
	for (i = 0; i < NP_QUEUES_PER_ENGINE; i++) {
		if (!(arg.queue_bmap & BIT(i)))
			continue;
		err = nt_h2t_free_one(file, arg.nc_id, i);
		if (err)
			ret = err;
	}
	mutex_unlock(&file->lock);
	return ret;
}

/* Extra rings of a file that closes; queues set aside go with its user queues. */
void nt_h2t_release_owned(struct nt_file *file)
{
	struct nt_dev *nd = file->nd;
	u32 i, q;

	for (i = nd->gen->first_h2t_engine; nd->engines && i < nd->gen->engines; i++)
		for (q = 0; q < NP_QUEUES_PER_ENGINE; q++) {
			struct nt_h2t *h2t = READ_ONCE(nd->engines[i].queue[q].h2t);

			/* Rings of others are not looked into: they may go at any time. */
			if (h2t && nt_h2t_is_owned(&nd->engines[i], q, file))
				nt_h2t_close(h2t);
		}
}

bool nt_h2t_is_owned(struct nt_engine *engine, u32 qid, struct nt_file *file)
{
	bool owned;

	mutex_lock(&engine->lock);
	owned = engine->queue[qid].h2t && engine->queue[qid].h2t->owner == file;
	mutex_unlock(&engine->lock);
	return owned;
}

/* Every ring that copies for a core in @map, after its engine was brought up again. */
void nt_h2t_reset_all(struct nt_dev *nd, bool (*covers)(u32 map, u32 core), u32 map)
{
	u32 i, q;

	/* The writer side of reset_lock: no ring comes or goes meanwhile. */
	for (i = nd->gen->first_h2t_engine; i < nd->gen->engines; i++)
		for (q = 0; q < NP_QUEUES_PER_ENGINE; q++) {
			struct nt_h2t *h2t = nd->engines[i].queue[q].h2t;

			if (!h2t || !covers(map, h2t->core))
				continue;
			mutex_lock(&h2t->lock);
			nt_h2t_reset(h2t);
			mutex_unlock(&h2t->lock);
		}
}

/* One ring per core. */
int nt_h2t_alloc(struct nt_dev *nd)
{
	u32 core;
	int ret;

	nd->h2t = kcalloc(nd->gen->cores, sizeof(*nd->h2t), GFP_KERNEL);
	if (!nd->h2t)
		return -ENOMEM;
	for (core = 0; core < nd->gen->cores; core++) {
		u32 qid = core % nd->gen->cores_per_h2t_engine;

		nt_h2t_attach(&nd->h2t[core], nd, NULL, core, qid);
		ret = nt_h2t_setup(&nd->h2t[core], nd, core, qid);
		if (ret)
			return ret;
	}
	return 0;
}

/* At removal: the engines are still there, the device is not asked any more. */
void nt_h2t_free(struct nt_dev *nd)
{
	u32 i, q;

	if (!nd->h2t)
		return;
	for (i = nd->gen->first_h2t_engine; i < nd->gen->engines; i++)
		for (q = 0; q < NP_QUEUES_PER_ENGINE; q++) {
			struct nt_queue *queue = &nd->engines[i].queue[q];
			struct nt_h2t *h2t = queue->h2t;
			struct nt_chunk *put[2];

			if (!h2t)
				continue;
			nt_queue_drop(queue, put);
			nt_chunk_put_pair(put);
			nt_h2t_cleanup(h2t);
			if (h2t->owner)
				nt_h2t_put(h2t);
		}
	kfree(nd->h2t);
	nd->h2t = NULL;
}
