// SPDX-License-Identifier: GPL-2.0
/*
 * Resets: the handshakes of the three platforms, and what has to be brought up
 * again afterwards. One request at a time, in a work item of its own, since a
 * handshake may take minutes.
 */
#include <linux/delay.h>
#include <linux/jiffies.h>
#include <linux/slab.h>

#include "neuron_test.h"

#define NT_POLL_MS 20
#define NT_STATUS_BUSY BIT(3)
/* A register that is not ready yet reads this. */
#define NT_NOT_READY 0xdeadbeef

static bool nt_covers(u32 map, u32 core)
{
	return map == NP_NC_MAP_DEVICE || map & BIT(core);
}

static bool nt_covers_all(const struct nt_dev *nd, u32 map, u32 first, u32 count)
{
	u32 i;

	for (i = first; i < first + count; i++)
		if (!nt_covers(map, i))
			return false;
	return true;
}

/* The firmware's map of what a core reset takes along: the core, its TopSPs, its DMA rings. */
static u32 nt_firmware_map(const struct nt_dev *nd, u32 map)
{
	u32 core, bits = 0;

	for (core = 0; core < nd->gen->cores; core++) {
		if (!nt_covers(map, core))
			continue;
		if (nd->values->broadcast)
			bits |= BIT(core) | 7u << (8 + 3 * core);
		else
			bits |= BIT(core) | BIT(core + 8) | BIT(core + 16);
	}
	return bits;
}

static int nt_until(struct nt_dev *nd, void __iomem *reg, u32 mask, unsigned long deadline)
{
	for (;;) {
		u32 value = readl(reg);

		if (value != NT_NOT_READY && !(value & mask))
			return 0;
		if (READ_ONCE(nd->dying))
			return -ENODEV;
		if (time_after(jiffies, deadline))
			return -ETIMEDOUT;
		msleep(NT_POLL_MS);
	}
}

/* Asks the firmware; repeats the request as long as it is not taken. */
static int nt_firmware_reset(struct nt_dev *nd, u32 map)
{
	void __iomem *misc = nd->regs + nd->gen->misc_ram;
	bool device = map == NP_NC_MAP_DEVICE;
	unsigned long deadline = jiffies + nd->values->reset_seconds * HZ;
	unsigned long patience = (device ? 30 : 10) * HZ;
	int ret;

	do {
		unsigned long again = jiffies + patience;

		if (!device)
			nt_misc_write(nd, NP_MISC_RESET_MAP, nt_firmware_map(nd, map));
		nt_misc_write(nd, NP_MISC_RESET, device ? NP_MISC_RESET_DEVICE : NP_MISC_RESET_CORES);
		nt_misc_write(nd, NP_MISC_TRIGGER, 1);
		ret = nt_until(nd, misc + NP_MISC_RESET, ~0u, time_before(again, deadline) ? again : deadline);
	} while (ret == -ETIMEDOUT && time_before(jiffies, deadline));
	if (ret) {
		dev_err(&nd->dev, "the firmware did not take the reset request (misc RAM + %#x)\n", NP_MISC_RESET);
		return ret;
	}
	ret = nt_until(nd, misc + NP_MISC_STATUS, NT_STATUS_BUSY,
		       jiffies + (nd->platform == NT_SILICON ? 1 : 60) * HZ);
	if (ret)
		dev_err(&nd->dev, "reset taken but never finished (misc RAM + %#x bit 3)\n", NP_MISC_STATUS);
	return ret;
}

/* The qemu platform's own register, which clears itself; V2 goes through the firmware as well. */
static int nt_handshake(struct nt_dev *nd, u32 map)
{
	const struct np_generation *gen = nd->gen;
	void __iomem *flag = nd->regs + gen->reset_flag;
	int ret;

	if (nd->platform != NT_QEMU)
		return nt_firmware_reset(nd, map);

	if (gen->reset_with_firmware) {
		writel(1, flag);
		ret = nt_firmware_reset(nd, map);
		if (ret)
			return ret;
	} else {
		writel(map == NP_NC_MAP_DEVICE ? map : nt_firmware_map(nd, map), flag);
	}
	ret = nt_until(nd, flag, ~0u, jiffies + nd->values->reset_seconds * HZ);
	if (ret)
		dev_err(&nd->dev, "reset flag %#x never cleared\n", gen->reset_flag);
	return ret;
}

/* User queues of engines that were reset have no rings any more. */
static void nt_forget_queues(struct nt_engine *engine)
{
	u32 q;

	for (q = 0; q < NP_QUEUES_PER_ENGINE; q++) {
		struct nt_chunk *put[2] = {};

		mutex_lock(&engine->lock);
		if (!engine->queue[q].h2t)
			nt_queue_drop(&engine->queue[q], put);
		mutex_unlock(&engine->lock);
		nt_chunk_put_pair(put);
	}
}

