// SPDX-License-Identifier: GPL-2.0
/*
 * /dev/neuronN and its ioctls: the numbers, layouts and answers of the real
 * driver, so that one guest program runs on both. An unknown request is
 * -EINVAL there, and here.
 */
#include <linux/dma-mapping.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/version.h>

#include "neuron_test.h"

/* What the runtime asks for before it believes in a driver; see neuron_protocol.h's sources. */
#define NT_FEATURES (NP_FEATURE_ASYNC_DMA | NP_FEATURE_BATCH_DMAQ_INIT | NP_FEATURE_MEM_ALLOC_TYPE | \
		     NP_FEATURE_MEM_ALLOC64 | NP_FEATURE_ZEROCOPY)
#define NT_BAR4_MAX (2 * PAGE_SIZE)

static dev_t nt_first;
static struct class *nt_class;
static DEFINE_MUTEX(nt_nodes_lock);
static struct nt_dev *nt_nodes[NT_MAX_DEVICES];

static int nt_copy_out(void __user *user, const void *from, size_t size)
{
	return copy_to_user(user, from, size) ? -EFAULT : 0;
}

static int nt_driver_info(struct nt_dev *nd, void __user *user)
{
	struct np_device_driver_info info = {
		.architecture = nd->gen->arch,
		.revision = nd->pdev->revision,
		.size = sizeof(info),
		.feature_flags1 = NT_FEATURES,
	};

	return nt_copy_out(user, &info, sizeof(info));
}

static int nt_device_bdf(void __user *user)
{
	struct np_device_bdf_ext bdf;
	struct nt_dev *nd;
	int ret = -ENODEV;

	if (copy_from_user(&bdf, user, sizeof(bdf)))
		return -EFAULT;
	if (bdf.nd_index >= NT_MAX_DEVICES)
		return -EINVAL;
	mutex_lock(&nt_nodes_lock);
	nd = nt_nodes[bdf.nd_index];
	if (nd) {
		bdf.domain = pci_domain_nr(nd->pdev->bus);
		bdf.bus_number = nd->pdev->bus->number;
		bdf.slot = PCI_SLOT(nd->pdev->devfn);
		bdf.func = PCI_FUNC(nd->pdev->devfn);
		ret = 0;
	}
	mutex_unlock(&nt_nodes_lock);
	return ret ? ret : nt_copy_out(user, &bdf, sizeof(bdf));
}

/* Requests that need no engine and work during a reset, on any open. */
static long nt_ioctl_misc(struct nt_dev *nd, unsigned int cmd, void __user *user)
{
	struct np_device_basic_info basic = { nd->gen->arch, nd->pdev->revision };
	struct np_compatible_version version = { nd->values->runtime_max, nd->values->runtime_min };

	switch (cmd) {
	case NP_IOCTL_DEVICE_BASIC_INFO:
		return nt_copy_out(user, &basic, sizeof(basic));
	case NP_IOCTL_COMPATIBLE_VERSION:
		return nt_copy_out(user, &version, sizeof(version));
	case NP_IOCTL_DRIVER_INFO_GET:
		return nt_driver_info(nd, user);
	case NP_IOCTL_DEVICE_BDF_EXT:
		return nt_device_bdf(user);
	default:
		return -EINVAL;
	}
}

static int nt_device_info(struct nt_dev *nd, void __user *user)
{
	struct np_device_info info = {
		.architecture = nd->gen->arch,
		.revision = nd->pdev->revision,
		.bar_address[0] = pci_resource_start(nd->pdev, nd->register_bar),
		.bar_size[0] = nd->regs_size,
	};

	return nt_copy_out(user, &info, sizeof(info));
}

