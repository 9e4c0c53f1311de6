// SPDX-License-Identifier: GPL-2.0
/*
 * DMA engines: what is written to bring one up, how a queue is pointed at its
 * rings, and how both are read back.
 */
#include <linux/slab.h>

#include "neuron_test.h"

struct nt_write {
	u32 offset;
	u32 value;
};

void __iomem *nt_queue_regs(struct nt_engine *engine, u32 qid, bool rx)
{
	return engine->udma + (rx ? NP_UDMA_S2M : 0) + NP_UDMA_QUEUES + NP_UDMA_QUEUE_STRIDE * qid;
}

static void nt_write_all(void __iomem *base, const struct nt_write *writes, size_t count)
{
	size_t i;

	for (i = 0; i < count; i++)
		writel(writes[i].value, base + writes[i].offset);
}

static u32 nt_or(void __iomem *reg, u32 bits)
{
	u32 value = readl(reg) | bits;

	writel(value, reg);
	return value;
}

/*
 * Sizes and limits, per family: the data FIFO, outstanding AXI transactions,
 * and the 64 KiB meaning of length 0. Order and values are those the real
 * driver was recorded with; nothing here is polled.
 */
static void nt_engine_limits(struct nt_engine *engine)
{
	struct nt_dev *nd = engine->nd;
	void __iomem *udma = engine->udma;
	u32 q, i;

	writel(nd->values->m2s_data_cfg, udma + 0x310);
	writel(nd->values->m2s_ostand, udma + 0x124);
	writel(100000000, udma + 0x3a300);	/* AXI time-out, about 118 ms */
	writel(0, udma + 0x408);		/* no application ack time-out */
	writel(0x010fffff, udma + NP_M2S_CFG_LEN);	/* length 0 is 64 KiB */
	writel(0x102, udma + 0x258);
	for (q = 0; q < NP_QUEUES_PER_ENGINE; q++)
		writel(~0u, udma + NP_UDMA_GEN_EX + 0x400 + 0x40 * q);
	writel(0x00010008, udma + 0x118);
	writel(0, udma + 0x2038c);
	for (q = 0; q < NP_QUEUES_PER_ENGINE; q++)
		for (i = 0; i < 3; i++)
			writel(~0u, udma + NP_UDMA_GEN_EX + 0x404 + 0x40 * q + 4 * i);
	writel(nd->values->s2m_ostand_rd, udma + 0x20124);
	writel(0x40804080, udma + 0x20128);
	if (nd->values->s2m_ostand_wr_2) {
		u32 value = readl(udma + 0x2012c) & ~0x3ffu;

		writel(value | nd->values->s2m_ostand_wr_2, udma + 0x2012c);
	}
	/* Report the completion head although there is no completion ring. */
	writel(readl(udma + 0x3b460) & ~1u, udma + 0x3b460);
}

/* Any error aborts its direction; both "clear" registers take the complement. */
static const struct nt_write nt_errors[] = {
	{ 0x3a028, 0x28 },	 { 0x380e8, 0x28 },	  { 0x3a030, 0xf0000000 },
	{ 0x3a0b0, 0xffffffc0 }, { 0x3a018, 0xf0000000 }, { 0x3a098, 0xffffffc0 },
	{ 0x380d8, 0xfffffaff }, { 0x3a068, 0x28 },	  { 0x380e8, 0x28 },
	{ 0x3a070, 0x000010f8 }, { 0x3a0b0, 0xfffff03f }, { 0x3a058, 0x000010f8 },
	{ 0x3a098, 0xfffff03f }, { 0x380d8, 0xfffff9ff },
};

static const struct nt_write nt_prefetch[] = {
	{ 0x20380, 0x1004 },	{ 0x00304, 0x00010041 },	/* 65 descriptors a packet */
	{ 0x00308, 0x4181 },	{ 0x20308, 0x4181 },
	{ 0x0011c, 0x00010008 }, { 0x2011c, 0x00010008 },
};

/* V2: AXI errors abort, per queue. */
static void nt_engine_axi_abort(struct nt_engine *engine)
{
	static const u32 words[] = { 0x04, 0x08, 0x0c, 0x24, 0x28, 0x2c };
	void __iomem *udma = engine->udma;
	u32 table, i, q;

	for (table = 0; table < 6; table++)
		for (i = 0; i < ARRAY_SIZE(words); i++)
			writel(0xf, udma + 0x3a900 + 0x40 * table + words[i]);
	for (table = 0; table < 6; table++)
		for (q = 0; q < NP_QUEUES_PER_ENGINE; q++) {
			writel(q << 3 | 7, udma + 0x3ab00 + 8 * table);
			writel(0x10, udma + 0x3ab00 + 8 * table + 4);
		}
	for (i = 0; i < 6; i++) {
		void __iomem *iofic = udma + 0x3ad00 + 0x100 * i;

		writel(0x28, iofic + NP_IOFIC_CONTROL);
		writel(0, iofic + NP_IOFIC_ABORT_MASK);
		writel(0, iofic + NP_IOFIC_MASK_CLEAR);
	}
	writel(~0u, udma + 0x3a300);
}

