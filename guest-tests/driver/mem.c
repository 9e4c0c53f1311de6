// SPDX-License-Identifier: GPL-2.0
/*
 * Chunks: guest RAM or device memory that descriptors can name, each with a
 * handle that user space sees. Device memory comes in channels; small chunks
 * live in the last GiB of a channel and large ones grow from its start, as with
 * the real driver, since a sparse device backs only what such a driver touches.
 */
#include <linux/dma-mapping.h>
#include <linux/err.h>
#include <linux/slab.h>

#include "neuron_test.h"

#define NT_SMALL_POOL (1ull << 30)
#define NT_SMALL_MAX (512u << 10)
#define NT_CARVE_OUT (16ull << 20)	/* the firmware's, at the start of a channel */
#define NT_MAIN_ORDER 16		/* large chunks are 64 KiB multiples */
/* gen_pool says "none" with address 0, and channels may start there. */
#define NT_POOL_BIAS (1ull << 40)

static void nt_chunk_drop_memory(struct nt_chunk *chunk)
{
	if (chunk->host && chunk->va)
		dma_free_coherent(&chunk->nd->pdev->dev, chunk->size, chunk->va, chunk->dma);
	else if (chunk->pool)
		gen_pool_free(chunk->pool, chunk->pool_address, chunk->size);
	chunk->va = NULL;
	chunk->pool = NULL;
}

static int nt_chunk_from_channel(struct nt_chunk *chunk, struct nt_channel *channel, u64 align)
{
	struct gen_pool *pools[] = { channel->main, channel->small };
	struct genpool_data_align data = { .align = align };
	u32 i;

	if (chunk->size <= NT_SMALL_MAX && channel->small)
		swap(pools[0], pools[1]);
	for (i = 0; i < ARRAY_SIZE(pools); i++) {
		unsigned long address;

		if (!pools[i])
			continue;
		address = align > PAGE_SIZE ?
			gen_pool_alloc_algo(pools[i], chunk->size, gen_pool_first_fit_align, &data) :
			gen_pool_alloc(pools[i], chunk->size);
		if (!address)
			continue;
		chunk->pool = pools[i];
		chunk->pool_address = address;
		chunk->address = channel->base + (address - NT_POOL_BIAS);
		return 0;
	}
	return -ENOMEM;
}

/*
 * nt_chunk_alloc - allocate, zeroed if it is guest RAM
 *
 * Returns a chunk with one reference, or an error pointer: -EINVAL for a
 * request that cannot be met by any state, -ENOMEM for one that cannot now.
 */
struct nt_chunk *nt_chunk_alloc(struct nt_dev *nd, struct nt_file *owner, u64 size, u64 align,
				bool host, u32 channel, u32 core)
{
	struct nt_chunk *chunk;
	int ret = -ENOMEM;

	if (!size || size > S64_MAX - PAGE_SIZE || core >= nd->gen->cores || channel >= nd->gen->hbm_count)
		return ERR_PTR(-EINVAL);
	if (align && (host || !is_power_of_2(align) || align > SZ_1G))
		return ERR_PTR(-EINVAL);

	chunk = kzalloc(sizeof(*chunk), GFP_KERNEL);
	if (!chunk)
		return ERR_PTR(-ENOMEM);
	kref_init(&chunk->ref);
	INIT_LIST_HEAD(&chunk->link);
	chunk->nd = nd;
	chunk->owner = owner;
	chunk->size = PAGE_ALIGN(size);
	chunk->host = host;
	chunk->core = core;
	chunk->pid = task_tgid_nr(current);

	if (host) {
		chunk->va = dma_alloc_coherent(&nd->pdev->dev, chunk->size, &chunk->dma, GFP_KERNEL | __GFP_NOWARN);
		if (chunk->va) {
			chunk->address = nt_host_address(nd, chunk->dma);
			ret = 0;
		}
	} else {
		ret = nt_chunk_from_channel(chunk, &nd->channels[channel], align);
	}
	if (ret) {
		kfree(chunk);
		return ERR_PTR(ret);
	}

	get_device(&nd->dev);
	mutex_lock(&nd->alloc_lock);
	list_add_tail(&chunk->all, &nd->chunks);
	if (owner)
		list_add_tail(&chunk->link, &owner->chunks);
	mutex_unlock(&nd->alloc_lock);
	return chunk;
}

