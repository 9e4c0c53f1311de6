/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A small driver for the AWS Neuron PCI functions: the driver half of the
 * ring / trigger / doorbell / completion cycle, with the ioctls of the real
 * driver, so that one guest program runs on either. Facts about the hardware
 * and the ABI come from the generated neuron_protocol.h; nothing here repeats
 * one.
 *
 * Locks, outermost first:
 *   life (read by every entry, written by removal)
 *   reset_lock (read by whatever uses engines, written by a reset)
 *   nt_file.lock, memset_lock, mailbox.lock, notification_lock
 *   nt_h2t.lock (a driver ring, from staging to marker)
 *   nt_engine.lock (registers and queue table of one engine)
 *   alloc_lock, the handle table's own lock (leaves)
 */
#ifndef NEURON_TEST_H
#define NEURON_TEST_H

#include <linux/cdev.h>
#include <linux/completion.h>
#include <linux/device.h>
#include <linux/genalloc.h>
#include <linux/io.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/rwsem.h>
#include <linux/uaccess.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include "neuron_protocol.h"

#define NT_NAME "neuron_test"
#define NT_BAR_REGISTERS 0
#define NT_BAR_HBM 4
/* /dev/neuron0 to /dev/neuron63: routing ids are below 64. */
#define NT_MAX_DEVICES NP_ROUTING_IDS

struct nt_dev;
struct nt_file;

/* What the PCI revision id says about the surroundings. */
enum nt_platform {
	NT_SILICON,
	NT_QEMU,
	NT_EMULATOR,
};

enum nt_state {
	NT_RESETTING,	/* opens wait */
	NT_READY,
	NT_FAILED,	/* opens fail */
};

/**
 * struct nt_values - what engine initialisation and copies do per family
 *
 * Recorded from the real driver; these registers have no other reader, so they
 * are not part of the shared tables.
 */
struct nt_values {
	u32 m2s_data_cfg;	/* data FIFO depth */
	u32 m2s_ostand;
	u32 s2m_ostand_rd;
	u32 s2m_ostand_wr_2;	/* 0: not written */
	u32 sdma_800;		/* 0: not written */
	bool broadcast;		/* SDMA broadcast group and last node */
	bool axi_abort;		/* AXI error tables */
	bool strong_order;	/* rx descriptors may be strongly ordered */
	u32 reset_seconds;	/* the firmware's deadline */
	int qemu_register_bar;	/* where revision 255 has the register window */
	u32 runtime_min;	/* runtime versions the real driver serves */
	u32 runtime_max;
};

/**
 * struct nt_chunk - memory a descriptor can name
 * @address: as a descriptor takes it: host bit included for guest RAM
 * @va: kernel address of guest RAM, NULL for device memory
 * @dma: bus address of guest RAM
 * @size: bytes, a page multiple
 * @pool: where device memory came from
 * @owner: open file that goes with it, NULL for the driver's own
 */
struct nt_chunk {
	struct kref ref;
	struct nt_dev *nd;
	struct nt_file *owner;
	struct list_head link;
	struct list_head all;
	u64 address;
	u64 size;
	void *va;
	dma_addr_t dma;
	struct gen_pool *pool;
	u64 pool_address;
	u32 handle;
	u32 core;
	pid_t pid;
	bool host;
};

/**
 * struct nt_ring - one direction of a queue as software sees it
 * @desc: descriptors in guest RAM, NULL for a ring in device memory
 * @size: descriptors
 * @mask: @size - 1; the cursors only work on powers of two
 * @next_desc: producer
 * @next_cdesc: completion counter, moved by nt_ring_ack() alone, without lock
 * @ring_id: phase of the next descriptor
 */
struct nt_ring {
	struct np_desc *desc;
	u64 address;
	u32 size;
	u32 mask;
	u32 next_desc;
	atomic_t next_cdesc;
	u8 ring_id;
};