/* One reset in flight per open file, as one per process in the real driver. */
static int nt_reset_request(struct nt_file *file, void __user *user)
{
	struct np_device_reset arg;
	struct nt_reset *reset;
	int ret = 0;

	if (copy_from_user(&arg, user, sizeof(arg)))
		return -EFAULT;
	mutex_lock(&file->lock);
	if (file->reset) {
		ret = -EBUSY;
		goto unlock;
	}
	reset = nt_reset_start(file->nd, arg.nc_map, false);
	if (IS_ERR(reset)) {
		ret = PTR_ERR(reset);
		goto unlock;
	}
	file->reset = reset;
	arg.request_id = reset->id;
unlock:
	mutex_unlock(&file->lock);
	return ret ? ret : nt_copy_out(user, &arg, sizeof(arg));
}

static int nt_reset_ready(struct nt_file *file, void __user *user)
{
	struct np_device_ready arg;
	struct nt_reset *reset = NULL;

	if (copy_from_user(&arg, user, sizeof(arg)))
		return -EFAULT;
	mutex_lock(&file->lock);
	if (file->reset && file->reset->id == arg.request_id)
		swap(reset, file->reset);
	mutex_unlock(&file->lock);
	/* The outcome travels in the struct; an unknown request is a failed one. */
	arg.result = reset ? nt_reset_wait(reset) : 1;
	return nt_copy_out(user, &arg, sizeof(arg));
}

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

/* Requests that use engines or registers. */
static long nt_ioctl_engine(struct nt_file *file, unsigned int cmd, void __user *user)
{
	struct np_mem_free mem_free;
	long ret;

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
		ret = nt_ioctl_queue(file, cmd, user);
		return ret == -ENOIOCTLCMD ? nt_ioctl_sync(file, cmd, user) : ret;
	}
}

static long nt_ioctl_attached(struct nt_file *file, unsigned int cmd, void __user *user)
{
	struct nt_dev *nd = file->nd;
	u8 ready = 1;
	long ret;

	switch (cmd) {
	case NP_IOCTL_DEVICE_RESET:
	case NP_IOCTL_DEVICE_INIT:
	case NP_IOCTL_DEVICE_RELEASE:
		return 0;
	case NP_IOCTL_DEVICE_READY:
		return nt_copy_out(user, &ready, sizeof(ready));
	case NP_IOCTL_DEVICE_INFO:
		return nt_device_info(nd, user);
	case NP_IOCTL_HOST_DEVICE_ID:
		return nt_copy_out(user, &nd->node, sizeof(nd->node));
	case NP_IOCTL_NC_RESET:
		return nt_reset_request(file, user);
	case NP_IOCTL_NC_RESET_READY:
		return nt_reset_ready(file, user);
	}

	if (down_read_killable(&nd->reset_lock))
		return -EINTR;
	ret = nd->state == NT_READY ? nt_ioctl_engine(file, cmd, user) : -EIO;
	up_read(&nd->reset_lock);
	return ret == -ENOIOCTLCMD ? nt_ioctl_misc(nd, cmd, user) : ret;
}

/* A write-only open is the "misc" one of the real driver: no engine, no waiting. */
static bool nt_is_misc(const struct file *filp)
{
	return (filp->f_flags & O_ACCMODE) == O_WRONLY;
}

static long nt_ioctl(struct file *filp, unsigned int cmd, unsigned long arg)
{
	struct nt_file *file = filp->private_data;
	struct nt_dev *nd = file->nd;
	long ret = -ENODEV;

	down_read(&nd->life);
	if (!nd->gone)
		ret = nt_is_misc(filp) ? nt_ioctl_misc(nd, cmd, (void __user *)arg) :
					 nt_ioctl_attached(file, cmd, (void __user *)arg);
	up_read(&nd->life);
	return ret;
}

