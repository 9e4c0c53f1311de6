// SPDX-License-Identifier: GPL-2.0
/*
 * Probe and removal. What a device is comes from its PCI device id, where it
 * runs from its revision id, and which node it becomes from its routing id.
 */
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/module.h>

#include "neuron_test.h"

#define NT_NOT_READY 0xdeadbeef
#define NT_ID_TRIES 100

static const struct pci_device_id nt_ids[] = {
	NP_PCI_IDS(PCI_DEVICE),
	{}
};
/* No MODULE_DEVICE_TABLE: a test loads one driver or the other, never udev. */

static enum nt_platform nt_platform(u8 revision)
{
	switch (revision) {
	case NP_REVISION_QEMU:
		return NT_QEMU;
	case NP_REVISION_EMULATOR:
		return NT_EMULATOR;
	default:
		return NT_SILICON;
	}
}

/*
 * The register window is BAR0. On the qemu platform V2's is BAR2, and devices
 * that serve older drivers show the same window as both.
 */
static int nt_map_registers(struct nt_dev *nd)
{
	struct pci_dev *pdev = nd->pdev;
	int bar = NT_BAR_REGISTERS;

	if (nd->platform == NT_QEMU && nd->values->qemu_register_bar != bar && pci_resource_len(pdev, nd->values->qemu_register_bar))
		bar = nd->values->qemu_register_bar;
	nd->register_bar = bar;
	nd->regs_size = pci_resource_len(pdev, bar);
	if (nd->regs_size < nd->gen->register_bar_size || !pci_resource_start(pdev, bar)) {
		dev_err(&pdev->dev, "BAR%d is %#llx bytes at %#llx, need %#llx: not placed by the firmware?\n", bar,
			nd->regs_size, (u64)pci_resource_start(pdev, bar), nd->gen->register_bar_size);
		return -ENODEV;
	}
	if (!pci_resource_len(pdev, NT_BAR_HBM) || !pci_resource_start(pdev, NT_BAR_HBM)) {
		dev_err(&pdev->dev, "no BAR%d: not placed by the firmware? (guest physical address bits)\n", NT_BAR_HBM);
		return -ENODEV;
	}
	nd->regs_size = nd->gen->register_bar_size;
	nd->regs = pci_iomap(pdev, bar, nd->gen->register_bar_size);
	return nd->regs ? 0 : -ENOMEM;
}

static int nt_read_node(struct nt_dev *nd)
{
	u32 id = NT_NOT_READY, try;
	int node;

	for (try = 0; try < NT_ID_TRIES && id == NT_NOT_READY; try++) {
		if (try)
			msleep(100);
		id = nt_misc_read(nd, NP_MISC_ROUTING_ID);
	}
	node = nt_node(nd->product, id);
	if (node < 0) {
		dev_err(&nd->pdev->dev, "routing id %#x: need 0 to %d (is the device's server gone?)\n", id,
			NT_MAX_DEVICES - 1);
		return node;
	}
	nd->node = node;
	return 0;
}

static void nt_teardown(struct nt_dev *nd)
{
	WRITE_ONCE(nd->dying, true);
	wake_up_all(&nd->state_wait);

	/* Every entry that did not see this yet has left after this; so no asynchronous copy is added any more. */
	down_write(&nd->life);
	up_write(&nd->life);
	if (nd->async_queue)
		destroy_workqueue(nd->async_queue);
	nd->async_queue = NULL;

	/* Polls and handshakes give up soon; nobody enters after this. */
	down_write(&nd->life);
	nd->gone = true;
	/* Nobody looks at memory that goes: the next touch is a SIGBUS. */
	if (nd->mapping)
		unmap_mapping_range(nd->mapping, 0, 0, 1);
	nt_reset_exit(nd);
	pci_clear_master(nd->pdev);
	nt_irq_exit(nd);
	nt_h2t_free(nd);
	nt_mailbox_exit(nd);
	nt_mem_exit(nd);
	nt_engines_free(nd);
	if (nd->regs)
		pci_iounmap(nd->pdev, nd->regs);
	nd->regs = NULL;
	up_write(&nd->life);
}

static int nt_setup(struct nt_dev *nd)
{
	int ret = nt_map_registers(nd);

	nd->async_queue = alloc_workqueue("neuron_async", WQ_UNBOUND, 0);
	if (!ret && !nd->async_queue)
		ret = -ENOMEM;

	if (!ret)
		ret = nt_read_node(nd);
	if (!ret)
		ret = nt_engines_alloc(nd);
	if (!ret)
		ret = nt_mem_init(nd);
	if (!ret)
		ret = nt_h2t_alloc(nd);
	if (!ret)
		ret = nt_irq_init(nd);
	if (!ret)
		ret = nt_mailbox_init(nd);
	if (!ret)
		ret = nt_reset_init(nd);
	return ret;
}

static int nt_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	const struct np_product *product = nt_product(id->device);
	struct nt_reset *reset;
	struct nt_dev *nd;
	int ret;

	if (!product)
		return -ENODEV;
	nd = nt_dev_alloc(pdev);
	if (!nd)
		return -ENOMEM;
	nd->product = product;
	nd->gen = nt_generation(product);
	nd->values = nt_values(nd->gen);
	nd->platform = nt_platform(pdev->revision);
	pci_set_drvdata(pdev, nd);

	ret = pci_enable_device(pdev);
	if (ret)
		goto put;
	ret = pci_request_regions(pdev, NT_NAME);
	if (ret)
		goto disable;
	ret = dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(64));
	if (ret)
		goto regions;
	pci_set_master(pdev);
	ret = nt_setup(nd);
	if (ret)
		goto teardown;
	ret = nt_cdev_add(nd);
	if (ret)
		goto teardown;
	dev_info(&nd->dev, "%s, %s, revision %#x, BAR%d\n", product->name, nd->gen->name, pdev->revision, nd->register_bar);

	/* The node exists at once; opens wait for the end of the first reset. */
	reset = nt_reset_start(nd, NP_NC_MAP_DEVICE, true);
	if (IS_ERR(reset)) {
		ret = PTR_ERR(reset);
		nt_cdev_del(nd);
		goto teardown;
	}
	return 0;

teardown:
	nt_teardown(nd);
regions:
	pci_release_regions(pdev);
disable:
	pci_disable_device(pdev);
put:
	put_device(&nd->dev);
	return ret;
}

static void nt_remove(struct pci_dev *pdev)
{
	struct nt_dev *nd = pci_get_drvdata(pdev);

	nt_cdev_del(nd);
	nt_teardown(nd);
	pci_release_regions(pdev);
	pci_disable_device(pdev);
	put_device(&nd->dev);
}

static struct pci_driver nt_driver = {
	.name = NT_NAME,
	.id_table = nt_ids,
	.probe = nt_probe,
	.remove = nt_remove,
};

static int __init nt_init(void)
{
	int ret = nt_cdev_init();

	if (ret)
		return ret;
	ret = pci_register_driver(&nt_driver);
	if (ret)
		nt_cdev_exit();
	return ret;
}

static void __exit nt_exit(void)
{
	pci_unregister_driver(&nt_driver);
	nt_cdev_exit();
}

module_init(nt_init);
module_exit(nt_exit);
MODULE_LICENSE("GPL");
MODULE_VERSION("0.1.0");
MODULE_DESCRIPTION("Test driver for the AWS Neuron PCI functions");