/* A queue that a process set up, or that the driver copies with. */
struct nt_queue {
	struct nt_ring tx;
	struct nt_ring rx;
	struct nt_chunk *tx_chunk;
	struct nt_chunk *rx_chunk;
	struct nt_file *owner;
	struct nt_h2t *h2t;	/* the driver copies with it */
	bool programmed;
};

struct nt_engine {
	struct mutex lock;
	struct nt_dev *nd;
	void __iomem *udma;
	void __iomem *sdma;
	void __iomem *fis;	/* error trigger block, NULL if it has none */
	u32 index;
	bool initialised;	/* since probe: later cfg writes differ */
	struct nt_queue queue[NP_QUEUES_PER_ENGINE];
};

enum {
	NT_CTX_SYNC = NP_CTX_SYNC,
	NT_CTX_ASYNC1 = NP_CTX_ASYNC1,
	NT_CTX_ASYNC2 = NP_CTX_ASYNC2,
	NT_CTX_COUNT,
};

/**
 * struct nt_context - one transfer in flight on a driver ring
 * @marker: its slot: source word, then the word that is polled
 * @count: descriptors rung, marker included
 * @ahead: descriptors in front of them that others wait for
 */
struct nt_context {
	u32 *marker;
	u64 marker_address;
	u32 count;
	u32 ahead;
	bool in_use;
	bool d2d;
	bool lost;	/* its ring was reset under it */
	struct nt_file *owner;
	struct nt_chunk *src;
	struct nt_chunk *dst;
};

#define NT_WINDOW_PAGES 64

/**
 * struct nt_window - pages pinned for one trigger
 * @pinned: pages in @pages
 * @mapped: of which have a bus address in @dma
 */
struct nt_window {
	struct page *pages[NT_WINDOW_PAGES];
	dma_addr_t dma[NT_WINDOW_PAGES];
	u32 pinned;
	u32 mapped;
	u64 buffer;
	u64 bytes;
};

/* Windows in flight on a ring: one for each entry of its completion ring if each request is small. */
#define NT_ASYNC_WINDOWS NP_COMPL_QUEUE_CAPACITY
/* What they may take of it: three full batches of other copies always fit beside them. */
#define NT_ASYNC_DESCRIPTORS (NP_H2T_ALLOCATED - NP_RING_GUARD - 3 * (NP_BATCH_DATA + 1))

/**
 * struct nt_async - copies on a ring that nobody waits for in the kernel but its thread
 *
 * All of it under the ring's lock.
 *
 * @flights: windows in flight, oldest first
 * @room: whoever has to wait for one of them to end
 * @markers: one slot for each window
 * @windows: in flight
 * @descriptors: of theirs
 * @next_slot: of @markers
 * @accepted: requests, each with an entry of the completion ring set aside
 * @posted: of which are in it
 * @user: the one open file that may use it
 */
struct nt_async {
	struct work_struct work;
	struct list_head flights;
	wait_queue_head_t room;
	struct nt_chunk *markers;
	u32 windows;
	u32 descriptors;
	u32 next_slot;
	u32 accepted;
	u32 posted;
	struct nt_file *user;
};

/**
 * struct nt_h2t - a ring that copies of a core go through
 * @owner: open file that asked for it, NULL for the core's own
 * @closed: given back while somebody waited for @lock
 */
struct nt_h2t {
	struct kref ref;
	struct mutex lock;
	struct nt_file *owner;
	bool closed;
	u32 core;
	struct nt_dev *nd;
	struct nt_engine *engine;
	struct nt_queue *queue;
	u32 qid;
	struct nt_chunk *markers;
	struct nt_context context[NT_CTX_COUNT];
	struct nt_context window[2];	/* zero copy */
	struct nt_chunk *completions;	/* mapped by user space */
	struct nt_async async;
};

struct nt_channel {
	u64 base;
	u64 size;
	struct gen_pool *main;
	struct gen_pool *small;	/* last GiB; NULL on small channels */
};