static int nt_open(struct inode *inode, struct file *filp)
{
	struct nt_dev *nd = container_of(inode->i_cdev, struct nt_dev, cdev);
	struct nt_file *file;
	int ret;

	if (!nt_is_misc(filp)) {
		ret = wait_event_killable(nd->state_wait,
					  READ_ONCE(nd->state) != NT_RESETTING || READ_ONCE(nd->dying));
		if (ret)
			return ret;
		if (READ_ONCE(nd->state) != NT_READY)
			return -EINVAL;
	}
	file = kzalloc(sizeof(*file), GFP_KERNEL);
	if (!file)
		return -ENOMEM;
	get_device(&nd->dev);
	file->nd = nd;
	mutex_init(&file->lock);
	INIT_LIST_HEAD(&file->chunks);
	filp->private_data = file;
	WRITE_ONCE(nd->mapping, inode->i_mapping);
	return nonseekable_open(inode, filp);
}

static int nt_release(struct inode *inode, struct file *filp)
{
	struct nt_file *file = filp->private_data;
	struct nt_dev *nd = file->nd;

	if (file->reset)
		nt_reset_wait(file->reset);
	if (!nt_is_misc(filp))
		nt_async_drain(file);
	down_read(&nd->life);
	down_read(&nd->reset_lock);
	/* Nothing of this file is in flight or programmed when its memory goes. */
	nt_copy_async_drain(file);
	nt_h2t_release_owned(file);
	nt_queue_release_owned(file);
	nt_notifications_release(file);
	up_read(&nd->reset_lock);
	if (file->bounce)
		nt_chunk_put(file->bounce);
	nt_file_free_chunks(file);
	up_read(&nd->life);
	kfree(file);
	put_device(&nd->dev);
	return 0;
}

static void nt_vma_open(struct vm_area_struct *vma)
{
	struct nt_chunk *chunk = vma->vm_private_data;

	kref_get(&chunk->ref);
}

static void nt_vma_close(struct vm_area_struct *vma)
{
	nt_chunk_put(vma->vm_private_data);
}

static const struct vm_operations_struct nt_vm_ops = {
	.open = nt_vma_open,
	.close = nt_vma_close,
};

/* Guest RAM of a chunk, by the offset that the chunk's owner was told. A mapping holds the chunk. */
static int nt_mmap(struct file *filp, struct vm_area_struct *vma)
{
	struct nt_file *file = filp->private_data;
	struct nt_dev *nd = file->nd;
	u64 address = (u64)vma->vm_pgoff << PAGE_SHIFT, size = vma->vm_end - vma->vm_start;
	struct nt_chunk *chunk;
	int ret = -ENODEV;

	if (nt_is_misc(filp))
		return -EACCES;
	/* Not killable and not waiting for more than an entry: removal takes mappings away under the writer's side. */
	if (!down_read_trylock(&nd->life))
		return -EAGAIN;
	if (nd->gone)
		goto unlock;
	ret = -EINVAL;
	chunk = nt_is_host_address(nd, address) ? nt_chunk_find_host(nd, address, size) : NULL;
	if (!chunk)
		goto unlock;
	vma->vm_pgoff = (address - chunk->address) >> PAGE_SHIFT;
	ret = dma_mmap_coherent(&nd->pdev->dev, vma, chunk->va, chunk->dma, chunk->size);
	vma->vm_pgoff = address >> PAGE_SHIFT;
	if (ret) {
		nt_chunk_put(chunk);
		goto unlock;
	}
	vma->vm_private_data = chunk;
	vma->vm_ops = &nt_vm_ops;
unlock:
	up_read(&nd->life);
	return ret;
}

static const struct file_operations nt_fops = {
	.owner = THIS_MODULE,
	.open = nt_open,
	.release = nt_release,
	.unlocked_ioctl = nt_ioctl,
	.mmap = nt_mmap,
	.compat_ioctl = compat_ptr_ioctl,
};

static ssize_t reset_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct nt_dev *nd = container_of(dev, struct nt_dev, dev);

	return sysfs_emit(buf, "%d\n", READ_ONCE(nd->state));
}