static void nt_chunk_release(struct kref *ref)
{
	struct nt_chunk *chunk = container_of(ref, struct nt_chunk, ref);
	struct nt_dev *nd = chunk->nd;

	mutex_lock(&nd->alloc_lock);
	list_del(&chunk->all);
	list_del(&chunk->link);
	nt_chunk_drop_memory(chunk);
	mutex_unlock(&nd->alloc_lock);
	put_device(&nd->dev);
	kfree(chunk);
}

void nt_chunk_put(struct nt_chunk *chunk)
{
	kref_put(&chunk->ref, nt_chunk_release);
}

void nt_chunk_put_pair(struct nt_chunk *pair[2])
{
	if (pair[0])
		nt_chunk_put(pair[0]);
	if (pair[1])
		nt_chunk_put(pair[1]);
}

/* The 64 KiB that copies of @file from and to user memory go through. Under file->lock. */
struct nt_chunk *nt_bounce(struct nt_file *file)
{
	if (!file->bounce) {
		struct nt_chunk *chunk = nt_chunk_alloc(file->nd, NULL, NP_MAX_DESC_LENGTH, 0, true, 0, 0);

		if (IS_ERR(chunk))
			return chunk;
		file->bounce = chunk;
	}
	return file->bounce;
}

/* Gives user space a name for it; the table holds the caller's reference from here on. */
int nt_chunk_publish(struct nt_chunk *chunk)
{
	return xa_alloc(&chunk->nd->handles, &chunk->handle, chunk, XA_LIMIT(1, INT_MAX), GFP_KERNEL);
}

struct nt_chunk *nt_chunk_get(struct nt_dev *nd, u64 handle)
{
	struct nt_chunk *chunk = NULL;

	if (!handle || handle > INT_MAX)
		return NULL;
	xa_lock(&nd->handles);
	chunk = xa_load(&nd->handles, (unsigned long)handle);
	/* The table's own reference is dropped only after the entry is gone. */
	if (chunk)
		kref_get(&chunk->ref);
	xa_unlock(&nd->handles);
	return chunk;
}

/* Any process may free by handle, as with the real driver. */
int nt_chunk_free_handle(struct nt_file *file, u64 handle)
{
	struct nt_dev *nd = file->nd;
	struct nt_chunk *chunk;

	if (!handle || handle > INT_MAX)
		return -EINVAL;
	chunk = xa_erase(&nd->handles, (unsigned long)handle);
	if (!chunk)
		return -EINVAL;
	mutex_lock(&nd->alloc_lock);
	list_del_init(&chunk->link);
	mutex_unlock(&nd->alloc_lock);
	nt_chunk_put(chunk);
	return 0;
}

void nt_file_free_chunks(struct nt_file *file)
{
	struct nt_dev *nd = file->nd;

	for (;;) {
		struct nt_chunk *chunk;

		mutex_lock(&nd->alloc_lock);
		chunk = list_first_entry_or_null(&file->chunks, struct nt_chunk, link);
		if (chunk) {
			list_del_init(&chunk->link);
			chunk->owner = NULL;
			kref_get(&chunk->ref);
		}
		mutex_unlock(&nd->alloc_lock);
		if (!chunk)
			return;
		/* Somebody else may have freed the handle meanwhile, and it may name another chunk now. */
		if (chunk->handle && xa_cmpxchg(&nd->handles, chunk->handle, chunk, NULL, 0) == chunk)
			nt_chunk_put(chunk);
		nt_chunk_put(chunk);
	}
}

/* A host chunk that holds all of a host address range; the caller gets a reference. */
struct nt_chunk *nt_chunk_find_host(struct nt_dev *nd, u64 address, u64 size)
{
	u64 bus = address & nd->gen->host_address_mask;
	struct nt_chunk *chunk, *found = NULL;

	mutex_lock(&nd->alloc_lock);
	list_for_each_entry(chunk, &nd->chunks, all) {
		if (!chunk->host || !chunk->handle || bus < chunk->dma || !nt_chunk_holds(chunk, bus - chunk->dma, size))
			continue;
		if (kref_get_unless_zero(&chunk->ref))
			found = chunk;
		break;
	}
	mutex_unlock(&nd->alloc_lock);
	return found;
}

