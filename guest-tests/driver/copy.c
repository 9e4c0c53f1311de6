// SPDX-License-Identifier: GPL-2.0
/*
 * Requests that move bytes through the driver's own rings: between chunks,
 * between a chunk and user memory, and onto device addresses.
 */
#include <linux/uaccess.h>

#include "neuron_test.h"

#define NT_BAR4_MAX (2 * PAGE_SIZE)

/* Two chunks and the ranges in them that a copy touches. */
static int nt_get_pair(struct nt_dev *nd, u64 src, u64 dst, u64 src_offset, u64 dst_offset, u64 size,
		       struct nt_chunk *pair[2])
{
	pair[0] = nt_chunk_get(nd, src);
	pair[1] = nt_chunk_get(nd, dst);
	/* Size 0 would be 64 KiB to the hardware. */
	if (pair[0] && pair[1] && size && nt_chunk_holds(pair[0], src_offset, size) &&
	    nt_chunk_holds(pair[1], dst_offset, size))
		return 0;
	nt_chunk_put_pair(pair);
	return -EINVAL;
}

static int nt_mem_copy(struct nt_file *file, unsigned int cmd, void __user *user)
{
	struct nt_chunk *pair[2];
	struct np_mem_copy64 arg;
	struct np_mem_copy narrow;
	int ret;

	if (cmd == NP_IOCTL_MEM_COPY) {
		if (copy_from_user(&narrow, user, sizeof(narrow)))
			return -EFAULT;
		arg = (struct np_mem_copy64){ narrow.src_mem_handle, narrow.dst_mem_handle, narrow.size,
					      narrow.src_offset, narrow.dst_offset };
	} else if (copy_from_user(&arg, user, sizeof(arg))) {
		return -EFAULT;
	}
	ret = nt_get_pair(file->nd, arg.src_mem_handle, arg.dst_mem_handle, arg.src_offset, arg.dst_offset, arg.size,
			  pair);
	if (ret)
		return ret;
	ret = nt_copy_chunks(file->nd, pair[0], pair[1], arg.src_offset, arg.dst_offset, arg.size);
	nt_chunk_put_pair(pair);
	return ret;
}

static int nt_mem_copy_async(struct nt_file *file, unsigned int cmd, void __user *user)
{
	bool wide = cmd == NP_IOCTL_MEM_COPY_ASYNC64;
	struct np_mem_copy_async64 arg;
	struct np_mem_copy_async narrow;
	struct nt_chunk *pair[2];
	int ret;

	if (wide) {
		if (copy_from_user(&arg, user, sizeof(arg)))
			return -EFAULT;
	} else {
		if (copy_from_user(&narrow, user, sizeof(narrow)))
			return -EFAULT;
		arg = (struct np_mem_copy_async64){
			.src_mem_handle = narrow.src_mem_handle,
			.dst_mem_handle = narrow.dst_mem_handle,
			.size = narrow.size,
			.src_offset = narrow.src_offset,
			.dst_offset = narrow.dst_offset,
			.pwait_handle = narrow.pwait_handle,
		};
	}
	ret = nt_get_pair(file->nd, arg.src_mem_handle, arg.dst_mem_handle, arg.src_offset, arg.dst_offset, arg.size,
			  pair);
	if (ret)
		return ret;
	ret = nt_copy_async(file, pair[0], pair[1], arg.src_offset, arg.dst_offset, arg.size, arg.pwait_handle,
			    &arg.wait_handle);
	nt_chunk_put_pair(pair);
	if (ret)
		return ret;
	if (wide)
		return nt_copy_out(user, &arg, sizeof(arg));
	narrow.wait_handle = arg.wait_handle;
	return nt_copy_out(user, &narrow, sizeof(narrow));
}

static int nt_mem_copy_wait(struct nt_file *file, void __user *user)
{
	struct np_mem_copy_async_wait arg;
	struct nt_chunk *pair[2];
	int ret;

	if (copy_from_user(&arg, user, sizeof(arg)))
		return -EFAULT;
	ret = nt_get_pair(file->nd, arg.src_mem_handle, arg.dst_mem_handle, 0, 0, 1, pair);
	if (ret)
		return ret;
	ret = nt_copy_async_wait(file, pair[0], pair[1], arg.pwait_handle);
	nt_chunk_put_pair(pair);
	return ret;
}

