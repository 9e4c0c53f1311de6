// SPDX-License-Identifier: GPL-2.0
/*
 * Questions about generation and product, answered from the generated tables.
 * No other file asks which chip it drives.
 */
#define NP_TABLES
#include "neuron_test.h"

const struct np_product *nt_product(u16 device_id)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(np_products); i++)
		if (np_products[i].device_id == device_id)
			return &np_products[i];
	return NULL;
}

const struct np_generation *nt_generation(const struct np_product *product)
{
	return &np_generations[product->generation];
}

static const struct nt_values nt_sunda = {
	.m2s_data_cfg = 0x01000400,
	.m2s_ostand = 0x0000086f,
	.s2m_ostand_rd = 0x00400008,
	.broadcast = true,
	.axi_abort = true,
	.reset_seconds = 120,
	.qemu_register_bar = 2,
	.runtime_min = 5,
	.runtime_max = 7,
};

static const struct nt_values nt_cayman = {
	.m2s_data_cfg = 0x010008f8,
	.m2s_ostand = 0x20808080,
	.s2m_ostand_rd = 0x00400080,
	.sdma_800 = 0x26,
	.strong_order = true,
	.reset_seconds = 480,
	.runtime_min = 10,
	.runtime_max = 11,
};

static const struct nt_values nt_mariana = {
	.m2s_data_cfg = 0x010008f8,
	.m2s_ostand = 0x20808080,
	.s2m_ostand_rd = 0x00400080,
	.s2m_ostand_wr_2 = 256,
	.sdma_800 = 0x26,
	.strong_order = true,
	.reset_seconds = 480,
	.runtime_min = 10,
	.runtime_max = 11,
};

const struct nt_values *nt_values(const struct np_generation *gen)
{
	switch (gen->arch) {
	case 2:
		return &nt_sunda;
	case 3:
		return &nt_cayman;
	default:
		return &nt_mariana;
	}
}

/* Offset of block @index of a kind in the register window. */
int nt_block_base(const struct np_generation *gen, enum np_block block, u32 index, u32 *base)
{
	u32 i;

	for (i = 0; i < gen->window_count; i++) {
		const struct np_window *window = &gen->windows[i];

		if (window->block != block || index < window->first ||
		    index - window->first >= window->count)
			continue;
		*base = window->base + window->stride * (index - window->first);
		return 0;
	}
	return -ENOENT;
}

/* The N of /dev/neuronN for a routing id. */
int nt_node(const struct np_product *product, u32 routing_id)
{
	if (routing_id >= NT_MAX_DEVICES)
		return -ENODEV;
	return product->node[routing_id];
}

bool nt_is_host_address(const struct nt_dev *nd, u64 address)
{
	return (address & nd->gen->host_mask) == nd->gen->host_value;
}

u64 nt_host_address(const struct nt_dev *nd, dma_addr_t address)
{
	return address | nd->gen->host_value;
}

/*
 * The write gate: user space may touch any register except those that launch
 * a ring or say where it is, five per queue and direction, and those that hand
 * the firmware an address. Reads are never gated.
 */
bool nt_write_is_gated(const struct nt_dev *nd, u64 offset)
{
	static const u32 misc[] = { NP_MISC_REQUEST_HIGH, NP_MISC_REQUEST_LOW,
				    NP_MISC_RESPONSE_HIGH, NP_MISC_RESPONSE_LOW, NP_MISC_TRIGGER };
	static const u32 gated[] = NP_Q_GATED;
	const struct np_generation *gen = nd->gen;
	u32 w, i;

	for (i = 0; i < ARRAY_SIZE(misc); i++)
		if (offset == gen->misc_ram + misc[i])
			return true;

	for (w = 0; w < gen->window_count; w++) {
		const struct np_window *window = &gen->windows[w];
		u64 in_engine, in_queues;

		if (window->block != NP_BLOCK_UDMA || offset < window->base ||
		    (offset - window->base) / window->stride >= window->count)
			continue;
		in_engine = (offset - window->base) % window->stride;
		if (in_engine >= NP_UDMA_S2M)
			in_engine -= NP_UDMA_S2M;
		if (in_engine < NP_UDMA_QUEUES)
			return false;
		in_queues = in_engine - NP_UDMA_QUEUES;
		if (in_queues / NP_UDMA_QUEUE_STRIDE >= NP_QUEUES_PER_ENGINE)
			return false;
		for (i = 0; i < ARRAY_SIZE(gated); i++)
			if (in_queues % NP_UDMA_QUEUE_STRIDE == gated[i])
				return true;
		return false;
	}
	return false;
}

/* All of @address .. @address + @size is one device target that the driver knows. */
bool nt_is_device_address(const struct nt_dev *nd, u64 address, u64 size)
{
	const struct np_generation *gen = nd->gen;
	u32 i;

	for (i = 0; i < gen->hbm_count; i++) {
		const struct nt_channel *channel = &nd->channels[i];

		if (address >= channel->base && address - channel->base <= channel->size &&
		    size <= channel->size - (address - channel->base))
			return true;
	}
	for (i = 0; i < gen->soc_window_count; i++) {
		const struct np_soc_window *window = &gen->soc_windows[i];

		if (address >= window->base && address - window->base <= window->size &&
		    size <= window->size - (address - window->base))
			return true;
	}
	return false;
}
