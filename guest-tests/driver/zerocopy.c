// SPDX-License-Identifier: GPL-2.0
/*
 * Copies straight between user pages and the device: pages are pinned in
 * windows of 64, two windows in flight, each with its own marker. Runs of
 * contiguous pages become one descriptor.
 */
#include <linux/dma-mapping.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "neuron_test.h"

void nt_window_unpin(struct nt_dev *nd, struct nt_window *window, bool to_device)
{
	enum dma_data_direction dir = to_device ? DMA_TO_DEVICE : DMA_FROM_DEVICE;
	u32 i;

	for (i = 0; i < window->mapped; i++)
		dma_unmap_page(&nd->pdev->dev, window->dma[i], PAGE_SIZE, dir);
	unpin_user_pages_dirty_lock(window->pages, window->pinned, !to_device);
	window->mapped = 0;
	window->pinned = 0;
}

int nt_window_pin(struct nt_dev *nd, struct nt_window *window, u64 buffer, u64 size, bool to_device)
{
	enum dma_data_direction dir = to_device ? DMA_TO_DEVICE : DMA_FROM_DEVICE;
	u64 offset = offset_in_page(buffer);
	u32 pages = min_t(u64, DIV_ROUND_UP(offset + size, PAGE_SIZE), NT_WINDOW_PAGES);
	int ret;

	window->buffer = buffer;
	window->bytes = min_t(u64, size, (u64)pages * PAGE_SIZE - offset);
	ret = pin_user_pages_fast(buffer & PAGE_MASK, pages, to_device ? 0 : FOLL_WRITE, window->pages);
	if (ret < 0)
		return ret;
	window->pinned = ret;
	if (window->pinned < pages) {
		nt_window_unpin(nd, window, to_device);
		return -EFAULT;
	}
	for (; window->mapped < pages; window->mapped++) {
		u32 i = window->mapped;

		window->dma[i] = dma_map_page(&nd->pdev->dev, window->pages[i], 0, PAGE_SIZE, dir);
		if (dma_mapping_error(&nd->pdev->dev, window->dma[i])) {
			nt_window_unpin(nd, window, to_device);
			return -EIO;
		}
	}
	return 0;
}

/* Bytes from @done on that are contiguous on the bus, at most one descriptor's. */
static u32 nt_window_run(const struct nt_window *window, u64 done, dma_addr_t *address)
{
	u64 at = offset_in_page(window->buffer) + done;
	u32 page = at >> PAGE_SHIFT;
	u64 run = PAGE_SIZE - offset_in_page(at);

	*address = window->dma[page] + offset_in_page(at);
	while (page + 1 < window->mapped && window->dma[page + 1] == window->dma[page] + PAGE_SIZE) {
		run += PAGE_SIZE;
		page++;
	}
	return min3(run, window->bytes - done, (u64)NP_MAX_DESC_LENGTH);
}

int nt_window_start(struct nt_h2t *h2t, struct nt_context *ctx, struct nt_window *window, u64 device,
		    bool to_device, bool last)
{
	bool sow = h2t->nd->values->strong_order;
	u64 done = 0;
	u32 count = 0;
	int ret = 0;

	while (done < window->bytes && !ret) {
		dma_addr_t page;
		u32 bytes = nt_window_run(window, done, &page);
		u64 host = nt_host_address(h2t->nd, page);
		bool end = done + bytes == window->bytes;

		ret = nt_ring_stage(h2t->queue, to_device ? host : device + done, to_device ? device + done : host,
				    bytes, end && !sow ? NT_BARRIER_WRITE : NT_BARRIER_NONE);
		done += bytes;
		count++;
	}
	/* Where writes can be ordered strongly, the last marker's is: it lands after all data. */
	if (!ret)
		ret = nt_stage_marker(h2t, ctx, sow && last ? NT_BARRIER_SOW : NT_BARRIER_NONE);
	ctx->count = count + 1;
	ctx->ahead = h2t->async.descriptors;
	if (!ret)
		ret = nt_ring_start(h2t->engine, h2t->qid, ctx->count, ctx->count);
	if (ret)
		nt_h2t_reset(h2t);
	else
		ctx->in_use = true;
	return ret;
}

static int nt_window_finish(struct nt_h2t *h2t, struct nt_context *ctx, struct nt_window *window, bool to_device)
{
	int ret = 0;

	if (ctx->in_use)
		ret = nt_wait_marker(h2t, ctx, true);
	ctx->in_use = false;
	ctx->lost = false;
	/* Done, or dropped by a ring reset: either way nothing touches the pages any more. */
	nt_window_unpin(h2t->nd, window, to_device);
	return ret;
}

/* nt_zerocopy - copy between @size bytes at user address @buffer and a device chunk */
int nt_zerocopy(struct nt_h2t *h2t, struct nt_chunk *chunk, u64 offset, u64 buffer, u64 size, bool to_device)
{
	struct nt_dev *nd = h2t->nd;
	struct nt_window *windows;
	u32 i = 0, n;
	int ret = 0, err;

	windows = kcalloc(ARRAY_SIZE(h2t->window), sizeof(*windows), GFP_KERNEL);
	if (!windows)
		return -ENOMEM;
	mutex_lock(&h2t->lock);
	if (h2t->closed)
		ret = -ENOENT;
	while (size && !ret) {
		struct nt_window *window = &windows[i];
		struct nt_context *ctx = &h2t->window[i];

		ret = nt_window_finish(h2t, ctx, window, to_device);
		if (!ret)
			ret = nt_window_pin(nd, window, buffer, size, to_device);
		if (ret)
			break;
		size -= window->bytes;
		ret = nt_window_start(h2t, ctx, window, chunk->address + offset, to_device, !size);
		buffer += window->bytes;
		offset += window->bytes;
		i = (i + 1) % ARRAY_SIZE(h2t->window);
	}
	/* The older window first. */
	for (n = 0; n < ARRAY_SIZE(h2t->window); n++) {
		err = nt_window_finish(h2t, &h2t->window[i], &windows[i], to_device);
		if (!ret)
			ret = err;
		i = (i + 1) % ARRAY_SIZE(h2t->window);
	}
	mutex_unlock(&h2t->lock);
	kfree(windows);
	return ret;
}

/*
 * nt_bar4_write - the short cut for small copies to the device: CPU stores
 *
 * @size is at most two pages, everything 4-byte aligned.
 */
int nt_bar4_write(struct nt_dev *nd, struct nt_chunk *chunk, u64 offset, u64 buffer, u64 size)
{
	u64 address = chunk->address + offset;
	void __iomem *at;
	void *copy;
	u64 bar = 0;
	u32 i;

	for (i = 0; i < nd->gen->hbm_count; i++) {
		struct nt_channel *channel = &nd->channels[i];

		if (address >= channel->base && address - channel->base < channel->size)
			bar = i * nd->hbm_stride + (address - channel->base);
	}
	if (bar + size > pci_resource_len(nd->pdev, NT_BAR_HBM))
		return -EINVAL;
	copy = memdup_user(u64_to_user_ptr(buffer), size);
	if (IS_ERR(copy))
		return PTR_ERR(copy);
	at = ioremap_wc(pci_resource_start(nd->pdev, NT_BAR_HBM) + bar, size);
	if (at) {
		memcpy_toio(at, copy, size);
		/* A doorbell that follows must find the bytes: drain the combining buffers. */
		wmb();
		iounmap(at);
	}
	kfree(copy);
	return at ? 0 : -ENOMEM;
}