struct nt_reset {
	struct list_head link;
	struct nt_dev *nd;
	struct completion done;
	u32 id;
	u32 map;
	int result;
	bool boot;
};

struct nt_mailbox {
	struct mutex lock;
	void *request;
	void *response;
	dma_addr_t request_dma;
	dma_addr_t response_dma;
	u8 seq;
};

struct nt_dev {
	struct device dev;
	struct cdev cdev;
	struct pci_dev *pdev;
	const struct np_generation *gen;
	const struct np_product *product;
	const struct nt_values *values;
	enum nt_platform platform;
	u32 node;
	int register_bar;
	void __iomem *regs;
	u64 regs_size;
	u64 hbm_stride;	/* of channels in BAR4 */

	struct rw_semaphore life;
	bool gone;		/* under @life */
	bool dying;		/* polls look at it */
	struct rw_semaphore reset_lock;
	enum nt_state state;
	wait_queue_head_t state_wait;

	struct workqueue_struct *reset_queue;
	struct work_struct reset_work;
	spinlock_t reset_list_lock;
	struct list_head reset_list;
	u32 reset_id;

	struct nt_engine *engines;
	struct nt_h2t *h2t;	/* by core */
	struct nt_chunk *dummy_ring;

	struct mutex alloc_lock;
	struct list_head chunks;
	struct xarray handles;
	struct nt_channel channels[NP_MAX_HBM];

	struct mutex memset_lock;
	struct nt_chunk *memset_chunk;
	struct nt_mailbox mailbox;

	struct mutex notification_lock;
	struct list_head notifications;

	struct workqueue_struct *async_queue;
	wait_queue_head_t async_wait;	/* a file's last asynchronous copy is over */

	struct nt_engine *irq_engine;	/* NULL: the device has no MSI-X */
	int irq;
	atomic_t interrupts;

	struct address_space *mapping;
};

/**
 * struct nt_file - one open for reading and writing
 * @bounce: 64 KiB that buffer copies go through, made at first use
 */
struct nt_file {
	struct nt_dev *nd;
	struct mutex lock;
	struct list_head chunks;	/* under nd->alloc_lock */
	struct nt_chunk *bounce;
	struct nt_reset *reset;
	atomic_t async_count;	/* asynchronous copies that refer to it */
	bool closing;		/* its asynchronous copies are dropped */
};

#define NT_COMPL_SIZE (sizeof(struct np_h2t_compl_queue) + \
		       NP_COMPL_QUEUE_CAPACITY * sizeof(struct np_h2t_compl_entry))

/* chip.c: what the tables say */
const struct np_product *nt_product(u16 device_id);
const struct np_generation *nt_generation(const struct np_product *product);
const struct nt_values *nt_values(const struct np_generation *gen);
int nt_block_base(const struct np_generation *gen, enum np_block block, u32 index, u32 *base);
int nt_node(const struct np_product *product, u32 routing_id);
bool nt_is_host_address(const struct nt_dev *nd, u64 address);
u64 nt_host_address(const struct nt_dev *nd, dma_addr_t address);
bool nt_write_is_gated(const struct nt_dev *nd, u64 offset);
bool nt_is_device_address(const struct nt_dev *nd, u64 address, u64 size);

/* reset.c */
int nt_reset_init(struct nt_dev *nd);
void nt_reset_exit(struct nt_dev *nd);
struct nt_reset *nt_reset_start(struct nt_dev *nd, u32 map, bool boot);
int nt_reset_wait(struct nt_reset *reset);

