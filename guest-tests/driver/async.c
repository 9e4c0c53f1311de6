// SPDX-License-Identifier: GPL-2.0
/*
 * Zero copies in batches, now or later. Later means: the request's pages are
 * pinned and its windows rung for at once, each with a marker of its own, so
 * that as many are in flight as ring and markers hold; a thread of the ring
 * waits for the markers in order and posts each request's result to a ring
 * that user space maps. A request with a sequence number that goes to the
 * device is done later, others now: how the real driver tells them apart is
 * not public.
 *
 * An entry of the completion ring is set aside when a request is accepted.
 * The thread therefore never waits for its reader: who does not read gets
 * -EAGAIN for the 1025th request.
 */
#include <linux/delay.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "neuron_test.h"

/* What one request may hold; the real limits are not public. */
#define NT_MAX_BATCHES 64
#define NT_MAX_OPS 1024

/* Polls before the thread begins to sleep between two looks, and how long then. */
#define NT_SPIN 50
#define NT_NAP_US 20
/* A process that ended waits no longer than this for its copies: what the device has not done by then is dropped. */
#define NT_GRACE_MS 5000

struct nt_op {
	struct nt_chunk *chunk;
	u64 offset;
	u64 buffer;
	u64 size;
};

/**
 * struct nt_request - what one call asked for
 * @in_flight: windows rung for and not finished; under the ring's lock
 * @staged: no more will come; under the ring's lock
 */
struct nt_request {
	struct nt_file *file;
	struct nt_h2t *h2t;
	u64 sequence;
	u64 context;
	bool to_device;
	u32 in_flight;
	bool staged;
	int result;
	u32 count;
	struct nt_op *ops;
};

/* One window in flight. The thread of its ring alone takes it off the list. */
struct nt_flight {
	struct list_head link;
	struct nt_request *request;
	struct nt_context ctx;
	struct nt_window window;
};

static void nt_request_free(struct nt_request *request)
{
	u32 i;

	for (i = 0; i < request->count; i++)
		nt_chunk_put(request->ops[i].chunk);
	if (request->h2t)
		nt_h2t_put(request->h2t);
	kvfree(request->ops);
	kfree(request);
}

static int nt_request_run(struct nt_request *request)
{
	int ret = 0;
	u32 i;

	for (i = 0; i < request->count && !ret; i++) {
		struct nt_op *op = &request->ops[i];

		ret = nt_zerocopy(request->h2t, op->chunk, op->offset, op->buffer, op->size, request->to_device);
	}
	return ret;
}

/* Posts the result if nothing is left to wait for; then the request is the caller's to free. Under the ring's lock. */
static bool nt_request_done(struct nt_request *request)
{
	struct nt_h2t *h2t = request->h2t;
	struct np_h2t_compl_queue *ring;
	struct np_h2t_compl_entry *entry;

	if (!request->staged || request->in_flight)
		return false;
	if (h2t->completions) {
		ring = h2t->completions->va;
		entry = (struct np_h2t_compl_entry *)(ring + 1) + h2t->async.posted % NP_COMPL_QUEUE_CAPACITY;
		entry->sequence_num = request->sequence;
		entry->compl_ret = request->result;
		entry->context = request->context;
		/* The entry is there before the tail says so. */
		smp_store_release(&ring->tail, ++h2t->async.posted);
	}
	return true;
}

static void nt_request_finish(struct nt_request *request)
{
	struct nt_file *file = request->file;
	struct nt_dev *nd = file->nd;

	nt_request_free(request);
	/* The last touch of the file. */
	if (atomic_dec_and_test(&file->async_count))
		wake_up_all(&nd->async_wait);
}

/* Waits for the marker of the oldest window, without lock: true if it came. */
static bool nt_flight_wait(struct nt_h2t *h2t, struct nt_flight *flight, int *error)
{
	struct nt_dev *nd = h2t->nd;
	u64 left = nt_budget_us(nd, flight->ctx.count);
	unsigned long grace = jiffies + msecs_to_jiffies(NT_GRACE_MS);
	bool closing = false;
	u32 spins = 0;

	while (READ_ONCE(flight->ctx.marker[NP_MARKER_POLL / 4]) != NP_MARKER) {
		*error = -EIO;
		if (READ_ONCE(flight->ctx.lost))
			return false;
		*error = -ENODEV;
		if (READ_ONCE(nd->dying))
			return false;
		if (!closing && READ_ONCE(flight->request->file->closing)) {
			closing = true;
			grace = jiffies + msecs_to_jiffies(NT_GRACE_MS);
		}
		*error = -ETIMEDOUT;
		/* A reset has its own deadline, and then says that this is lost. */
		if (READ_ONCE(nd->state) != NT_RESETTING && (!left || (closing && time_after(jiffies, grace))))
			return false;
		/* As in the driver's polls, the wait counts, not what came on top of it. */
		if (spins < NT_SPIN) {
			udelay(NP_BUDGET_POLL_US);
			left -= min_t(u64, left, NP_BUDGET_POLL_US);
			spins++;
		} else {
			usleep_range(NT_NAP_US, 2 * NT_NAP_US);
			left -= min_t(u64, left, NT_NAP_US);
		}
	}
	/* Nothing read after this may be older than the marker. */
	dma_rmb();
	return true;
}

