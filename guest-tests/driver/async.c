// SPDX-License-Identifier: GPL-2.0
/*
 * Zero copies in batches, now or later. Later means: a thread of the device
 * works requests off in order, in the address space of who asked, and posts
 * each one's result to a ring of its queue that user space maps. A request
 * with a sequence number that goes to the device is done later, others now:
 * how the real driver tells them apart is not public.
 */
#include <linux/delay.h>
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "neuron_test.h"

/* What one request may hold; the real limits are not public. */
#define NT_MAX_BATCHES 64
#define NT_MAX_OPS 1024

struct nt_op {
	struct nt_chunk *chunk;
	u64 offset;
	u64 buffer;
	u64 size;
};

struct nt_request {
	struct work_struct work;
	struct nt_dev *nd;
	struct nt_file *file;
	struct nt_h2t *h2t;
	struct mm_struct *mm;
	u64 sequence;
	u64 context;
	bool to_device;
	u32 count;
	struct nt_op *ops;
};

static void nt_request_free(struct nt_request *request)
{
	u32 i;

	for (i = 0; i < request->count; i++)
		nt_chunk_put(request->ops[i].chunk);
	if (request->h2t)
		nt_h2t_put(request->h2t);
	if (request->mm)
		mmput(request->mm);
	kvfree(request->ops);
	kfree(request);
}

/* In the address space of who asked. */
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

/* The only writer of any ring is the device's one worker. The entry is there before the tail says so. */
static void nt_complete(struct nt_request *request, int result)
{
	struct nt_dev *nd = request->nd;
	struct nt_h2t *h2t = request->h2t;
	struct np_h2t_compl_queue *ring;
	struct np_h2t_compl_entry *entries;

	for (;;) {
		down_read(&nd->life);
		if (nd->gone || !h2t->completions)
			break;
		ring = h2t->completions->va;
		entries = (void *)(ring + 1);
		if (h2t->compl_tail - smp_load_acquire(&ring->head) < NP_COMPL_QUEUE_CAPACITY) {
			struct np_h2t_compl_entry *entry = &entries[h2t->compl_tail % NP_COMPL_QUEUE_CAPACITY];

			entry->sequence_num = request->sequence;
			entry->compl_ret = result;
			entry->context = request->context;
			smp_store_release(&ring->tail, ++h2t->compl_tail);
			break;
		}
		up_read(&nd->life);
		/* Full: the reader's business, unless it is gone. */
		if (READ_ONCE(request->file->closing) || READ_ONCE(nd->dying))
			return;
		msleep(1);
	}
	up_read(&nd->life);
}

static void nt_request_work(struct work_struct *work)
{
	struct nt_request *request = container_of(work, struct nt_request, work);
	struct nt_file *file = request->file;
	struct nt_dev *nd = request->nd;
	int ret = -ENODEV;

	down_read(&nd->life);
	if (!nd->gone) {
		down_read(&nd->reset_lock);
		ret = -EIO;
		if (nd->state == NT_READY && !READ_ONCE(request->file->closing)) {
			kthread_use_mm(request->mm);
			ret = nt_request_run(request);
			kthread_unuse_mm(request->mm);
		}
		up_read(&nd->reset_lock);
	}
	up_read(&nd->life);
	nt_complete(request, ret);
	atomic_dec(&nd->async_count);
	atomic_dec(&file->async_count);
	nt_request_free(request);
}

static int nt_batch_collect(struct nt_request *request, const struct np_memcpy_batch *batch)
{
	struct nt_dev *nd = request->nd;
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
	request->nd = nd;
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
	if (ret || !arg.sequence_num || !request->to_device) {
		if (!ret)
			ret = nt_request_run(request);
		nt_request_free(request);
		return ret;
	}
	if (READ_ONCE(nd->dying)) {
		nt_request_free(request);
		return -ENODEV;
	}
	if (atomic_inc_return(&nd->async_count) > NP_COMPL_QUEUE_CAPACITY) {
		atomic_dec(&nd->async_count);
		nt_request_free(request);
		return -EAGAIN;
	}
	atomic_inc(&file->async_count);
	mmget(current->mm);
	request->mm = current->mm;
	INIT_WORK(&request->work, nt_request_work);
	queue_work(nd->async_queue, &request->work);
	return 0;
}

int nt_completion_queues(struct nt_file *file, void __user *user)
{
	struct np_get_async_h2t_dma_compl_queues arg;
	u32 i;

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
		arg.compl_queue_info[i].mmap_offset = h2t->completions->address;
		arg.compl_queue_info[i].mmap_size = NT_COMPL_SIZE;
		nt_h2t_put(h2t);
	}
	return copy_to_user(user, &arg, sizeof(arg)) ? -EFAULT : 0;
}

/* Before the file's memory and rings go. Takes no lock that the worker waits for. */
void nt_async_drain(struct nt_file *file)
{
	WRITE_ONCE(file->closing, true);
	/* Of its own: others go on. Removal drains for itself. */
	while (atomic_read(&file->async_count))
		msleep(1);
}