/* engine.c */
int nt_engines_alloc(struct nt_dev *nd);
void nt_engines_free(struct nt_dev *nd);
void nt_engine_init(struct nt_engine *engine);
void nt_queue_program(struct nt_engine *engine, u32 qid);
void nt_queue_read_state(struct nt_engine *engine, u32 qid, bool rx, struct np_dma_queue_state *state);
int nt_engine_set_state(struct nt_engine *engine, u32 state);
void nt_engine_get_state(struct nt_engine *engine, struct np_dma_eng_state *state);
void __iomem *nt_queue_regs(struct nt_engine *engine, u32 qid, bool rx);

/* ring.c */
int nt_ring_check(u64 address, u32 size);
void nt_ring_init(struct nt_ring *ring, struct np_desc *desc, u64 address, u32 size);
u32 nt_ring_available(const struct nt_ring *ring);
int nt_ring_ack(struct nt_ring *ring, u32 count);
int nt_ring_doorbell(struct nt_engine *engine, u32 qid, bool rx, u32 count);
int nt_ring_start(struct nt_engine *engine, u32 qid, u32 tx_count, u32 rx_count);

enum nt_barrier {
	NT_BARRIER_NONE,
	NT_BARRIER_WRITE,	/* tx: earlier writes land first */
	NT_BARRIER_SOW,		/* rx, V3 and up: this write lands last */
};

int nt_ring_stage(struct nt_queue *queue, u64 src, u64 dst, u32 bytes, enum nt_barrier barrier);

/* cycle.c */
int nt_stage_marker(struct nt_h2t *h2t, struct nt_context *ctx, enum nt_barrier barrier);
u64 nt_budget_us(const struct nt_dev *nd, u32 count);
int nt_wait_marker(struct nt_h2t *h2t, struct nt_context *ctx, bool async);
int nt_copy(struct nt_dev *nd, u32 core, u64 src, u64 dst, u64 size, bool d2d);
int nt_copy_chunks(struct nt_dev *nd, struct nt_chunk *src, struct nt_chunk *dst, u64 src_offset,
		   u64 dst_offset, u64 size);
int nt_copy_async(struct nt_file *file, struct nt_chunk *src, struct nt_chunk *dst, u64 src_offset,
		  u64 dst_offset, u64 size, u32 previous, u32 *handle);
int nt_copy_async_wait(struct nt_file *file, struct nt_chunk *src, struct nt_chunk *dst, u32 handle);
void nt_copy_async_drain(struct nt_file *file);
void nt_context_finish(struct nt_context *ctx, struct nt_chunk *put[2]);
int nt_memset(struct nt_dev *nd, struct nt_chunk *chunk, u64 offset, u32 value, u64 size);

/* h2t.c */
int nt_h2t_alloc(struct nt_dev *nd);
void nt_h2t_free(struct nt_dev *nd);
void nt_h2t_reset(struct nt_h2t *h2t);
void nt_h2t_reset_all(struct nt_dev *nd, bool (*covers)(u32 map, u32 core), u32 map);
struct nt_engine *nt_h2t_engine(struct nt_dev *nd, u32 core);
struct nt_h2t *nt_h2t_find(struct nt_dev *nd, u32 core, int qid);
void nt_h2t_put(struct nt_h2t *h2t);
bool nt_h2t_is_owned(struct nt_engine *engine, u32 qid, struct nt_file *file);
int nt_h2t_alloc_queues(struct nt_file *file, void __user *user);
int nt_h2t_free_queues(struct nt_file *file, void __user *user);
void nt_h2t_release_owned(struct nt_file *file);

/* zerocopy.c */
int nt_window_pin(struct nt_dev *nd, struct nt_window *window, u64 buffer, u64 size, bool to_device);
void nt_window_unpin(struct nt_dev *nd, struct nt_window *window, bool to_device);
int nt_window_start(struct nt_h2t *h2t, struct nt_context *ctx, struct nt_window *window, u64 device,
		    bool to_device, bool last);
int nt_zerocopy(struct nt_h2t *h2t, struct nt_chunk *chunk, u64 offset, u64 buffer, u64 size,
		bool to_device);