static void nt_flight_end(struct nt_h2t *h2t, struct nt_flight *flight)
{
	struct nt_request *request = flight->request;
	bool came, done;
	int error = 0;

	came = nt_flight_wait(h2t, flight, &error);
	mutex_lock(&h2t->lock);
	/* It may have come at the last moment. */
	came = came || READ_ONCE(flight->ctx.marker[NP_MARKER_POLL / 4]) == NP_MARKER;
	if (flight->ctx.lost) {
		/* The cursors began anew since. */
	} else if (came) {
		nt_ring_ack(&h2t->queue->rx, flight->ctx.count);
		nt_ring_ack(&h2t->queue->tx, flight->ctx.count);
	} else {
		if (error == -ETIMEDOUT)
			dev_err(&h2t->nd->dev, "no marker: engine %u queue %u, %u descriptors, %u windows in flight\n",
				h2t->engine->index, h2t->qid, flight->ctx.count, h2t->async.windows);
		/* Everything behind it is lost as well. */
		nt_h2t_reset(h2t);
	}
	if (!came && !request->result)
		request->result = error;
	list_del(&flight->link);
	h2t->async.windows--;
	h2t->async.descriptors -= flight->ctx.count;
	mutex_unlock(&h2t->lock);

	/* Done, or dropped: either way nothing touches the pages any more. */
	nt_window_unpin(h2t->nd, &flight->window, true);
	kfree(flight);

	mutex_lock(&h2t->lock);
	request->in_flight--;
	done = nt_request_done(request);
	mutex_unlock(&h2t->lock);
	wake_up_all(&h2t->async.room);
	if (done)
		nt_request_finish(request);
}

/* The ring's thread, while anything is in flight. */
static void nt_async_work(struct work_struct *work)
{
	struct nt_h2t *h2t = container_of(work, struct nt_h2t, async.work);
	struct nt_flight *flight;

	for (;;) {
		mutex_lock(&h2t->lock);
		flight = list_first_entry_or_null(&h2t->async.flights, struct nt_flight, link);
		mutex_unlock(&h2t->lock);
		if (!flight)
			return;
		nt_flight_end(h2t, flight);
		cond_resched();
	}
}

void nt_async_init(struct nt_h2t *h2t)
{
	INIT_WORK(&h2t->async.work, nt_async_work);
	INIT_LIST_HEAD(&h2t->async.flights);
	init_waitqueue_head(&h2t->async.room);
}

/* Under the ring's lock, after its queue began anew: nothing of before will come. */
void nt_async_lose(struct nt_h2t *h2t)
{
	struct nt_flight *flight;

	list_for_each_entry(flight, &h2t->async.flights, link)
		WRITE_ONCE(flight->ctx.lost, true);
}

/* No more is accepted, and what was is lost or over: waits until nothing refers to the ring's memory. */
void nt_async_stop(struct nt_h2t *h2t)
{
	wake_up_all(&h2t->async.room);
	flush_work(&h2t->async.work);
}

static bool nt_async_has_room(const struct nt_h2t *h2t, const struct nt_window *window)
{
	/* A page is a descriptor at most. */
	return READ_ONCE(h2t->async.windows) < NT_ASYNC_WINDOWS &&
	       READ_ONCE(h2t->async.descriptors) + window->pinned + 1 <= NT_ASYNC_DESCRIPTORS;
}

