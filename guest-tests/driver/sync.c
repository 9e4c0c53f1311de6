// SPDX-License-Identifier: GPL-2.0
/*
 * What user space does to registers: semaphores and events of a core, gated
 * access to the register window, notification queues.
 */
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "neuron_test.h"

#define NT_MAX_REGISTERS 4096

static int nt_core_base(struct nt_dev *nd, u32 core, void __iomem **base)
{
	u32 offset;

	if (core >= nd->gen->cores)
		return -E2BIG;
	if (nt_block_base(nd->gen, NP_BLOCK_CORE_TILE, core, &offset))
		return -EINVAL;
	*base = nd->regs + offset + NP_SEMAPHORE_CORE_OFFSET;
	return 0;
}

static int nt_semaphore(struct nt_dev *nd, unsigned int cmd, void __user *user)
{
	struct np_semaphore arg;
	void __iomem *base;
	int ret;

	if (copy_from_user(&arg, user, sizeof(arg)))
		return -EFAULT;
	ret = nt_core_base(nd, arg.nc_id, &base);
	if (ret)
		return ret;
	if (arg.semaphore_index >= NP_SEMAPHORE_COUNT)
		return -EINVAL;
	base += 4 * arg.semaphore_index;
	switch (cmd) {
	case NP_IOCTL_SEMAPHORE_INCREMENT:
		writel(arg.value, base + NP_SEMAPHORE_INCREMENT);
		return 0;
	case NP_IOCTL_SEMAPHORE_DECREMENT:
		writel(arg.value, base + NP_SEMAPHORE_DECREMENT);
		return 0;
	case NP_IOCTL_SEMAPHORE_WRITE:
		writel(arg.value, base + NP_SEMAPHORE_SET);
		return 0;
	default:
		arg.value = readl(base + NP_SEMAPHORE_READ);
		return copy_to_user(user, &arg, sizeof(arg)) ? -EFAULT : 0;
	}
}

static int nt_event(struct nt_dev *nd, unsigned int cmd, void __user *user)
{
	struct np_event arg;
	void __iomem *base;
	int ret;

	if (copy_from_user(&arg, user, sizeof(arg)))
		return -EFAULT;
	ret = nt_core_base(nd, arg.nc_id, &base);
	if (ret)
		return ret;
	if (arg.event_index >= NP_SEMAPHORE_COUNT)
		return -EINVAL;
	base += 4 * arg.event_index;
	if (cmd == NP_IOCTL_EVENT_SET) {
		writel(arg.value, base);
		return 0;
	}
	arg.value = readl(base);
	return copy_to_user(user, &arg, sizeof(arg)) ? -EFAULT : 0;
}

/*
 * Turns what user space calls an address into an offset in the window:
 * DEVICE_INFO's base plus the offset, or the bare offset. A BAR is aligned to
 * its size, so that the two cannot be mistaken for each other.
 */
static int nt_register_offset(struct nt_dev *nd, u64 address, u64 *offset)
{
	u64 base = pci_resource_start(nd->pdev, nd->register_bar);

	*offset = address >= base ? address - base : address;
	if (*offset % 4 || *offset > nd->regs_size - 4)
		return -EINVAL;
	return 0;
}

static int nt_bar_rw(struct nt_dev *nd, bool write, void __user *user)
{
	struct np_bar_rw arg;
	u64 *addresses;
	u32 *values = NULL;
	int ret = 0;
	u32 i;

	if (copy_from_user(&arg, user, sizeof(arg)))
		return -EFAULT;
	if (arg.bar || !arg.count || arg.count > NT_MAX_REGISTERS)
		return -EINVAL;
	addresses = memdup_user(u64_to_user_ptr(arg.address), arg.count * sizeof(*addresses));
	if (IS_ERR(addresses))
		return PTR_ERR(addresses);
	/* All are judged before the first is touched: a refused request leaves no trace. */
	for (i = 0; i < arg.count && !ret; i++) {
		ret = nt_register_offset(nd, addresses[i], &addresses[i]);
		if (!ret && write && nt_write_is_gated(nd, addresses[i]))
			ret = -EINVAL;
	}
	if (ret)
		goto free;

	if (write) {
		values = memdup_user(u64_to_user_ptr(arg.data), arg.count * sizeof(*values));
		if (IS_ERR(values)) {
			ret = PTR_ERR(values);
			values = NULL;
			goto free;
		}
		for (i = 0; i < arg.count; i++)
			writel(values[i], nd->regs + addresses[i]);
		goto free;
	}
	values = kcalloc(arg.count, sizeof(*values), GFP_KERNEL);
	if (!values) {
		ret = -ENOMEM;
		goto free;
	}
	for (i = 0; i < arg.count; i++)
		values[i] = readl(nd->regs + addresses[i]);
	if (copy_to_user(u64_to_user_ptr(arg.data), values, arg.count * sizeof(*values)))
		ret = -EFAULT;
free:
	kfree(values);
	kfree(addresses);
	return ret;
}