int nt_bar4_write(struct nt_dev *nd, struct nt_chunk *chunk, u64 offset, u64 buffer, u64 size);

/* async.c */
int nt_zerocopy_batches(struct nt_file *file, void __user *user);
int nt_completion_queues(struct nt_file *file, void __user *user);
void nt_async_init(struct nt_h2t *h2t);
void nt_async_lose(struct nt_h2t *h2t);
void nt_async_stop(struct nt_h2t *h2t);
void nt_async_drain(struct nt_file *file);
void nt_async_release(struct nt_file *file);

/* irq.c */
int nt_irq_init(struct nt_dev *nd);
void nt_irq_exit(struct nt_dev *nd);

/* alloc.c, copy.c, device.c: requests by subject */
long nt_ioctl_alloc(struct nt_file *file, unsigned int cmd, void __user *user);
long nt_ioctl_copy(struct nt_file *file, unsigned int cmd, void __user *user);
long nt_ioctl_device(struct nt_file *file, unsigned int cmd, void __user *user);
long nt_ioctl_misc(struct nt_dev *nd, unsigned int cmd, void __user *user);

/* mem.c */
int nt_mem_init(struct nt_dev *nd);
void nt_mem_exit(struct nt_dev *nd);
struct nt_chunk *nt_chunk_alloc(struct nt_dev *nd, struct nt_file *owner, u64 size, u64 align,
				bool host, u32 channel, u32 core);
struct nt_chunk *nt_chunk_get(struct nt_dev *nd, u64 handle);
struct nt_chunk *nt_chunk_find_host(struct nt_dev *nd, u64 address, u64 size);
void nt_chunk_put(struct nt_chunk *chunk);
void nt_chunk_put_pair(struct nt_chunk *pair[2]);
int nt_chunk_publish(struct nt_chunk *chunk);
int nt_chunk_free_handle(struct nt_file *file, u64 handle);
void nt_file_free_chunks(struct nt_file *file);
bool nt_chunk_holds(const struct nt_chunk *chunk, u64 offset, u64 size);
struct nt_chunk *nt_bounce(struct nt_file *file);
u32 nt_pair_core(const struct nt_chunk *src, const struct nt_chunk *dst);

/* queue.c */
long nt_ioctl_queue(struct nt_file *file, unsigned int cmd, void __user *arg);
void nt_queue_release_owned(struct nt_file *file);
void nt_queue_retire(struct nt_engine *engine, u32 qid, struct nt_chunk *put[2]);
void nt_queue_drop(struct nt_queue *queue, struct nt_chunk *put[2]);

/* sync.c */
long nt_ioctl_sync(struct nt_file *file, unsigned int cmd, void __user *arg);
void nt_notifications_release(struct nt_file *file);

/* mailbox.c */
int nt_mailbox_init(struct nt_dev *nd);
void nt_mailbox_exit(struct nt_dev *nd);
int nt_mailbox_post(struct nt_dev *nd, const u8 *data, u32 size);
int nt_mailbox_read(struct nt_dev *nd, const u64 *addresses, u32 *values, u32 count);

/* cdev.c */
int nt_cdev_init(void);
void nt_cdev_exit(void);
int nt_cdev_add(struct nt_dev *nd);
void nt_cdev_del(struct nt_dev *nd);
int nt_cdev_bdf(u32 node, struct np_device_bdf_ext *bdf);
struct nt_dev *nt_dev_alloc(struct pci_dev *pdev);

static inline int nt_copy_out(void __user *user, const void *from, size_t size)
{
	return copy_to_user(user, from, size) ? -EFAULT : 0;
}

static inline u32 nt_misc_read(struct nt_dev *nd, u32 reg)
{
	return readl(nd->regs + nd->gen->misc_ram + reg);
}

static inline void nt_misc_write(struct nt_dev *nd, u32 reg, u32 value)
{
	writel(value, nd->regs + nd->gen->misc_ram + reg);
}

#endif