/* Pins, stages and rings for the next window of @op; with the ring's lock, which it lets go of to wait for room. */
static int nt_async_window(struct nt_request *request, const struct nt_op *op, u64 done, bool last, u64 *bytes)
{
	struct nt_h2t *h2t = request->h2t;
	struct nt_dev *nd = h2t->nd;
	struct nt_flight *flight;
	u32 slot;
	int ret;

	flight = kzalloc(sizeof(*flight), GFP_KERNEL);
	if (!flight)
		return -ENOMEM;
	ret = nt_window_pin(nd, &flight->window, op->buffer + done, op->size - done, true);
	if (ret) {
		kfree(flight);
		return ret;
	}
	while (!nt_async_has_room(h2t, &flight->window) && !h2t->closed && !READ_ONCE(nd->dying) && !ret) {
		mutex_unlock(&h2t->lock);
		ret = wait_event_killable(h2t->async.room, nt_async_has_room(h2t, &flight->window) ||
							   READ_ONCE(h2t->closed) || READ_ONCE(nd->dying));
		mutex_lock(&h2t->lock);
	}
	if (!ret && h2t->closed)
		ret = -ENOENT;
	if (!ret && READ_ONCE(nd->dying))
		ret = -ENODEV;
	if (!ret) {
		/* Oldest first, so that a slot is free when its turn comes again. */
		slot = h2t->async.next_slot++ % NT_ASYNC_WINDOWS;
		flight->ctx.marker = h2t->async.markers->va + NP_MARKER_SLOT * slot;
		flight->ctx.marker_address = h2t->async.markers->address + NP_MARKER_SLOT * slot;
		ret = nt_window_start(h2t, &flight->ctx, &flight->window, op->chunk->address + op->offset + done, true,
				      last);
	}
	if (ret) {
		nt_window_unpin(nd, &flight->window, true);
		kfree(flight);
		return ret;
	}
	*bytes = flight->window.bytes;
	flight->request = request;
	request->in_flight++;
	h2t->async.windows++;
	h2t->async.descriptors += flight->ctx.count;
	list_add_tail(&flight->link, &h2t->async.flights);
	queue_work(nd->async_queue, &h2t->async.work);
	return 0;
}

/* From here on the request ends in the completion ring, whatever becomes of it. */
static void nt_request_stage(struct nt_request *request)
{
	u32 i;

	for (i = 0; i < request->count && !request->result; i++) {
		struct nt_op *op = &request->ops[i];
		u64 done = 0;

		while (done < op->size && !request->result) {
			u64 left = op->size - done, bytes = 0;
			u64 room = NT_WINDOW_PAGES * PAGE_SIZE - offset_in_page(op->buffer + done);
			bool last = i + 1 == request->count && left <= room;
			int ret = nt_async_window(request, op, done, last, &bytes);

			if (ret && !request->result)
				request->result = ret;
			done += bytes;
		}
	}
	request->staged = true;
}

/* The ring is that of the first file that uses it so, until that closes. */
static int nt_async_claim(struct nt_h2t *h2t, struct nt_file *file)
{
	if (h2t->closed)
		return -ENOENT;
	if (h2t->async.user && h2t->async.user != file)
		return -EBUSY;
	h2t->async.user = file;
	return 0;
}

static int nt_request_submit(struct nt_request *request)
{
	struct nt_h2t *h2t = request->h2t;
	struct np_h2t_compl_queue *ring;
	bool done = false;
	int ret;

	if (mutex_lock_killable(&h2t->lock))
		return -EINTR;
	ret = nt_async_claim(h2t, request->file);
	if (!ret) {
		/* The head is the reader's: one that makes no sense leaves no room. */
		ring = h2t->completions->va;
		if (h2t->async.accepted - READ_ONCE(ring->head) >= NP_COMPL_QUEUE_CAPACITY)
			ret = -EAGAIN;
	}
	if (!ret) {
		h2t->async.accepted++;
		atomic_inc(&request->file->async_count);
		nt_request_stage(request);
		done = nt_request_done(request);
	}
	mutex_unlock(&h2t->lock);
	if (done)
		nt_request_finish(request);
	return ret;
}

static int nt_batch_collect(struct nt_request *request, const struct np_memcpy_batch *batch)
{
	struct nt_dev *nd = request->file->nd;
	struct np_tensor_batch_op *ops;
	struct nt_chunk *chunk;
	int ret = 0;
	u32 i;

	if (!batch->num_ops || batch->num_ops > NT_MAX_OPS - request->count)
		return -E2BIG;
	ops = vmemdup_user(u64_to_user_ptr(batch->ops_ptr), batch->num_ops * sizeof(*ops));
	if (IS_ERR(ops))
		return PTR_ERR(ops);
	chunk = nt_chunk_get(nd, batch->mem_handle);
	for (i = 0; i < batch->num_ops && !ret; i++) {
		u64 offset = batch->mem_handle_offset + ops[i].offset;

		if (!chunk || !ops[i].size || offset < ops[i].offset || !nt_chunk_holds(chunk, offset, ops[i].size)) {
			ret = -EINVAL;
		} else if (!access_ok(u64_to_user_ptr(ops[i].buffer), ops[i].size)) {
			ret = -EFAULT;
		} else {
			kref_get(&chunk->ref);
			request->ops[request->count++] =
				(struct nt_op){ chunk, offset, ops[i].buffer, ops[i].size };
		}
	}
	if (chunk)
		nt_chunk_put(chunk);
	kvfree(ops);
	return ret;
}

