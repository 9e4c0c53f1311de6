// SPDX-License-Identifier: GPL-2.0
/*
 * Interrupts, where a device has MSI-X: the real driver uses none, and nothing
 * here waits for one. The markers of core 0's own ring ask for one, and they
 * are counted, so that a test can see the whole way from a descriptor to a CPU.
 */
#include <linux/interrupt.h>

#include "neuron_test.h"

static irqreturn_t nt_irq(int irq, void *data)
{
	struct nt_dev *nd = data;
	void __iomem *group = nd->irq_engine->udma + NP_IOFIC_RX;
	u32 cause = readl(group + NP_IOFIC_CAUSE);

	if (!cause)
		return IRQ_NONE;
	/* Zeros clear. One that comes in between latches anew and interrupts again. */
	writel(~cause, group + NP_IOFIC_CAUSE);
	atomic_inc(&nd->interrupts);
	return IRQ_HANDLED;
}

/* The vector of an engine is the one of its number. */
int nt_irq_init(struct nt_dev *nd)
{
	struct nt_engine *engine = nt_h2t_engine(nd, 0);
	struct msix_entry entry = { .entry = engine->index };
	int ret;

	if (pci_msix_vec_count(nd->pdev) <= (int)engine->index)
		return 0;
	ret = pci_enable_msix_exact(nd->pdev, &entry, 1);
	if (ret)
		return ret;
	nd->irq = entry.vector;
	nd->irq_engine = engine;
	ret = request_irq(nd->irq, nt_irq, 0, NT_NAME, nd);
	if (ret) {
		nd->irq_engine = NULL;
		pci_disable_msix(nd->pdev);
	}
	return ret;
}

/* Late enough that no interrupt is needed, early enough that its registers are there. */
void nt_irq_exit(struct nt_dev *nd)
{
	if (!nd->irq_engine)
		return;
	free_irq(nd->irq, nd);
	pci_disable_msix(nd->pdev);
	nd->irq_engine = NULL;
}
