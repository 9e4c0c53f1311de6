// SPDX-License-Identifier: GPL-2.0
/*
 * Requests about the device itself: what it is, where it is, resets.
 */
#include <linux/uaccess.h>

#include "neuron_test.h"

/* What the runtime asks for before it believes in a driver; see neuron_protocol.h's sources. */
#define NT_FEATURES (NP_FEATURE_ASYNC_DMA | NP_FEATURE_BATCH_DMAQ_INIT | NP_FEATURE_MEM_ALLOC_TYPE | \
		     NP_FEATURE_MEM_ALLOC64 | NP_FEATURE_ZEROCOPY)

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
	int ret;

	if (copy_from_user(&bdf, user, sizeof(bdf)))
		return -EFAULT;
	ret = nt_cdev_bdf(bdf.nd_index, &bdf);
	return ret ? ret : nt_copy_out(user, &bdf, sizeof(bdf));
}

/* nt_ioctl_misc - requests that need no engine and work during a reset, on any open. */
long nt_ioctl_misc(struct nt_dev *nd, unsigned int cmd, void __user *user)
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

/* nt_ioctl_device - requests that a reset does not keep out; -ENOIOCTLCMD for others */
long nt_ioctl_device(struct nt_file *file, unsigned int cmd, void __user *user)
{
	struct nt_dev *nd = file->nd;
	u8 ready = 1;

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
	default:
		return -ENOIOCTLCMD;
	}
}
