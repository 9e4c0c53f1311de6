// SPDX-License-Identifier: GPL-2.0
/*
 * Requests that allocate memory and tell of it, in the four forms that drivers
 * have had.
 */
#include <linux/uaccess.h>

#include "neuron_test.h"

static int nt_mem_alloc(struct nt_file *file, unsigned int cmd, void __user *user)
{
	union {
		struct np_mem_alloc v1;
		struct np_mem_alloc_v2 v2;
		struct np_mem_alloc_v2_mem_type mt;
		struct np_mem_alloc_v2_mem_type64 mt64;
	} arg = {};
	struct nt_chunk *chunk;
	u64 align = 0, handle, out;
	u32 host, channel, core;
	size_t size;
	int ret;

	switch (cmd) {
	case NP_IOCTL_MEM_ALLOC:
		size = sizeof(arg.v1);
		break;
	case NP_IOCTL_MEM_ALLOC_V2:
		size = sizeof(arg.v2);
		break;
	case NP_IOCTL_MEM_ALLOC_V2MT:
		size = sizeof(arg.mt);
		break;
	default:
		size = sizeof(arg.mt64);
		break;
	}
	if (copy_from_user(&arg, user, size))
		return -EFAULT;
	/* Three of the four begin alike; the size comes first in all. */
	if (cmd == NP_IOCTL_MEM_ALLOC) {
		host = arg.v1.host_memory;
		channel = arg.v1.dram_channel;
		core = arg.v1.nc_id;
		out = arg.v1.mem_handle;
	} else {
		align = arg.v2.align;
		host = arg.v2.host_memory;
		channel = arg.v2.dram_channel;
		core = arg.v2.nc_id;
		out = cmd == NP_IOCTL_MEM_ALLOC_V2 ? arg.v2.mem_handle : arg.mt.mem_handle;
	}
	chunk = nt_chunk_alloc(file->nd, file, arg.v1.size, align, host, channel, core);
	if (IS_ERR(chunk))
		return PTR_ERR(chunk);
	ret = nt_chunk_publish(chunk);
	if (ret) {
		nt_chunk_put(chunk);
		return ret;
	}
	handle = chunk->handle;
	ret = nt_copy_out(u64_to_user_ptr(out), &handle, sizeof(handle));
	if (ret)
		nt_chunk_free_handle(file, handle);
	return ret;
}

static int nt_mem_info(struct nt_file *file, unsigned int cmd, void __user *user)
{
	struct nt_dev *nd = file->nd;
	union {
		struct np_mem_get_pa pa;
		struct np_mem_get_info info;
		struct np_mem_get_extended_info extended;
	} arg = {};
	struct nt_chunk *chunk;
	u64 bare, offset;
	size_t size;
	int ret;

	switch (cmd) {
	case NP_IOCTL_MEM_GET_PA:
		size = sizeof(arg.pa);
		break;
	case NP_IOCTL_MEM_GET_INFO:
		size = sizeof(arg.info);
		break;
	default:
		size = sizeof(arg.extended);
		break;
	}
	if (copy_from_user(&arg, user, size))
		return -EFAULT;
	chunk = nt_chunk_get(nd, arg.pa.mem_handle);
	if (!chunk)
		return -EINVAL;
	bare = chunk->host ? chunk->dma : chunk->address;
	offset = chunk->address;
	switch (cmd) {
	case NP_IOCTL_MEM_GET_PA:
		ret = nt_copy_out(u64_to_user_ptr(arg.pa.pa), &bare, sizeof(bare));
		break;
	case NP_IOCTL_MEM_GET_INFO:
		ret = nt_copy_out(u64_to_user_ptr(arg.info.pa), &bare, sizeof(bare));
		if (!ret && arg.info.mmap_offset)
			ret = nt_copy_out(u64_to_user_ptr(arg.info.mmap_offset), &offset, sizeof(offset));
		break;
	default:
		arg.extended.host_memory = chunk->host;
		arg.extended.mmap_offset = offset;
		arg.extended.pa = chunk->address;
		arg.extended.pid = chunk->pid;
		arg.extended.size = chunk->size;
		ret = nt_copy_out(user, &arg.extended, sizeof(arg.extended));
	}
	nt_chunk_put(chunk);
	return ret;
}

/* nt_ioctl_alloc - requests on chunks as such; -ENOIOCTLCMD for others */
long nt_ioctl_alloc(struct nt_file *file, unsigned int cmd, void __user *user)
{
	struct np_mem_free mem_free;

	switch (cmd) {
	case NP_IOCTL_MEM_ALLOC:
	case NP_IOCTL_MEM_ALLOC_V2:
	case NP_IOCTL_MEM_ALLOC_V2MT:
	case NP_IOCTL_MEM_ALLOC_V2MT64:
		return nt_mem_alloc(file, cmd, user);
	case NP_IOCTL_MEM_FREE:
		if (copy_from_user(&mem_free, user, sizeof(mem_free)))
			return -EFAULT;
		return nt_chunk_free_handle(file, mem_free.mem_handle);
	case NP_IOCTL_MEM_GET_PA:
	case NP_IOCTL_MEM_GET_INFO:
	case NP_IOCTL_MEM_GET_EXTENDED_INFO:
		return nt_mem_info(file, cmd, user);
	default:
		return -ENOIOCTLCMD;
	}
}