/* V3 and V4: a stale phase is not an error. */
static void nt_engine_mask_ring_id(struct nt_engine *engine)
{
	void __iomem *udma = engine->udma;

	writel(nt_or(udma + 0x3a010, BIT(17)), udma + 0x3a030);
	writel(nt_or(udma + 0x3a050, BIT(11)), udma + 0x3a070);
	nt_or(engine->fis + 0x90, BIT(11));
	nt_or(engine->fis + 0xd0, BIT(2));
	nt_or(udma + 0x20c, BIT(17));
	nt_or(udma + 0x2020c, BIT(11));
}

/*
 * nt_engine_init - bring an engine up after a reset that covered it
 *
 * All queues are enabled here although none has a ring: an engine does nothing
 * before its doorbell. The caller holds the engine's lock.
 */
void nt_engine_init(struct nt_engine *engine)
{
	struct nt_dev *nd = engine->nd;
	const struct np_generation *gen = nd->gen;
	u32 cfg = engine->initialised ? NP_Q_CFG_ENABLED | NP_Q_CFG_RESET : NP_Q_CFG_ENABLED;
	bool h2t = engine->index >= gen->first_h2t_engine;
	u32 q;

	if (nd->values->broadcast && !h2t) {
		u32 in_core = engine->index % gen->engines_per_core;
		bool last = in_core <= 9 ? in_core % 3 == 0 : in_core == 15;

		writel(0x7ff, engine->sdma + 0x100);
		writel(last ? 0xffff : 0, engine->sdma + 0x104);
	}
	for (q = 0; q < NP_QUEUES_PER_ENGINE; q++) {
		writel(cfg, nt_queue_regs(engine, q, false) + NP_Q_CFG);
		writel(cfg, nt_queue_regs(engine, q, true) + NP_Q_CFG);
	}
	nt_engine_limits(engine);
	nt_write_all(engine->udma, nt_errors, ARRAY_SIZE(nt_errors));
	nt_write_all(engine->udma, nt_prefetch, ARRAY_SIZE(nt_prefetch));

	writel(1, engine->sdma + 0x1c);
	writel(1, engine->sdma + 0x20);
	writel(1, engine->sdma + 0x00);
	if (nd->values->sdma_800)
		writel(nd->values->sdma_800, engine->sdma + 0x800);
	if (nd->values->axi_abort)
		nt_engine_axi_abort(engine);
	if (engine->fis)
		nt_engine_mask_ring_id(engine);
	engine->initialised = true;
}

static void nt_queue_program_one(struct nt_engine *engine, u32 qid, bool rx)
{
	struct nt_ring *ring = rx ? &engine->queue[qid].rx : &engine->queue[qid].tx;
	void __iomem *regs = nt_queue_regs(engine, qid, rx);

	/* Data memory barriers act only with the pause bit clear. */
	if (!rx)
		writel(3, regs + NP_Q_RLIMIT_MASK);
	writel(NP_Q_CFG_RESET, regs + NP_Q_CFG);
	writel(NP_Q_SW_CTRL_RESET, regs + (rx ? NP_S2M_Q_SW_CTRL : NP_M2S_Q_SW_CTRL));
	writel(lower_32_bits(ring->address), regs + NP_Q_DRBP_LOW);
	writel(upper_32_bits(ring->address), regs + NP_Q_DRBP_HIGH);
	writel(ring->size, regs + NP_Q_DRL);
	writel(0, regs + (rx ? NP_S2M_Q_COMP_CFG : NP_M2S_Q_COMP_CFG));
	writel(NP_Q_CFG_RESET | NP_Q_CFG_ENABLED, regs + NP_Q_CFG);
}

/*
 * nt_queue_program - point a queue at its rings, dropping whatever it had
 *
 * A ring of size 0 is left alone: user queues may have one direction only. The
 * caller holds the engine's lock.
 */
void nt_queue_program(struct nt_engine *engine, u32 qid)
{
	struct nt_queue *queue = &engine->queue[qid];

	if (queue->tx.size)
		nt_queue_program_one(engine, qid, false);
	if (queue->rx.size)
		nt_queue_program_one(engine, qid, true);
	queue->programmed = true;
}