/* Through the bounce chunk, 64 KiB and one trigger at a time. */
static int nt_buffer_copy(struct nt_file *file, struct nt_chunk *chunk, u64 offset, u64 buffer, u64 size, bool to_chunk)
{
	struct nt_chunk *bounce;
	u64 done = 0;
	int ret;

	if (mutex_lock_killable(&file->lock))
		return -EINTR;
	bounce = nt_bounce(file);
	ret = PTR_ERR_OR_ZERO(bounce);
	while (done < size && !ret) {
		void __user *user = u64_to_user_ptr(buffer + done);
		u64 bytes = min_t(u64, size - done, bounce->size);

		if (to_chunk) {
			if (copy_from_user(bounce->va, user, bytes))
				ret = -EFAULT;
			else
				ret = nt_copy_chunks(file->nd, bounce, chunk, 0, offset + done, bytes);
		} else {
			ret = nt_copy_chunks(file->nd, chunk, bounce, offset + done, 0, bytes);
			if (!ret && copy_to_user(user, bounce->va, bytes))
				ret = -EFAULT;
		}
		done += bytes;
	}
	mutex_unlock(&file->lock);
	return ret;
}

/* Guest RAM needs no engine. */
static int nt_host_buffer_copy(struct nt_chunk *chunk, u64 offset, u64 buffer, u64 size, bool to_chunk)
{
	unsigned long left;

	if (to_chunk)
		left = copy_from_user(chunk->va + offset, u64_to_user_ptr(buffer), size);
	else
		left = copy_to_user(u64_to_user_ptr(buffer), chunk->va + offset, size);
	return left ? -EFAULT : 0;
}

static int nt_mem_buf_copy(struct nt_file *file, unsigned int cmd, void __user *user)
{
	struct np_mem_buf_copy64 arg;
	struct np_mem_buf_copy narrow;
	struct nt_chunk *chunk;
	int ret = -EINVAL;

	if (cmd == NP_IOCTL_MEM_BUF_COPY) {
		if (copy_from_user(&narrow, user, sizeof(narrow)))
			return -EFAULT;
		arg = (struct np_mem_buf_copy64){ .mem_handle = narrow.mem_handle,
						  .buffer = narrow.buffer,
						  .size = narrow.size,
						  .offset = narrow.offset,
						  .copy_to_mem_handle = narrow.copy_to_mem_handle };
	} else if (copy_from_user(&arg, user, sizeof(arg))) {
		return -EFAULT;
	}
	chunk = nt_chunk_get(file->nd, arg.mem_handle);
	if (!chunk)
		return -EINVAL;
	if (nt_chunk_holds(chunk, arg.offset, arg.size)) {
		if (chunk->host)
			ret = nt_host_buffer_copy(chunk, arg.offset, arg.buffer, arg.size, arg.copy_to_mem_handle);
		else
			ret = nt_buffer_copy(file, chunk, arg.offset, arg.buffer, arg.size, arg.copy_to_mem_handle);
	}
	nt_chunk_put(chunk);
	return ret;
}

static int nt_mem_zerocopy(struct nt_file *file, void __user *user)
{
	struct nt_dev *nd = file->nd;
	struct np_mem_buf_copy64zc arg;
	struct nt_chunk *chunk;
	struct nt_h2t *h2t;
	bool direct;
	int ret = -EINVAL;

	if (copy_from_user(&arg, user, sizeof(arg)))
		return -EFAULT;
	chunk = nt_chunk_get(nd, arg.mem_handle);
	if (!chunk)
		return -EINVAL;
	if (!arg.size || !nt_chunk_holds(chunk, arg.offset, arg.size))
		goto put;
	ret = -EFAULT;
	if (!access_ok(u64_to_user_ptr(arg.buffer), arg.size))
		goto put;
	ret = -ENOENT;
	h2t = nt_h2t_find(nd, chunk->core, arg.h2t_qid);
	if (!h2t)
		goto put;
	direct = arg.is_copy_to_device && !chunk->host && nd->platform != NT_QEMU &&
		 arg.size <= min_t(u64, arg.bar4_wr_threshold, NT_BAR4_MAX) &&
		 IS_ALIGNED(arg.size | arg.offset, 4);
	if (direct)
		ret = nt_bar4_write(nd, chunk, arg.offset, arg.buffer, arg.size);
	else
		ret = nt_zerocopy(h2t, chunk, arg.offset, arg.buffer, arg.size, arg.is_copy_to_device);
	nt_h2t_put(h2t);
put:
	nt_chunk_put(chunk);
	return ret;
}