int nt_zerocopy_batches(struct nt_file *file, void __user *user)
{
	struct nt_dev *nd = file->nd;
	struct np_mem_buf_copy64zc_batches arg;
	struct np_memcpy_batch *batches;
	struct nt_request *request;
	int ret = 0;
	u32 i;

	if (copy_from_user(&arg, user, sizeof(arg)))
		return -EFAULT;
	if (!arg.num_batches || arg.num_batches > NT_MAX_BATCHES)
		return -E2BIG;
	batches = memdup_user(u64_to_user_ptr(arg.batches_ptr), arg.num_batches * sizeof(*batches));
	if (IS_ERR(batches))
		return PTR_ERR(batches);
	request = kzalloc(sizeof(*request), GFP_KERNEL);
	if (request)
		request->ops = kvcalloc(NT_MAX_OPS, sizeof(*request->ops), GFP_KERNEL);
	if (!request || !request->ops) {
		kfree(request);
		kfree(batches);
		return -ENOMEM;
	}
	request->file = file;
	request->sequence = arg.sequence_num;
	request->context = batches[0].context;
	request->to_device = arg.is_copy_to_device;
	for (i = 0; i < arg.num_batches && !ret; i++)
		ret = nt_batch_collect(request, &batches[i]);
	kfree(batches);
	/* All go through one ring: that of the first one's core. */
	if (!ret)
		request->h2t = nt_h2t_find(nd, request->ops[0].chunk->core, arg.h2t_qid);
	if (!ret && !request->h2t)
		ret = -ENOENT;
	if (!ret && arg.sequence_num && request->to_device) {
		ret = nt_request_submit(request);
		/* Accepted: its end is in the completion ring. */
		if (!ret)
			return 0;
	} else if (!ret) {
		ret = nt_request_run(request);
	}
	nt_request_free(request);
	return ret;
}

int nt_completion_queues(struct nt_file *file, void __user *user)
{
	struct np_get_async_h2t_dma_compl_queues arg;
	u32 i;
	int ret;

	if (copy_from_user(&arg, user, sizeof(arg)))
		return -EFAULT;
	if (arg.nc_id >= file->nd->gen->cores)
		return -EINVAL;
	memset(arg.compl_queue_info, 0, sizeof(arg.compl_queue_info));
	for (i = 0; i < NP_QUEUES_PER_ENGINE; i++) {
		struct nt_h2t *h2t;

		if (!(arg.qid_bitmap & BIT(i)))
			continue;
		h2t = nt_h2t_find(file->nd, arg.nc_id, i);
		if (!h2t)
			return -EINVAL;
		mutex_lock(&h2t->lock);
		ret = nt_async_claim(h2t, file);
		if (!ret) {
			arg.compl_queue_info[i].mmap_offset = h2t->completions->address;
			arg.compl_queue_info[i].mmap_size = NT_COMPL_SIZE;
		}
		mutex_unlock(&h2t->lock);
		nt_h2t_put(h2t);
		if (ret)
			return ret;
	}
	return copy_to_user(user, &arg, sizeof(arg)) ? -EFAULT : 0;
}

/* Before the file's memory and rings go: its copies end soon or are dropped. Takes no lock that the threads wait for. */
void nt_async_drain(struct nt_file *file)
{
	WRITE_ONCE(file->closing, true);
	wait_event(file->nd->async_wait, !atomic_read(&file->async_count));
}

/* The next user of the cores' own rings finds nothing unread in them. */
void nt_async_release(struct nt_file *file)
{
	struct nt_dev *nd = file->nd;
	u32 core;

	for (core = 0; nd->h2t && core < nd->gen->cores; core++) {
		struct nt_h2t *h2t = &nd->h2t[core];
		struct np_h2t_compl_queue *ring;

		mutex_lock(&h2t->lock);
		if (h2t->async.user == file) {
			h2t->async.user = NULL;
			if (h2t->completions) {
				ring = h2t->completions->va;
				h2t->async.accepted = h2t->async.posted;
				WRITE_ONCE(ring->tail, h2t->async.posted);
				WRITE_ONCE(ring->head, h2t->async.posted);
			}
		}
		mutex_unlock(&h2t->lock);
	}
}