static u64 nt_read_pair(void __iomem *regs, u32 low, u32 high)
{
	u64 value = (u64)readl(regs + high) << 32;

	return value | readl(regs + low);
}

void nt_queue_read_state(struct nt_engine *engine, u32 qid, bool rx, struct np_dma_queue_state *state)
{
	void __iomem *regs = nt_queue_regs(engine, qid, rx);

	memset(state, 0, sizeof(*state));
	state->hw_status = readl(regs + NP_Q_STATUS);
	state->length = readl(regs + NP_Q_DRL) & NP_Q_INDEX;
	state->base_addr = nt_read_pair(regs, NP_Q_DRBP_LOW, NP_Q_DRBP_HIGH) & ~63ull;
	state->completion_base_addr = nt_read_pair(regs, NP_Q_CRBP_LOW, NP_Q_CRBP_HIGH);
	state->head_pointer = readl(regs + NP_Q_DRHP) & NP_Q_INDEX;
	state->tail_pointer = readl(regs + NP_Q_DRTP) & NP_Q_INDEX;
	state->completion_head = readl(regs + NP_Q_CRHP) & NP_Q_INDEX;
}

/* The ioctl's numbers, which are not the registers'. */
enum {
	NT_UDMA_DISABLE = 0,
	NT_UDMA_IDLE = 1,
	NT_UDMA_NORMAL = 2,
	NT_UDMA_ABORT = 3,
};

int nt_engine_set_state(struct nt_engine *engine, u32 state)
{
	u32 value;

	switch (state) {
	case NT_UDMA_DISABLE:
		value = NP_CHANGE_STATE_DISABLE;
		break;
	case NT_UDMA_NORMAL:
		value = NP_CHANGE_STATE_NORMAL;
		break;
	case NT_UDMA_ABORT:
		value = NP_CHANGE_STATE_ABORT;
		break;
	default:
		return -EINVAL;
	}
	writel(value, engine->udma + NP_UDMA_CHANGE_STATE);
	writel(value, engine->udma + NP_UDMA_S2M + NP_UDMA_CHANGE_STATE);
	return 0;
}

/* Several machines a direction: one in abort is an abort, else one that works is normal. */
static u32 nt_udma_state(u32 machines)
{
	u32 shift, state = NT_UDMA_IDLE;

	for (shift = 0; shift <= 12; shift += 4) {
		u32 machine = machines >> shift & 3;

		if (machine == 2)
			return NT_UDMA_ABORT;
		if (machine == 1)
			state = NT_UDMA_NORMAL;
	}
	return state;
}

void nt_engine_get_state(struct nt_engine *engine, struct np_dma_eng_state *state)
{
	memset(state, 0, sizeof(*state));
	state->revision_id = 4;
	state->max_queues = NP_QUEUES_PER_ENGINE;
	state->num_queues = NP_QUEUES_PER_ENGINE;
	state->rx_state = nt_udma_state(readl(engine->udma + NP_UDMA_S2M + NP_UDMA_STATE));
	state->tx_state = nt_udma_state(readl(engine->udma + NP_UDMA_STATE));
}

int nt_engines_alloc(struct nt_dev *nd)
{
	const struct np_generation *gen = nd->gen;
	u32 i, base;
	int ret;

	nd->engines = kvcalloc(gen->engines, sizeof(*nd->engines), GFP_KERNEL);
	if (!nd->engines)
		return -ENOMEM;
	for (i = 0; i < gen->engines; i++) {
		struct nt_engine *engine = &nd->engines[i];

		mutex_init(&engine->lock);
		engine->nd = nd;
		engine->index = i;
		ret = nt_block_base(gen, NP_BLOCK_UDMA, i, &base);
		if (ret)
			return ret;
		engine->udma = nd->regs + base;
		ret = nt_block_base(gen, NP_BLOCK_SDMA, i, &base);
		if (ret)
			return ret;
		engine->sdma = nd->regs + base;
		if (!nt_block_base(gen, NP_BLOCK_ERROR_TRIGGER, i, &base))
			engine->fis = nd->regs + base;
	}
	return 0;
}

void nt_engines_free(struct nt_dev *nd)
{
	u32 i, q;

	for (i = 0; nd->engines && i < nd->gen->engines; i++)
		for (q = 0; q < NP_QUEUES_PER_ENGINE; q++) {
			struct nt_chunk *put[2];

			nt_queue_drop(&nd->engines[i].queue[q], put);
			nt_chunk_put_pair(put);
		}
	kvfree(nd->engines);
	nd->engines = NULL;
}