static int nt_mem_set(struct nt_file *file, unsigned int cmd, void __user *user)
{
	struct np_memset64 arg;
	struct np_memset narrow;
	struct nt_chunk *chunk;
	int ret = -EINVAL;

	if (cmd == NP_IOCTL_MEMSET) {
		if (copy_from_user(&narrow, user, sizeof(narrow)))
			return -EFAULT;
		arg = (struct np_memset64){ .mem_handle = narrow.mem_handle,
					    .offset = narrow.offset,
					    .value = narrow.value,
					    .size = narrow.size };
	} else if (copy_from_user(&arg, user, sizeof(arg))) {
		return -EFAULT;
	}
	chunk = nt_chunk_get(file->nd, arg.mem_handle);
	if (!chunk)
		return -EINVAL;
	if (arg.size && nt_chunk_holds(chunk, arg.offset, arg.size))
		ret = nt_memset(file->nd, chunk, arg.offset, arg.value, arg.size);
	nt_chunk_put(chunk);
	return ret;
}

/* User bytes to a device address: HBM, state buffer or register window. */
static int nt_program_engine(struct nt_file *file, unsigned int cmd, void __user *user)
{
	struct nt_dev *nd = file->nd;
	union {
		struct np_program_engine plain;
		struct np_program_engine_nc nc;
		struct np_program_engine_nc64 nc64;
	} arg;
	u64 dst, buffer, size, offset, done = 0;
	struct nt_chunk *bounce;
	u32 core = 0;
	int ret;

	if (cmd == NP_IOCTL_PROGRAM_ENGINE) {
		if (copy_from_user(&arg.plain, user, sizeof(arg.plain)))
			return -EFAULT;
		dst = arg.plain.dst;
		buffer = arg.plain.buffer;
		size = arg.plain.size;
		offset = arg.plain.offset;
	} else if (cmd == NP_IOCTL_PROGRAM_ENGINE_NC) {
		if (copy_from_user(&arg.nc, user, sizeof(arg.nc)))
			return -EFAULT;
		core = arg.nc.nc_id;
		dst = arg.nc.dst;
		buffer = arg.nc.buffer;
		size = arg.nc.size;
		offset = arg.nc.offset;
	} else {
		if (copy_from_user(&arg.nc64, user, sizeof(arg.nc64)))
			return -EFAULT;
		core = arg.nc64.nc_id;
		dst = arg.nc64.dst;
		buffer = arg.nc64.buffer;
		size = arg.nc64.size;
		offset = arg.nc64.offset;
	}
	if (core >= nd->gen->cores || !size)
		return -EINVAL;
	/* -ENOMEM is what the real driver says of an address outside its regions. */
	if (dst + offset < dst || !nt_is_device_address(nd, dst + offset, size))
		return -ENOMEM;

	if (mutex_lock_killable(&file->lock))
		return -EINTR;
	bounce = nt_bounce(file);
	ret = PTR_ERR_OR_ZERO(bounce);
	while (done < size && !ret) {
		u64 bytes = min_t(u64, size - done, bounce->size);

		if (copy_from_user(bounce->va, u64_to_user_ptr(buffer + offset + done), bytes))
			ret = -EFAULT;
		else
			ret = nt_copy(nd, core, bounce->address, dst + offset + done, bytes, false);
		done += bytes;
	}
	mutex_unlock(&file->lock);
	return ret;
}

/* nt_ioctl_copy - requests that copy; -ENOIOCTLCMD for others */
long nt_ioctl_copy(struct nt_file *file, unsigned int cmd, void __user *user)
{
	switch (cmd) {
	case NP_IOCTL_MEM_COPY:
	case NP_IOCTL_MEM_COPY64:
		return nt_mem_copy(file, cmd, user);
	case NP_IOCTL_MEM_COPY_ASYNC:
	case NP_IOCTL_MEM_COPY_ASYNC64:
		return nt_mem_copy_async(file, cmd, user);
	case NP_IOCTL_MEM_COPY_ASYNC_WAIT:
		return nt_mem_copy_wait(file, user);
	case NP_IOCTL_MEM_BUF_COPY:
	case NP_IOCTL_MEM_BUF_COPY64:
		return nt_mem_buf_copy(file, cmd, user);
	case NP_IOCTL_MEM_BUF_ZEROCOPY64:
		return nt_mem_zerocopy(file, user);
	case NP_IOCTL_MEM_BUF_ZEROCOPY64_BATCHES:
		return nt_zerocopy_batches(file, user);
	case NP_IOCTL_GET_ASYNC_H2T_DMA_COMPL_QUEUES:
		return nt_completion_queues(file, user);
	case NP_IOCTL_MEMSET:
	case NP_IOCTL_MEMSET64:
		return nt_mem_set(file, cmd, user);
	case NP_IOCTL_PROGRAM_ENGINE:
	case NP_IOCTL_PROGRAM_ENGINE_NC:
	case NP_IOCTL_PROGRAM_ENGINE_NC64:
		return nt_program_engine(file, cmd, user);
	default:
		return -ENOIOCTLCMD;
	}
}