/* A notification queue that the device writes to. */
struct nt_notification {
	struct list_head link;
	void __iomem *regs;
	struct nt_chunk *chunk;
	struct nt_file *owner;
};

/* High, low, size: the size is what starts the queue, and 0 stops it. */
static void nt_notification_program(void __iomem *regs, u64 address, u32 size)
{
	writel(upper_32_bits(address), regs + NP_NQ_BASE_HIGH);
	writel(lower_32_bits(address), regs + NP_NQ_BASE_LOW);
	writel(size, regs + NP_NQ_SIZE);
}

static int nt_notification_regs(struct nt_dev *nd, const struct np_notifications_init_v2 *arg, void __iomem **regs)
{
	enum np_block block = arg->nq_dev_type ? NP_BLOCK_TOP_SP_NOTIFICATION : NP_BLOCK_CORE_NOTIFICATION;
	u32 index = arg->nq_dev_id, queue = arg->engine_index, base;

	if (arg->nq_dev_type > 1 || queue >= NP_NQ_COUNT)
		return -EINVAL;
	if (arg->nq_type == NP_NQ_TYPE_TRACE_DMA) {
		/* Each engine has its own block, with one queue that is used. */
		if (arg->nq_dev_type || index >= nd->gen->cores)
			return -EINVAL;
		block = NP_BLOCK_SDMA_NOTIFICATION;
		index = index * nd->gen->engines_per_core + queue;
		queue = 0;
	}
	if (nt_block_base(nd->gen, block, index, &base))
		return -EINVAL;
	*regs = nd->regs + base + NP_NQ_QUEUES + NP_NQ_STRIDE * queue;
	return 0;
}

static int nt_notifications_init(struct nt_file *file, void __user *user)
{
	struct nt_dev *nd = file->nd;
	struct np_notifications_init_v2 arg;
	struct nt_notification *nq, *old;
	struct nt_chunk *drop = NULL;
	void __iomem *regs;
	int ret;

	if (copy_from_user(&arg, user, sizeof(arg)))
		return -EFAULT;
	ret = nt_notification_regs(nd, &arg, &regs);
	if (ret)
		return ret;
	if (!is_power_of_2(arg.size))
		return -EINVAL;
	nq = kzalloc(sizeof(*nq), GFP_KERNEL);
	if (!nq)
		return -ENOMEM;
	nq->regs = regs;
	nq->owner = file;
	nq->chunk = nt_chunk_alloc(nd, file, arg.size, 0, arg.on_host_memory, arg.dram_channel,
				   arg.nq_dev_type ? 0 : arg.nq_dev_id);
	if (IS_ERR(nq->chunk)) {
		ret = PTR_ERR(nq->chunk);
		kfree(nq);
		return ret;
	}
	ret = nt_chunk_publish(nq->chunk);
	if (ret) {
		nt_chunk_put(nq->chunk);
		kfree(nq);
		return ret;
	}
	/* The table has a reference, the queue another: freeing the handle does not pull memory from the device. */
	kref_get(&nq->chunk->ref);
	arg.mem_handle = nq->chunk->handle;
	arg.mmap_offset = nq->chunk->address;

	mutex_lock(&nd->notification_lock);
	list_for_each_entry(old, &nd->notifications, link) {
		if (old->regs != regs)
			continue;
		if (old->owner != file) {
			ret = -EBUSY;
			break;
		}
		list_del(&old->link);
		drop = old->chunk;
		kfree(old);
		break;
	}
	if (!ret) {
		nt_notification_program(regs, nq->chunk->address, arg.size);
		readl(regs + NP_NQ_SIZE);
		list_add(&nq->link, &nd->notifications);
	}
	mutex_unlock(&nd->notification_lock);
	if (drop)
		nt_chunk_put(drop);
	if (ret) {
		nt_chunk_put(nq->chunk);
		nt_chunk_free_handle(file, arg.mem_handle);
		kfree(nq);
		return ret;
	}
	return copy_to_user(user, &arg, sizeof(arg)) ? -EFAULT : 0;
}