static void nt_bring_up(struct nt_dev *nd, u32 map)
{
	const struct np_generation *gen = nd->gen;
	u32 i;

	for (i = 0; i < gen->engines; i++) {
		struct nt_engine *engine = &nd->engines[i];
		u32 shared = gen->cores_per_h2t_engine;
		bool covered;

		/* An engine that cores share is only reset with all of them. */
		if (i < gen->first_h2t_engine)
			covered = nt_covers(map, i / gen->engines_per_core);
		else
			covered = nt_covers_all(nd, map, (i - gen->first_h2t_engine) * shared, shared);
		if (!covered)
			continue;
		nt_forget_queues(engine);
		mutex_lock(&engine->lock);
		nt_engine_init(engine);
		mutex_unlock(&engine->lock);
		cond_resched();
	}
	nt_h2t_reset_all(nd, nt_covers, map);
}

static void nt_set_state(struct nt_dev *nd, enum nt_state state)
{
	WRITE_ONCE(nd->state, state);
	wake_up_all(&nd->state_wait);
}

static void nt_reset_one(struct nt_reset *reset)
{
	struct nt_dev *nd = reset->nd;
	ktime_t start = ktime_get();
	int ret;

	/* Nobody is inside a copy from here on; later ones wait. */
	down_write(&nd->reset_lock);
	ret = READ_ONCE(nd->dying) ? -ENODEV : nt_handshake(nd, reset->map);
	if (!ret)
		nt_bring_up(nd, reset->map);
	nt_set_state(nd, ret ? NT_FAILED : NT_READY);
	up_write(&nd->reset_lock);
	if (!ret)
		dev_info(&nd->dev, "READY, reset of map %#x took %lld ms\n", reset->map,
			 ktime_ms_delta(ktime_get(), start));
	reset->result = ret;
	complete_all(&reset->done);
}

static void nt_reset_work(struct work_struct *work)
{
	struct nt_dev *nd = container_of(work, struct nt_dev, reset_work);

	for (;;) {
		struct nt_reset *reset;
		bool boot;

		spin_lock(&nd->reset_list_lock);
		reset = list_first_entry_or_null(&nd->reset_list, struct nt_reset, link);
		if (reset)
			list_del_init(&reset->link);
		spin_unlock(&nd->reset_list_lock);
		if (!reset)
			return;
		/* The waiter may free its request as soon as it is complete. */
		boot = reset->boot;
		nt_reset_one(reset);
		if (boot)
			kfree(reset);
	}
}

/*
 * nt_reset_start - queue a reset of the cores in @map
 *
 * Returns the request, which the caller hands to nt_reset_wait() exactly once,
 * or with @boot nothing but NULL or an error: nobody waits for that one.
 */
struct nt_reset *nt_reset_start(struct nt_dev *nd, u32 map, bool boot)
{
	struct nt_reset *reset;
	u32 known = GENMASK(nd->gen->cores - 1, 0);

	if (map != NP_NC_MAP_DEVICE && (!map || map & ~known))
		return ERR_PTR(-EINVAL);
	reset = kzalloc(sizeof(*reset), GFP_KERNEL);
	if (!reset)
		return ERR_PTR(-ENOMEM);
	reset->nd = nd;
	reset->map = map;
	reset->boot = boot;
	init_completion(&reset->done);
	if (boot)
		nt_set_state(nd, NT_RESETTING);
	spin_lock(&nd->reset_list_lock);
	reset->id = ++nd->reset_id;
	list_add_tail(&reset->link, &nd->reset_list);
	spin_unlock(&nd->reset_list_lock);
	queue_work(nd->reset_queue, &nd->reset_work);
	return boot ? NULL : reset;
}

/* Waits, not to be interrupted: the handshake has its own deadline. Frees the request. */
int nt_reset_wait(struct nt_reset *reset)
{
	int ret;

	wait_for_completion(&reset->done);
	ret = reset->result;
	kfree(reset);
	return ret;
}

int nt_reset_init(struct nt_dev *nd)
{
	INIT_WORK(&nd->reset_work, nt_reset_work);
	nd->reset_queue = alloc_ordered_workqueue("%s-reset", 0, dev_name(&nd->pdev->dev));
	return nd->reset_queue ? 0 : -ENOMEM;
}

void nt_reset_exit(struct nt_dev *nd)
{
	if (nd->reset_queue)
		destroy_workqueue(nd->reset_queue);
	nd->reset_queue = NULL;
}
