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

static dev_t nt_first;
static struct class *nt_class;
static DEFINE_MUTEX(nt_nodes_lock);
static struct nt_dev *nt_nodes[NT_MAX_DEVICES];

/* Where node @node is on the bus. */
int nt_cdev_bdf(u32 node, struct np_device_bdf_ext *bdf)
{
	struct nt_dev *nd;
	int ret = -ENODEV;

	if (node >= NT_MAX_DEVICES)
		return -EINVAL;
	mutex_lock(&nt_nodes_lock);
	nd = nt_nodes[node];
	if (nd) {
		bdf->domain = pci_domain_nr(nd->pdev->bus);
		bdf->bus_number = nd->pdev->bus->number;
		bdf->slot = PCI_SLOT(nd->pdev->devfn);
		bdf->func = PCI_FUNC(nd->pdev->devfn);
		ret = 0;
	}
	mutex_unlock(&nt_nodes_lock);
	return ret;
}

/* Requests that use engines or registers; a reset keeps them out. */
static long nt_ioctl_engine(struct nt_file *file, unsigned int cmd, void __user *user)
{
	long (*const handlers[])(struct nt_file *, unsigned int, void __user *) = {
		nt_ioctl_alloc, nt_ioctl_copy, nt_ioctl_queue, nt_ioctl_sync,
	};
	long ret = -ENOIOCTLCMD;
	u32 i;

	for (i = 0; i < ARRAY_SIZE(handlers) && ret == -ENOIOCTLCMD; i++)
		ret = handlers[i](file, cmd, user);
	return ret;
}

static long nt_ioctl_attached(struct nt_file *file, unsigned int cmd, void __user *user)
{
	struct nt_dev *nd = file->nd;
	long ret = nt_ioctl_device(file, cmd, user);

	if (ret != -ENOIOCTLCMD)
		return ret;
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
	nt_async_release(file);
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

static ssize_t interrupts_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct nt_dev *nd = container_of(dev, struct nt_dev, dev);

	return sysfs_emit(buf, "%d\n", atomic_read(&nd->interrupts));
}
static DEVICE_ATTR_RO(interrupts);

static struct attribute *nt_attrs[] = {
	&dev_attr_reset.attr,
	&dev_attr_interrupts.attr,
	NULL,
};

/* Only a device that has interrupts counts them. */
static umode_t nt_attr_mode(struct kobject *kobj, struct attribute *attr, int n)
{
	struct nt_dev *nd = container_of(kobj_to_dev(kobj), struct nt_dev, dev);

	return attr == &dev_attr_interrupts.attr && !nd->irq_engine ? 0 : attr->mode;
}

static const struct attribute_group nt_group = {
	.attrs = nt_attrs,
	.is_visible = nt_attr_mode,
};
__ATTRIBUTE_GROUPS(nt);

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
	init_waitqueue_head(&nd->async_wait);
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