void nt_notifications_release(struct nt_file *file)
{
	struct nt_dev *nd = file->nd;
	struct nt_notification *nq, *next;
	LIST_HEAD(mine);

	mutex_lock(&nd->notification_lock);
	list_for_each_entry_safe(nq, next, &nd->notifications, link) {
		if (nq->owner != file)
			continue;
		if (!nd->gone) {
			nt_notification_program(nq->regs, 0, 0);
			readl(nq->regs + NP_NQ_SIZE);
		}
		list_move(&nq->link, &mine);
	}
	mutex_unlock(&nd->notification_lock);
	list_for_each_entry_safe(nq, next, &mine, link) {
		nt_chunk_put(nq->chunk);
		kfree(nq);
	}
}

static int nt_read_counters(struct nt_dev *nd, void __user *user)
{
	struct np_read_hw_counters arg;
	u64 *addresses;
	u32 *values;
	int ret;

	if (copy_from_user(&arg, user, sizeof(arg)))
		return -EFAULT;
	if (!arg.count || arg.count > NP_MAILBOX_MAX_READ)
		return -EINVAL;
	addresses = memdup_user(u64_to_user_ptr(arg.address), arg.count * sizeof(*addresses));
	if (IS_ERR(addresses))
		return PTR_ERR(addresses);
	values = kcalloc(arg.count, sizeof(*values), GFP_KERNEL);
	ret = values ? nt_mailbox_read(nd, addresses, values, arg.count) : -ENOMEM;
	if (!ret && copy_to_user(u64_to_user_ptr(arg.data), values, arg.count * sizeof(*values)))
		ret = -EFAULT;
	kfree(values);
	kfree(addresses);
	return ret;
}

static int nt_post_metric(struct nt_dev *nd, void __user *user)
{
	struct np_post_metric arg;
	u8 data[NP_MISC_DATA_SIZE] = {};

	if (copy_from_user(&arg, user, sizeof(arg)))
		return -EFAULT;
	if (!arg.data_size || arg.data_size > sizeof(data))
		return -EINVAL;
	if (copy_from_user(data, u64_to_user_ptr(arg.data), arg.data_size))
		return -EFAULT;
	return nt_mailbox_post(nd, data, arg.data_size);
}

/* nt_ioctl_sync - requests on registers; -ENOIOCTLCMD for others */
long nt_ioctl_sync(struct nt_file *file, unsigned int cmd, void __user *user)
{
	struct nt_dev *nd = file->nd;

	switch (cmd) {
	case NP_IOCTL_SEMAPHORE_INCREMENT:
	case NP_IOCTL_SEMAPHORE_DECREMENT:
	case NP_IOCTL_SEMAPHORE_READ:
	case NP_IOCTL_SEMAPHORE_WRITE:
		return nt_semaphore(nd, cmd, user);
	case NP_IOCTL_EVENT_SET:
	case NP_IOCTL_EVENT_GET:
		return nt_event(nd, cmd, user);
	case NP_IOCTL_BAR_READ:
		return nt_bar_rw(nd, false, user);
	case NP_IOCTL_BAR_WRITE:
		return nt_bar_rw(nd, true, user);
	case NP_IOCTL_NOTIFICATIONS_INIT_V2:
		return nt_notifications_init(file, user);
	case NP_IOCTL_READ_HW_COUNTERS:
		return nt_read_counters(nd, user);
	case NP_IOCTL_POST_METRIC:
		return nt_post_metric(nd, user);
	default:
		return -ENOIOCTLCMD;
	}
}