bool nt_chunk_holds(const struct nt_chunk *chunk, u64 offset, u64 size)
{
	return offset <= chunk->size && size <= chunk->size - offset;
}

/* The core whose ring copies between two chunks: that of the device side, of the destination first. */
u32 nt_pair_core(const struct nt_chunk *src, const struct nt_chunk *dst)
{
	if (dst->host && !src->host)
		return src->core;
	return dst->core;
}

static struct gen_pool *nt_pool(int order, u64 start, u64 size)
{
	struct gen_pool *pool = gen_pool_create(order, NUMA_NO_NODE);

	if (!pool)
		return NULL;
	if (gen_pool_add(pool, NT_POOL_BIAS + start, size, NUMA_NO_NODE)) {
		gen_pool_destroy(pool);
		return NULL;
	}
	return pool;
}

static int nt_channel_init(struct nt_channel *channel, u64 base, u64 size)
{
	u64 small = size > NT_SMALL_POOL ? NT_SMALL_POOL : 0;

	channel->base = base;
	channel->size = size;
	if (size <= NT_CARVE_OUT + small)
		return -EINVAL;
	channel->main = nt_pool(NT_MAIN_ORDER, NT_CARVE_OUT, size - NT_CARVE_OUT - small);
	if (!channel->main)
		return -ENOMEM;
	if (!small)
		return 0;
	channel->small = nt_pool(PAGE_SHIFT, size - small, small);
	return channel->small ? 0 : -ENOMEM;
}

int nt_mem_init(struct nt_dev *nd)
{
	const struct np_generation *gen = nd->gen;
	u64 size = gen->hbm_size;
	u32 i;
	int ret;

	nd->hbm_stride = gen->hbm_bar_stride;
	if (nd->platform == NT_QEMU && gen->hbm_sized_by_bar) {
		size = pci_resource_len(nd->pdev, NT_BAR_HBM) / gen->hbm_count;
		nd->hbm_stride = size;
	}
	for (i = 0; i < gen->hbm_count; i++) {
		ret = nt_channel_init(&nd->channels[i], gen->hbm_base[i], size);
		if (ret) {
			dev_err(&nd->pdev->dev, "no pool for channel %u of %llu MiB: is BAR%d too small?\n", i,
				size >> 20, NT_BAR_HBM);
			return ret;
		}
	}
	nd->memset_chunk = nt_chunk_alloc(nd, NULL, NP_MAX_DESC_LENGTH, 0, true, 0, 0);
	if (IS_ERR(nd->memset_chunk)) {
		nd->memset_chunk = NULL;
		return -ENOMEM;
	}
	nd->dummy_ring = nt_chunk_alloc(nd, NULL, PAGE_SIZE, 0, true, 0, 0);
	if (IS_ERR(nd->dummy_ring)) {
		nd->dummy_ring = NULL;
		return -ENOMEM;
	}
	return 0;
}

/*
 * The device is going: memory goes now, whoever still holds a chunk. Nobody
 * can look at one afterwards, since every entry checks for a gone device.
 */
void nt_mem_exit(struct nt_dev *nd)
{
	struct nt_chunk *chunk;
	u32 i;

	if (nd->memset_chunk)
		nt_chunk_put(nd->memset_chunk);
	if (nd->dummy_ring)
		nt_chunk_put(nd->dummy_ring);
	nd->memset_chunk = NULL;
	nd->dummy_ring = NULL;
	mutex_lock(&nd->alloc_lock);
	list_for_each_entry(chunk, &nd->chunks, all)
		nt_chunk_drop_memory(chunk);
	mutex_unlock(&nd->alloc_lock);
	for (i = 0; i < nd->gen->hbm_count; i++) {
		if (nd->channels[i].main)
			gen_pool_destroy(nd->channels[i].main);
		if (nd->channels[i].small)
			gen_pool_destroy(nd->channels[i].small);
		nd->channels[i].main = NULL;
		nd->channels[i].small = NULL;
	}
}