/* Another try after a reset that failed, without removing the driver. */
static ssize_t reset_store(struct device *dev, struct device_attribute *attr, const char *buf, size_t count)
{
	struct nt_dev *nd = container_of(dev, struct nt_dev, dev);
	struct nt_reset *reset;
	ssize_t ret = -ENODEV;

	down_read(&nd->life);
	if (!nd->gone && !READ_ONCE(nd->dying)) {
		reset = nt_reset_start(nd, NP_NC_MAP_DEVICE, true);
		ret = IS_ERR(reset) ? PTR_ERR(reset) : count;
	}
	up_read(&nd->life);
	return ret;
}
static DEVICE_ATTR_RW(reset);

static struct attribute *nt_attrs[] = {
	&dev_attr_reset.attr,
	NULL,
};
ATTRIBUTE_GROUPS(nt);

static void nt_dev_release(struct device *dev)
{
	struct nt_dev *nd = container_of(dev, struct nt_dev, dev);

	xa_destroy(&nd->handles);
	pci_dev_put(nd->pdev);
	kfree(nd);
}

struct nt_dev *nt_dev_alloc(struct pci_dev *pdev)
{
	struct nt_dev *nd = kzalloc(sizeof(*nd), GFP_KERNEL);

	if (!nd)
		return NULL;
	nd->pdev = pci_dev_get(pdev);
	init_rwsem(&nd->life);
	init_rwsem(&nd->reset_lock);
	init_waitqueue_head(&nd->state_wait);
	spin_lock_init(&nd->reset_list_lock);
	INIT_LIST_HEAD(&nd->reset_list);
	mutex_init(&nd->alloc_lock);
	INIT_LIST_HEAD(&nd->chunks);
	xa_init_flags(&nd->handles, XA_FLAGS_ALLOC1);
	mutex_init(&nd->memset_lock);
	mutex_init(&nd->mailbox.lock);
	mutex_init(&nd->notification_lock);
	INIT_LIST_HEAD(&nd->notifications);
	device_initialize(&nd->dev);
	nd->dev.class = nt_class;
	nd->dev.parent = &pdev->dev;
	nd->dev.groups = nt_groups;
	nd->dev.release = nt_dev_release;
	return nd;
}

int nt_cdev_add(struct nt_dev *nd)
{
	int ret;

	mutex_lock(&nt_nodes_lock);
	if (nt_nodes[nd->node]) {
		mutex_unlock(&nt_nodes_lock);
		dev_err(&nd->pdev->dev, "neuron%u exists: two devices have the same routing id\n", nd->node);
		return -EEXIST;
	}
	nt_nodes[nd->node] = nd;
	mutex_unlock(&nt_nodes_lock);

	cdev_init(&nd->cdev, &nt_fops);
	nd->cdev.owner = THIS_MODULE;
	nd->dev.devt = MKDEV(MAJOR(nt_first), nd->node);
	ret = dev_set_name(&nd->dev, "neuron%u", nd->node);
	if (!ret)
		ret = cdev_device_add(&nd->cdev, &nd->dev);
	if (ret) {
		mutex_lock(&nt_nodes_lock);
		nt_nodes[nd->node] = NULL;
		mutex_unlock(&nt_nodes_lock);
	}
	return ret;
}

void nt_cdev_del(struct nt_dev *nd)
{
	cdev_device_del(&nd->cdev, &nd->dev);
	mutex_lock(&nt_nodes_lock);
	nt_nodes[nd->node] = NULL;
	mutex_unlock(&nt_nodes_lock);
}

int nt_cdev_init(void)
{
	int ret = alloc_chrdev_region(&nt_first, 0, NT_MAX_DEVICES, "neuron");

	if (ret)
		return ret;
	/* The real driver's class name: programs look there. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 4, 0)
	nt_class = class_create("neuron_device");
#else
	nt_class = class_create(THIS_MODULE, "neuron_device");
#endif
	if (IS_ERR(nt_class)) {
		unregister_chrdev_region(nt_first, NT_MAX_DEVICES);
		return PTR_ERR(nt_class);
	}
	return 0;
}

void nt_cdev_exit(void)
{
	class_destroy(nt_class);
	unregister_chrdev_region(nt_first, NT_MAX_DEVICES);
}
