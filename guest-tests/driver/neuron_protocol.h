/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Generated from the crate neuron-protocol, where each fact has its source:
 * cargo run -p neuron-guest-tests --bin gen-header. Do not edit.
 */
#ifndef NEURON_PROTOCOL_H
#define NEURON_PROTOCOL_H

#include <linux/types.h>

/* PCI identity */
#define NP_VENDOR_ID 0x1d0f
#define NP_DEVICE_7164 0x7164
#define NP_DEVICE_7264 0x7264
#define NP_DEVICE_7364 0x7364
#define NP_DEVICE_7564 0x7564
#define NP_DEVICE_7565 0x7565
#define NP_PCI_IDS(entry) \
	{ entry(NP_VENDOR_ID, NP_DEVICE_7164) }, \
	{ entry(NP_VENDOR_ID, NP_DEVICE_7264) }, \
	{ entry(NP_VENDOR_ID, NP_DEVICE_7364) }, \
	{ entry(NP_VENDOR_ID, NP_DEVICE_7564) }, \
	{ entry(NP_VENDOR_ID, NP_DEVICE_7565) }
#define NP_REVISION_SILICON 0x0
#define NP_REVISION_QEMU 0xff
#define NP_REVISION_EMULATOR 0xf0

/* Descriptors */
struct np_desc {
	__le32 len_ctrl;
	__le32 meta_ctrl;
	__le64 address;
};

#define NP_DESC_SIZE 16
#define NP_MAX_DESC_LENGTH 0x10000
#define NP_LEN_LENGTH 0xffff
#define NP_LEN_RING_ID_SHIFT 24
#define NP_LEN_META 0x800000
#define NP_LEN_FIRST 0x4000000
#define NP_LEN_LAST 0x8000000
#define NP_LEN_INTERRUPT 0x10000000
#define NP_LEN_STRONG_ORDER 0x20000000
#define NP_LEN_DMB 0x40000000
#define NP_LEN_CONCAT 0x80000000
#define NP_META_COPY 0x1080003
#define NP_META_WRITE_BARRIER 0x4000000

/* Rings, marker, poll budget (microseconds) */
#define NP_RING_ID_INITIAL 1
#define NP_RING_ID_MASK 0x3
#define NP_RING_GUARD 16
#define NP_RING_MIN 32
#define NP_RING_MAX 16777200
#define NP_RING_STEP 16
#define NP_RING_ALIGN 256
#define NP_H2T_NOMINAL 4096
#define NP_H2T_ALLOCATED 8192
#define NP_SYNC_THRESHOLD 2031
#define NP_BATCH_DATA 2032
#define NP_MARKER 0xabcdef01
#define NP_MARKER_SIZE 4
#define NP_MARKER_SOURCE 0
#define NP_MARKER_POLL 4
#define NP_MARKER_SLOT 8
#define NP_COMPL_QUEUE_CAPACITY 1024u
#define NP_CTX_NONE 0xffffffffu
#define NP_CTX_SYNC 0
#define NP_CTX_ASYNC1 1
#define NP_CTX_ASYNC2 2
#define NP_BUDGET_STRETCH 100
#define NP_BUDGET_ASYNC_FIRST 1
#define NP_BUDGET_D2D_FIRST 10
#define NP_BUDGET_D2D_CUT 200
#define NP_BUDGET_POLL_US 1
#define NP_BUDGET_QEMU_SPLIT 10000
#define NP_BUDGET_QEMU_COMMON 100000
#define NP_BUDGET_EMULATOR 100000

/* Engine: units, from its base */
#define NP_UDMA_S2M 0x20000
#define NP_UDMA_GEN 0x38000
#define NP_UDMA_GEN_EX 0x3c000
#define NP_UDMA_STATE 0x200
#define NP_UDMA_CHANGE_STATE 0x204
#define NP_CHANGE_STATE_NORMAL 0x1
#define NP_CHANGE_STATE_DISABLE 0x2
#define NP_CHANGE_STATE_ABORT 0x4
#define NP_M2S_CFG_LEN 0x254
#define NP_UDMA_QUEUES 0x1000
#define NP_UDMA_QUEUE_STRIDE 0x1000
#define NP_QUEUES_PER_ENGINE 16

/* Queue, from its block */
#define NP_Q_CFG 0x20
#define NP_Q_STATUS 0x24
#define NP_Q_DRBP_LOW 0x28
#define NP_Q_DRBP_HIGH 0x2c
#define NP_Q_DRL 0x30
#define NP_Q_DRHP 0x34
#define NP_Q_DRTP_INC 0x38
#define NP_Q_DRTP 0x3c
#define NP_Q_DCP 0x40
#define NP_Q_CRBP_LOW 0x44
#define NP_Q_CRBP_HIGH 0x48
#define NP_Q_CRHP 0x4c
#define NP_Q_RLIMIT_MASK 0x74
#define NP_M2S_Q_COMP_CFG 0xa0
#define NP_M2S_Q_SW_CTRL 0xb0
#define NP_S2M_Q_COMP_CFG 0x54
#define NP_S2M_Q_SW_CTRL 0x64
#define NP_Q_INDEX 0xffffff
#define NP_Q_CFG_RESET 0x3000000
#define NP_Q_CFG_ENABLED 0x30000
#define NP_Q_SW_CTRL_RESET 0x100
/* What user space must not write. */
#define NP_Q_GATED { 0x28, 0x2c, 0x44, 0x48, 0x38 }

/* Interrupt controller, from a group */
#define NP_IOFIC_RX 0x38040
#define NP_IOFIC_CAUSE 0x0
#define NP_IOFIC_MASK_CLEAR 0x18
#define NP_IOFIC_CONTROL 0x28
#define NP_IOFIC_ABORT_MASK 0x30

/* Events and semaphores, from a core's tile */
#define NP_SEMAPHORE_COUNT 256
#define NP_SEMAPHORE_CORE_OFFSET 0x2700000
#define NP_SEMAPHORE_READ 0x1000
#define NP_SEMAPHORE_SET 0x1400
#define NP_SEMAPHORE_INCREMENT 0x1800
#define NP_SEMAPHORE_DECREMENT 0x1c00

/* Notification queues, from a notification block */
#define NP_NQ_QUEUES 0x100
#define NP_NQ_STRIDE 0x28
#define NP_NQ_COUNT 16
#define NP_NQ_BASE_LOW 0x0
#define NP_NQ_BASE_HIGH 0x4
#define NP_NQ_SIZE 0x8
#define NP_NQ_TYPE_TRACE_DMA 4

/* Firmware window, from its base */
#define NP_MISC_ROUTING_ID 0x24
#define NP_MISC_DATA 0x100
#define NP_MISC_DATA_SIZE 0x80
#define NP_MISC_RESET_MAP 0x1d8
#define NP_MISC_RESET 0x1ec
#define NP_MISC_REQUEST_HIGH 0x1f0
#define NP_MISC_REQUEST_LOW 0x1f4
#define NP_MISC_RESPONSE_HIGH 0x1f8
#define NP_MISC_RESPONSE_LOW 0x1fc
#define NP_MISC_TRIGGER 0x800
#define NP_MISC_STATUS 0x808
#define NP_MISC_RESET_DEVICE 0x1
#define NP_MISC_RESET_CORES 0x2

/* Legacy mailbox */
struct np_mailbox_request {
	__u8 seq;
	__u8 command;
	__le16 size;
	__le32 crc;
};

struct np_mailbox_response {
	__u8 seq;
	__u8 error;
	__le16 size;
};

#define NP_MAILBOX_READ 1
#define NP_MAILBOX_POST 2
#define NP_MAILBOX_UNKNOWN 2
#define NP_MAILBOX_MAX_READ 100

/* Ioctl arguments */
struct np_device_basic_info {
	__u32 architecture;
	__u32 revision;
};
_Static_assert(sizeof(struct np_device_basic_info) == 8, "np_device_basic_info");

struct np_device_driver_info {
	__u32 architecture;
	__u32 revision;
	__u32 version;
	__u32 size;
	__u64 feature_flags1;
};
_Static_assert(sizeof(struct np_device_driver_info) == 24, "np_device_driver_info");

struct np_compatible_version {
	__u32 max;
	__u32 min;
};
_Static_assert(sizeof(struct np_compatible_version) == 8, "np_compatible_version");

struct np_device_info {
	__u32 architecture;
	__u32 revision;
	__u32 connected_device_count;
	__u32 connected_devices[8];
	__u32 pad_;
	__u64 bar_address[2];
	__u64 bar_size[2];
};
_Static_assert(sizeof(struct np_device_info) == 80, "np_device_info");

struct np_device_reset {
	__u32 nc_map;
	__u32 request_id;
};
_Static_assert(sizeof(struct np_device_reset) == 8, "np_device_reset");

struct np_device_ready {
	__u32 request_id;
	__s32 result;
};
_Static_assert(sizeof(struct np_device_ready) == 8, "np_device_ready");

struct np_device_init {
	__u32 mem_regions;
};
_Static_assert(sizeof(struct np_device_init) == 4, "np_device_init");

struct np_bar_rw {
	__u32 bar;
	__u32 pad_0;
	__u64 address;
	__u64 data;
	__u32 count;
	__u32 pad_1;
};
_Static_assert(sizeof(struct np_bar_rw) == 32, "np_bar_rw");

struct np_post_metric {
	__u64 data;
	__u32 data_size;
	__u32 pad_;
};
_Static_assert(sizeof(struct np_post_metric) == 16, "np_post_metric");

struct np_read_hw_counters {
	__u64 address;
	__u64 data;
	__u32 count;
	__u32 pad_;
};
_Static_assert(sizeof(struct np_read_hw_counters) == 24, "np_read_hw_counters");

struct np_device_bdf_ext {
	__u32 nd_index;
	__u32 domain;
	__u32 bus_number;
	__u8 slot;
	__u8 func;
	__u16 pad_;
};
_Static_assert(sizeof(struct np_device_bdf_ext) == 16, "np_device_bdf_ext");

struct np_host_device_id {
	__u32 host_device_id;
};
_Static_assert(sizeof(struct np_host_device_id) == 4, "np_host_device_id");

struct np_power_profile {
	__u16 sz;
	__u16 ctrl;
	__u32 profile;
};
_Static_assert(sizeof(struct np_power_profile) == 8, "np_power_profile");

struct np_metrics_ctrl {
	__u32 mode;
};
_Static_assert(sizeof(struct np_metrics_ctrl) == 4, "np_metrics_ctrl");

struct np_mem_alloc {
	__u64 size;
	__u32 host_memory;
	__u32 dram_channel;
	__u32 dram_region;
	__u32 nc_id;
	__u64 mem_handle;
};
_Static_assert(sizeof(struct np_mem_alloc) == 32, "np_mem_alloc");

struct np_mem_alloc_v2 {
	__u64 size;
	__u64 align;
	__u32 host_memory;
	__u32 dram_channel;
	__u32 dram_region;
	__u32 nc_id;
	__u64 mem_handle;
};
_Static_assert(sizeof(struct np_mem_alloc_v2) == 40, "np_mem_alloc_v2");

struct np_mem_alloc_v2_mem_type {
	__u64 size;
	__u64 align;
	__u32 host_memory;
	__u32 dram_channel;
	__u32 dram_region;
	__u32 nc_id;
	__u32 mem_type;
	__u32 pad_;
	__u64 mem_handle;
};
_Static_assert(sizeof(struct np_mem_alloc_v2_mem_type) == 48, "np_mem_alloc_v2_mem_type");

struct np_mem_alloc_v2_mem_type64 {
	__u64 size;
	__u64 align;
	__u32 host_memory;
	__u32 dram_channel;
	__u32 dram_region;
	__u32 nc_id;
	__u32 mem_type;
	__u32 pad_0;
	__u64 mem_handle;
	__u32 pad;
	__u32 pad_1;
};
_Static_assert(sizeof(struct np_mem_alloc_v2_mem_type64) == 56, "np_mem_alloc_v2_mem_type64");

struct np_mem_free {
	__u64 mem_handle;
};
_Static_assert(sizeof(struct np_mem_free) == 8, "np_mem_free");

struct np_mem_copy {
	__u64 src_mem_handle;
	__u64 dst_mem_handle;
	__u32 size;
	__u32 src_offset;
	__u32 dst_offset;
	__u32 pad_;
};
_Static_assert(sizeof(struct np_mem_copy) == 32, "np_mem_copy");

struct np_mem_copy64 {
	__u64 src_mem_handle;
	__u64 dst_mem_handle;
	__u64 size;
	__u64 src_offset;
	__u64 dst_offset;
};
_Static_assert(sizeof(struct np_mem_copy64) == 40, "np_mem_copy64");

struct np_mem_buf_copy {
	__u64 mem_handle;
	__u64 buffer;
	__u32 size;
	__u32 offset;
	__u32 copy_to_mem_handle;
	__u32 pad_;
};
_Static_assert(sizeof(struct np_mem_buf_copy) == 32, "np_mem_buf_copy");

struct np_mem_buf_copy64 {
	__u64 mem_handle;
	__u64 buffer;
	__u64 size;
	__u64 offset;
	__u32 copy_to_mem_handle;
	__u32 pad_;
};
_Static_assert(sizeof(struct np_mem_buf_copy64) == 40, "np_mem_buf_copy64");

struct np_mem_copy_async {
	__u64 src_mem_handle;
	__u64 dst_mem_handle;
	__u32 size;
	__u32 src_offset;
	__u32 dst_offset;
	__u32 pad_;
	__u64 host_prefetch_addr;
	__u32 pwait_handle;
	__u32 wait_handle;
};
_Static_assert(sizeof(struct np_mem_copy_async) == 48, "np_mem_copy_async");

struct np_mem_copy_async64 {
	__u64 src_mem_handle;
	__u64 dst_mem_handle;
	__u64 size;
	__u64 src_offset;
	__u64 dst_offset;
	__u64 host_prefetch_addr;
	__u32 pwait_handle;
	__u32 wait_handle;
};
_Static_assert(sizeof(struct np_mem_copy_async64) == 56, "np_mem_copy_async64");

struct np_mem_copy_async_wait {
	__u64 src_mem_handle;
	__u64 dst_mem_handle;
	__u32 pwait_handle;
	__u32 pad_;
};
_Static_assert(sizeof(struct np_mem_copy_async_wait) == 24, "np_mem_copy_async_wait");

struct np_memset {
	__u64 mem_handle;
	__u64 offset;
	__u32 value;
	__u32 size;
};
_Static_assert(sizeof(struct np_memset) == 24, "np_memset");

struct np_memset64 {
	__u64 mem_handle;
	__u64 offset;
	__u32 value;
	__u32 pad_;
	__u64 size;
};
_Static_assert(sizeof(struct np_memset64) == 32, "np_memset64");

struct np_mem_buf_copy64zc {
	__u64 mem_handle;
	__u64 buffer;
	__u64 size;
	__u64 offset;
	__u32 is_copy_to_device;
	__u32 bar4_wr_threshold;
	__s32 h2t_qid;
	__u32 dummy;
};
_Static_assert(sizeof(struct np_mem_buf_copy64zc) == 48, "np_mem_buf_copy64zc");

struct np_tensor_batch_op {
	__u64 offset;
	__u64 size;
	__u64 buffer;
};
_Static_assert(sizeof(struct np_tensor_batch_op) == 24, "np_tensor_batch_op");

struct np_memcpy_batch {
	__u64 mem_handle;
	__u64 mem_handle_offset;
	__u64 ops_ptr;
	__u32 num_ops;
	__u16 bar4_wr_threshold;
	__u16 flags;
	__u64 context;
};
_Static_assert(sizeof(struct np_memcpy_batch) == 40, "np_memcpy_batch");

struct np_mem_buf_copy64zc_batches {
	__u64 sequence_num;
	__u64 batches_ptr;
	__u32 num_batches;
	__u16 is_copy_to_device;
	__u16 pad_0;
	__s32 h2t_qid;
	__u16 flags;
	__u16 pad_1;
};
_Static_assert(sizeof(struct np_mem_buf_copy64zc_batches) == 32, "np_mem_buf_copy64zc_batches");

struct np_mem_get_pa {
	__u64 mem_handle;
	__u64 pa;
};
_Static_assert(sizeof(struct np_mem_get_pa) == 16, "np_mem_get_pa");

struct np_mem_get_info {
	__u64 mem_handle;
	__u64 mmap_offset;
	__u64 pa;
};
_Static_assert(sizeof(struct np_mem_get_info) == 24, "np_mem_get_info");

struct np_mem_get_extended_info {
	__u64 mem_handle;
	__u32 version;
	__u32 host_memory;
	__u64 mmap_offset;
	__u64 pa;
	__u64 pid;
	__u64 size;
};
_Static_assert(sizeof(struct np_mem_get_extended_info) == 48, "np_mem_get_extended_info");

struct np_program_engine {
	__u64 dst;
	__u64 buffer;
	__u32 size;
	__u32 offset;
};
_Static_assert(sizeof(struct np_program_engine) == 24, "np_program_engine");

struct np_program_engine_nc {
	__u32 nc_id;
	__u32 pad_;
	__u64 dst;
	__u64 buffer;
	__u32 size;
	__u32 offset;
};
_Static_assert(sizeof(struct np_program_engine_nc) == 32, "np_program_engine_nc");

struct np_program_engine_nc64 {
	__u32 nc_id;
	__u32 pad_;
	__u64 dst;
	__u64 buffer;
	__u64 size;
	__u64 offset;
};
_Static_assert(sizeof(struct np_program_engine_nc64) == 40, "np_program_engine_nc64");

struct np_dma_eng_state {
	__u32 revision_id;
	__u32 max_queues;
	__u32 num_queues;
	__u32 tx_state;
	__u32 rx_state;
};
_Static_assert(sizeof(struct np_dma_eng_state) == 20, "np_dma_eng_state");

struct np_dma_queue_state {
	__u32 hw_status;
	__u32 sw_status;
	__u64 base_addr;
	__u32 length;
	__u32 head_pointer;
	__u32 tail_pointer;
	__u32 pad_0;
	__u64 completion_base_addr;
	__u32 completion_head;
	__u32 pad_1;
};
_Static_assert(sizeof(struct np_dma_queue_state) == 48, "np_dma_queue_state");

struct np_dma_eng_init {
	__u32 eng_id;
};
_Static_assert(sizeof(struct np_dma_eng_init) == 4, "np_dma_eng_init");

struct np_dma_eng_set_state {
	__u32 eng_id;
	__u32 state;
};
_Static_assert(sizeof(struct np_dma_eng_set_state) == 8, "np_dma_eng_set_state");

struct np_dma_eng_get_state {
	__u32 eng_id;
	__u32 pad_;
	__u64 state;
};
_Static_assert(sizeof(struct np_dma_eng_get_state) == 16, "np_dma_eng_get_state");

struct np_dma_queue_init {
	__u32 eng_id;
	__u32 qid;
	__u32 tx_desc_count;
	__u32 rx_desc_count;
	__u64 tx_handle;
	__u64 rx_handle;
	__u64 rxc_handle;
	__u32 axi_port;
	__u32 pad_;
};
_Static_assert(sizeof(struct np_dma_queue_init) == 48, "np_dma_queue_init");

struct np_dma_queue_init_batch {
	__u32 count;
	__u32 pad_;
	struct np_dma_queue_init entries[256];
};
_Static_assert(sizeof(struct np_dma_queue_init_batch) == 12296, "np_dma_queue_init_batch");

struct np_dma_queue_release {
	__u32 eng_id;
	__u32 qid;
};
_Static_assert(sizeof(struct np_dma_queue_release) == 8, "np_dma_queue_release");

struct np_dma_queue_copy_start {
	__u32 eng_id;
	__u32 qid;
	__u32 tx_desc_count;
	__u32 rx_desc_count;
};
_Static_assert(sizeof(struct np_dma_queue_copy_start) == 16, "np_dma_queue_copy_start");

struct np_dma_ack_completed {
	__u32 eng_id;
	__u32 qid;
	__u32 count;
};
_Static_assert(sizeof(struct np_dma_ack_completed) == 12, "np_dma_ack_completed");

struct np_dma_queue_get_state {
	__u32 eng_id;
	__u32 qid;
	__u64 tx;
	__u64 rx;
};
_Static_assert(sizeof(struct np_dma_queue_get_state) == 24, "np_dma_queue_get_state");

struct np_dma_copy_descriptors {
	__u64 mem_handle;
	__u64 buffer;
	__u32 num_descs;
	__u32 offset;
	__u32 queue_type;
	__u32 pad_;
};
_Static_assert(sizeof(struct np_dma_copy_descriptors) == 32, "np_dma_copy_descriptors");

struct np_dma_copy_descriptors64 {
	__u64 mem_handle;
	__u64 buffer;
	__u32 num_descs;
	__u32 pad_0;
	__u64 offset;
	__u32 queue_type;
	__u32 pad_1;
};
_Static_assert(sizeof(struct np_dma_copy_descriptors64) == 40, "np_dma_copy_descriptors64");

struct np_dma_descriptor_copyout {
	__u32 eng_id;
	__u32 qid;
	__u32 queue_type;
	__u32 start_index;
	__u32 count;
	__u32 pad_;
	__u64 buffer;
};
_Static_assert(sizeof(struct np_dma_descriptor_copyout) == 32, "np_dma_descriptor_copyout");

struct np_h2t_dma_alloc_queues {
	__u16 sz;
	__u16 nc_id;
	__u16 copy_queue_cnt;
	__u16 service_queue_cnt;
	__u32 copy_queue_bmap;
	__u32 service_queue_bmap;
	__u32 copy_default_queue;
};
_Static_assert(sizeof(struct np_h2t_dma_alloc_queues) == 20, "np_h2t_dma_alloc_queues");

struct np_h2t_dma_free_queues {
	__u16 sz;
	__u8 nc_id;
	__u8 fill0;
	__u32 queue_bmap;
};
_Static_assert(sizeof(struct np_h2t_dma_free_queues) == 8, "np_h2t_dma_free_queues");

struct np_compl_queue_info {
	__u64 mmap_offset;
	__u64 mmap_size;
};
_Static_assert(sizeof(struct np_compl_queue_info) == 16, "np_compl_queue_info");

struct np_get_async_h2t_dma_compl_queues {
	__u32 nc_id;
	__u32 qid_bitmap;
	struct np_compl_queue_info compl_queue_info[16];
};
_Static_assert(sizeof(struct np_get_async_h2t_dma_compl_queues) == 264, "np_get_async_h2t_dma_compl_queues");

struct np_h2t_compl_queue {
	__u32 capacity;
	__u32 head;
	__u32 tail;
	__u32 pad_0;
};
_Static_assert(sizeof(struct np_h2t_compl_queue) == 16, "np_h2t_compl_queue");

struct np_h2t_compl_entry {
	__u64 sequence_num;
	__s64 compl_ret;
	__u64 context;
};
_Static_assert(sizeof(struct np_h2t_compl_entry) == 24, "np_h2t_compl_entry");

struct np_semaphore {
	__u32 nc_id;
	__u32 semaphore_index;
	__u32 value;
};
_Static_assert(sizeof(struct np_semaphore) == 12, "np_semaphore");

struct np_event {
	__u32 nc_id;
	__u32 event_index;
	__u32 value;
};
_Static_assert(sizeof(struct np_event) == 12, "np_event");

struct np_notifications_init_v2 {
	__u32 nq_dev_id;
	__u32 nq_dev_type;
	__u32 nq_type;
	__u32 engine_index;
	__u32 size;
	__u32 on_host_memory;
	__u32 dram_channel;
	__u32 dram_region;
	__u64 mmap_offset;
	__u64 mem_handle;
};
_Static_assert(sizeof(struct np_notifications_init_v2) == 48, "np_notifications_init_v2");


/* Ioctl requests; the comment says where data goes, which the encoding does not */
#define NP_IOCTL_DEVICE_RESET 0x00004e01 /* unused */
#define NP_IOCTL_DEVICE_READY 0x80014e02 /* unused */
#define NP_IOCTL_DEVICE_INFO 0x80084e03 /* struct np_device_info, out */
#define NP_IOCTL_DEVICE_INIT 0x80084e04 /* struct np_device_init, unused */
#define NP_IOCTL_DEVICE_RELEASE 0x00004e05 /* unused */
#define NP_IOCTL_BAR_READ 0x80084e0b /* struct np_bar_rw, in, out by pointer */
#define NP_IOCTL_BAR_WRITE 0x40084e0c /* struct np_bar_rw, in */
#define NP_IOCTL_POST_METRIC 0x40084e0d /* struct np_post_metric, in */
#define NP_IOCTL_READ_HW_COUNTERS 0x80084e3d /* struct np_read_hw_counters, in, out by pointer */
#define NP_IOCTL_COMPATIBLE_VERSION 0x40084e5d /* struct np_compatible_version, out */
#define NP_IOCTL_DEVICE_BASIC_INFO 0x40084e64 /* struct np_device_basic_info, out */
#define NP_IOCTL_NC_RESET 0x80084e67 /* struct np_device_reset, in, out */
#define NP_IOCTL_NC_RESET_READY 0x80084e68 /* struct np_device_ready, in, out */
#define NP_IOCTL_DEVICE_BDF_EXT 0x80084e6a /* struct np_device_bdf_ext, in, out */
#define NP_IOCTL_DRIVER_INFO_GET 0x80184e6e /* struct np_device_driver_info, out */
#define NP_IOCTL_HOST_DEVICE_ID 0x80044e72 /* struct np_host_device_id, out */
#define NP_IOCTL_POWER_PROFILE 0x40084e7f /* struct np_power_profile, in */
#define NP_IOCTL_METRICS_CTRL 0x40044e80 /* struct np_metrics_ctrl, in */
#define NP_IOCTL_MEM_ALLOC 0x80084e15 /* struct np_mem_alloc, in, out by pointer */
#define NP_IOCTL_MEM_ALLOC_V2 0x80084e66 /* struct np_mem_alloc_v2, in, out by pointer */
#define NP_IOCTL_MEM_ALLOC_V2MT 0x80304e66 /* struct np_mem_alloc_v2_mem_type, in, out by pointer */
#define NP_IOCTL_MEM_ALLOC_V2MT64 0x80384e66 /* struct np_mem_alloc_v2_mem_type64, in, out by pointer */
#define NP_IOCTL_MEM_FREE 0x80084e16 /* struct np_mem_free, in */
#define NP_IOCTL_MEM_COPY 0x80084e17 /* struct np_mem_copy, in */
#define NP_IOCTL_MEM_COPY64 0x80284e17 /* struct np_mem_copy64, in */
#define NP_IOCTL_MEM_BUF_COPY 0xc0084e18 /* struct np_mem_buf_copy, in, out by pointer */
#define NP_IOCTL_MEM_BUF_COPY64 0xc0284e18 /* struct np_mem_buf_copy64, in, out by pointer */
#define NP_IOCTL_MEM_GET_PA 0x80084e19 /* struct np_mem_get_pa, in, out by pointer */
#define NP_IOCTL_MEM_GET_INFO 0x80084e1a /* struct np_mem_get_info, in, out by pointer */
#define NP_IOCTL_PROGRAM_ENGINE 0xc0084e1b /* struct np_program_engine, in */
#define NP_IOCTL_PROGRAM_ENGINE_NC 0xc0084e69 /* struct np_program_engine_nc, in */
#define NP_IOCTL_PROGRAM_ENGINE_NC64 0xc0284e69 /* struct np_program_engine_nc64, in */
#define NP_IOCTL_MEMSET 0x80084e1c /* struct np_memset, in */
#define NP_IOCTL_MEMSET64 0x80204e1c /* struct np_memset64, in */
#define NP_IOCTL_MEM_GET_EXTENDED_INFO 0x80084e1d /* struct np_mem_get_extended_info, in, out */
#define NP_IOCTL_MEM_COPY_ASYNC 0xc0304e6c /* struct np_mem_copy_async, in, out */
#define NP_IOCTL_MEM_COPY_ASYNC64 0xc0384e6c /* struct np_mem_copy_async64, in, out */
#define NP_IOCTL_MEM_COPY_ASYNC_WAIT 0x40184e6d /* struct np_mem_copy_async_wait, in */
#define NP_IOCTL_MEM_BUF_ZEROCOPY64 0xc0304e7c /* struct np_mem_buf_copy64zc, in, out by pointer */
#define NP_IOCTL_MEM_BUF_ZEROCOPY64_BATCHES 0xc0204e81 /* struct np_mem_buf_copy64zc_batches, in, out by pointer */
#define NP_IOCTL_DMA_ENG_INIT 0x80084e1e /* struct np_dma_eng_init, unused */
#define NP_IOCTL_DMA_ENG_SET_STATE 0x80084e1f /* struct np_dma_eng_set_state, in */
#define NP_IOCTL_DMA_ENG_GET_STATE 0xc0084e20 /* struct np_dma_eng_get_state, in, out by pointer */
#define NP_IOCTL_DMA_QUEUE_INIT 0x80084e21 /* struct np_dma_queue_init, in */
#define NP_IOCTL_DMA_QUEUE_INIT_BATCH 0xb0084e85 /* struct np_dma_queue_init_batch, in */
#define NP_IOCTL_DMA_QUEUE_RELEASE 0x80084e22 /* struct np_dma_queue_release, in */
#define NP_IOCTL_DMA_QUEUE_COPY_START 0x80084e23 /* struct np_dma_queue_copy_start, in */
#define NP_IOCTL_DMA_ACK_COMPLETED 0x80084e24 /* struct np_dma_ack_completed, in */
#define NP_IOCTL_DMA_QUEUE_GET_STATE 0xc0084e25 /* struct np_dma_queue_get_state, in, out by pointer */
#define NP_IOCTL_DMA_COPY_DESCRIPTORS 0x80084e26 /* struct np_dma_copy_descriptors, in */
#define NP_IOCTL_DMA_COPY_DESCRIPTORS64 0x80284e26 /* struct np_dma_copy_descriptors64, in */
#define NP_IOCTL_DMA_DESCRIPTOR_COPYOUT 0xc0084e27 /* struct np_dma_descriptor_copyout, in, out by pointer */
#define NP_IOCTL_H2T_DMA_ALLOC_QUEUES 0xc0144e7d /* struct np_h2t_dma_alloc_queues, in, out */
#define NP_IOCTL_H2T_DMA_FREE_QUEUES 0xc0084e7e /* struct np_h2t_dma_free_queues, in */
#define NP_IOCTL_GET_ASYNC_H2T_DMA_COMPL_QUEUES 0xc1084e87 /* struct np_get_async_h2t_dma_compl_queues, in, out */
#define NP_IOCTL_SEMAPHORE_INCREMENT 0x80084e29 /* struct np_semaphore, in */
#define NP_IOCTL_SEMAPHORE_DECREMENT 0x80084e2a /* struct np_semaphore, in */
#define NP_IOCTL_SEMAPHORE_READ 0xc0084e2b /* struct np_semaphore, in, out */
#define NP_IOCTL_SEMAPHORE_WRITE 0x80084e2c /* struct np_semaphore, in */
#define NP_IOCTL_EVENT_SET 0x80084e2d /* struct np_event, in */
#define NP_IOCTL_EVENT_GET 0xc0084e2e /* struct np_event, in, out */
#define NP_IOCTL_NOTIFICATIONS_INIT_V2 0x80084e35 /* struct np_notifications_init_v2, in, out */

#define NP_NC_MAP_DEVICE 0xffffffffu
#define NP_QUEUE_TYPE_TX 0
#define NP_QUEUE_TYPE_RX 1
#define NP_FEATURE_ASYNC_DMA 0x2
#define NP_FEATURE_BATCH_DMAQ_INIT 0x4
#define NP_FEATURE_MEM_ALLOC_TYPE 0x10
#define NP_FEATURE_MEM_ALLOC64 0x40
#define NP_FEATURE_ZEROCOPY 0x100

/* Generations and products */
#define NP_MAX_HBM 4
#define NP_ROUTING_IDS 64

enum np_block {
	NP_BLOCK_UDMA,
	NP_BLOCK_SDMA,
	NP_BLOCK_SDMA_NOTIFICATION,
	NP_BLOCK_ERROR_TRIGGER,
	NP_BLOCK_CORE_TILE,
	NP_BLOCK_CORE_NOTIFICATION,
	NP_BLOCK_ACTIVITY,
	NP_BLOCK_TOP_SP,
	NP_BLOCK_TOP_SP_NOTIFICATION,
	NP_BLOCK_MISC_RAM,
	NP_BLOCK_RESET,
};

struct np_window {
	__u32 base;
	__u32 stride;
	__u32 count;
	__u32 block; /* enum np_block */
	__u32 first; /* index of the first one among its kind */
};

/* Device-side addresses that are a stretch of the register window. */
struct np_soc_window {
	__u64 base;
	__u64 size;
	__u32 offset;
};

struct np_generation {
	const char *name;
	__u32 arch;
	__u32 cores;
	__u32 engines;
	__u32 engines_per_core;
	__u32 first_h2t_engine;
	__u32 cores_per_h2t_engine;
	__u64 register_bar_size;
	const struct np_window *windows;
	__u32 window_count;
	const struct np_soc_window *soc_windows;
	__u32 soc_window_count;
	__u32 hbm_count;
	__u64 hbm_base[NP_MAX_HBM];
	__u64 hbm_size;
	__u64 hbm_bar_stride;
	__u32 hbm_sized_by_bar; /* on the qemu platform: size and stride are BAR size / count */
	__u64 host_mask;
	__u64 host_value; /* what an address of guest RAM carries */
	__u64 host_address_mask; /* the rest of it */
	__u32 reset_flag;
	__u32 reset_with_firmware;
	__u32 misc_ram;
	__u32 budget_us_per_descriptor;
	__u32 budget_early_us;
	__u32 budget_estimates;
};

struct np_product {
	__u16 device_id;
	__u8 generation; /* index in np_generations */
	const char *name;
	__u8 node[NP_ROUTING_IDS]; /* N of /dev/neuronN by routing id */
};

#ifdef NP_TABLES /* defined by the one file that holds them */

static const struct np_window np_v2_windows[] = {
	{ 0x30600000, 0x40000, 1, NP_BLOCK_UDMA, 32 },
	{ 0x30d00000, 0x40000, 1, NP_BLOCK_UDMA, 33 },
	{ 0x30000000, 0x40000, 16, NP_BLOCK_UDMA, 0 },
	{ 0x30700000, 0x40000, 16, NP_BLOCK_UDMA, 16 },
	{ 0x30fa0000, 0x1000, 1, NP_BLOCK_MISC_RAM, 0 },
	{ 0x30647000, 0x1000, 1, NP_BLOCK_RESET, 0 },
	{ 0x0, 0x4000000, 2, NP_BLOCK_CORE_TILE, 0 },
	{ 0x10000000, 0x400000, 6, NP_BLOCK_TOP_SP, 0 },
	{ 0x30400000, 0x7000, 16, NP_BLOCK_SDMA, 0 },
	{ 0x30b00000, 0x7000, 16, NP_BLOCK_SDMA, 16 },
	{ 0x30640000, 0x1000, 1, NP_BLOCK_SDMA, 32 },
	{ 0x30d40000, 0x1000, 1, NP_BLOCK_SDMA, 33 },
	{ 0x30401000, 0x7000, 16, NP_BLOCK_SDMA_NOTIFICATION, 0 },
	{ 0x30b01000, 0x7000, 16, NP_BLOCK_SDMA_NOTIFICATION, 16 },
	{ 0x30641000, 0x1000, 1, NP_BLOCK_SDMA_NOTIFICATION, 32 },
	{ 0x30d41000, 0x1000, 1, NP_BLOCK_SDMA_NOTIFICATION, 33 },
	{ 0x30535000, 0x700000, 2, NP_BLOCK_CORE_NOTIFICATION, 0 },
	{ 0x30e04000, 0x40000, 6, NP_BLOCK_TOP_SP_NOTIFICATION, 0 },
	{ 0x305b1000, 0x700000, 2, NP_BLOCK_ACTIVITY, 0 },
};

static const struct np_soc_window np_v2_soc_windows[] = {
	{ 0xfffc0000000, 0x8000000, 0x0 },
	{ 0xfffd0000000, 0x1800000, 0x10000000 },
	{ 0xffff0000000, 0x10000000, 0x30000000 },
};

static const struct np_window np_v3_windows[] = {
	{ 0x6800000, 0x100000, 2, NP_BLOCK_UDMA, 128 },
	{ 0x46800000, 0x100000, 2, NP_BLOCK_UDMA, 130 },
	{ 0x82000000, 0x100000, 32, NP_BLOCK_UDMA, 0 },
	{ 0x94000000, 0x100000, 32, NP_BLOCK_UDMA, 32 },
	{ 0xa2000000, 0x100000, 32, NP_BLOCK_UDMA, 64 },
	{ 0xb4000000, 0x100000, 32, NP_BLOCK_UDMA, 96 },
	{ 0x6c84000, 0x1000, 1, NP_BLOCK_MISC_RAM, 0 },
	{ 0x6300000, 0x1000, 1, NP_BLOCK_RESET, 0 },
	{ 0xd0000000, 0x4000000, 8, NP_BLOCK_CORE_TILE, 0 },
	{ 0xf0000000, 0x400000, 20, NP_BLOCK_TOP_SP, 0 },
	{ 0x6840000, 0x100000, 2, NP_BLOCK_SDMA, 128 },
	{ 0x46840000, 0x100000, 2, NP_BLOCK_SDMA, 130 },
	{ 0x82040000, 0x100000, 32, NP_BLOCK_SDMA, 0 },
	{ 0x94040000, 0x100000, 32, NP_BLOCK_SDMA, 32 },
	{ 0xa2040000, 0x100000, 32, NP_BLOCK_SDMA, 64 },
	{ 0xb4040000, 0x100000, 32, NP_BLOCK_SDMA, 96 },
	{ 0x6841000, 0x100000, 2, NP_BLOCK_SDMA_NOTIFICATION, 128 },
	{ 0x46841000, 0x100000, 2, NP_BLOCK_SDMA_NOTIFICATION, 130 },
	{ 0x82041000, 0x100000, 32, NP_BLOCK_SDMA_NOTIFICATION, 0 },
	{ 0x94041000, 0x100000, 32, NP_BLOCK_SDMA_NOTIFICATION, 32 },
	{ 0xa2041000, 0x100000, 32, NP_BLOCK_SDMA_NOTIFICATION, 64 },
	{ 0xb4041000, 0x100000, 32, NP_BLOCK_SDMA_NOTIFICATION, 96 },
	{ 0x8c000000, 0x20000, 32, NP_BLOCK_ERROR_TRIGGER, 0 },
	{ 0x9c400000, 0x20000, 32, NP_BLOCK_ERROR_TRIGGER, 32 },
	{ 0xac000000, 0x20000, 32, NP_BLOCK_ERROR_TRIGGER, 64 },
	{ 0xbc400000, 0x20000, 32, NP_BLOCK_ERROR_TRIGGER, 96 },
	{ 0x6001000, 0x180000, 2, NP_BLOCK_CORE_NOTIFICATION, 0 },
	{ 0x6401000, 0x180000, 2, NP_BLOCK_CORE_NOTIFICATION, 2 },
	{ 0x46001000, 0x180000, 2, NP_BLOCK_CORE_NOTIFICATION, 4 },
	{ 0x46401000, 0x180000, 2, NP_BLOCK_CORE_NOTIFICATION, 6 },
	{ 0x6a00000, 0x40000, 8, NP_BLOCK_TOP_SP_NOTIFICATION, 0 },
	{ 0x46a00000, 0x40000, 8, NP_BLOCK_TOP_SP_NOTIFICATION, 8 },
	{ 0x6141000, 0x180000, 2, NP_BLOCK_ACTIVITY, 0 },
	{ 0x6541000, 0x180000, 2, NP_BLOCK_ACTIVITY, 2 },
	{ 0x46141000, 0x180000, 2, NP_BLOCK_ACTIVITY, 4 },
	{ 0x46541000, 0x180000, 2, NP_BLOCK_ACTIVITY, 6 },
};

static const struct np_soc_window np_v3_soc_windows[] = {
	{ 0x1000000000, 0x10000000, 0x80000000 },
	{ 0x1200000000, 0x34c0000, 0xc0000000 },
	{ 0x2000000000, 0x2000000, 0xd0000000 },
	{ 0x2802000000, 0x2000000, 0xd2000000 },
	{ 0x3000000000, 0x2000000, 0xd4000000 },
	{ 0x3802000000, 0x2000000, 0xd6000000 },
	{ 0x5000000000, 0x10000000, 0x90000000 },
	{ 0x5200000000, 0x34c0000, 0xc4000000 },
	{ 0x6000000000, 0x2000000, 0xd8000000 },
	{ 0x6802000000, 0x2000000, 0xda000000 },
	{ 0x7000000000, 0x2000000, 0xdc000000 },
	{ 0x7802000000, 0x2000000, 0xde000000 },
	{ 0x8000000000, 0x20000000, 0x0 },
	{ 0x8280000000, 0x400000, 0xf0000000 },
	{ 0x82c0000000, 0x400000, 0xf0400000 },
	{ 0x8300000000, 0x400000, 0xf0800000 },
	{ 0x8340000000, 0x400000, 0xf0c00000 },
	{ 0x8380000000, 0x400000, 0xf1000000 },
	{ 0x83c0000000, 0x400000, 0xf1400000 },
	{ 0x8400000000, 0x400000, 0xf1800000 },
	{ 0x8440000000, 0x400000, 0xf1c00000 },
	{ 0x8480000000, 0x400000, 0xf2000000 },
	{ 0x84c0000000, 0x400000, 0xf2400000 },
	{ 0x801000000000, 0x10000000, 0xa0000000 },
	{ 0x801200000000, 0x34c0000, 0xc8000000 },
	{ 0x802000000000, 0x2000000, 0xe0000000 },
	{ 0x802802000000, 0x2000000, 0xe2000000 },
	{ 0x803000000000, 0x2000000, 0xe4000000 },
	{ 0x803802000000, 0x2000000, 0xe6000000 },
	{ 0x805000000000, 0x10000000, 0xb0000000 },
	{ 0x805200000000, 0x34c0000, 0xcc000000 },
	{ 0x806000000000, 0x2000000, 0xe8000000 },
	{ 0x806802000000, 0x2000000, 0xea000000 },
	{ 0x807000000000, 0x2000000, 0xec000000 },
	{ 0x807802000000, 0x2000000, 0xee000000 },
	{ 0x808000000000, 0x20000000, 0x40000000 },
	{ 0x808280000000, 0x400000, 0xf2800000 },
	{ 0x8082c0000000, 0x400000, 0xf2c00000 },
	{ 0x808300000000, 0x400000, 0xf3000000 },
	{ 0x808340000000, 0x400000, 0xf3400000 },
	{ 0x808380000000, 0x400000, 0xf3800000 },
	{ 0x8083c0000000, 0x400000, 0xf3c00000 },
	{ 0x808400000000, 0x400000, 0xf4000000 },
	{ 0x808440000000, 0x400000, 0xf4400000 },
	{ 0x808480000000, 0x400000, 0xf4800000 },
	{ 0x8084c0000000, 0x400000, 0xf4c00000 },
};

static const struct np_window np_v4_windows[] = {
	{ 0x6800000, 0x100000, 2, NP_BLOCK_UDMA, 128 },
	{ 0x46800000, 0x100000, 2, NP_BLOCK_UDMA, 130 },
	{ 0x82000000, 0x100000, 32, NP_BLOCK_UDMA, 0 },
	{ 0x94000000, 0x100000, 32, NP_BLOCK_UDMA, 32 },
	{ 0xa2000000, 0x100000, 32, NP_BLOCK_UDMA, 64 },
	{ 0xb4000000, 0x100000, 32, NP_BLOCK_UDMA, 96 },
	{ 0x6c84000, 0x1000, 1, NP_BLOCK_MISC_RAM, 0 },
	{ 0x6300000, 0x1000, 1, NP_BLOCK_RESET, 0 },
	{ 0xd0000000, 0x4000000, 8, NP_BLOCK_CORE_TILE, 0 },
	{ 0xf0000000, 0x400000, 20, NP_BLOCK_TOP_SP, 0 },
	{ 0x6840000, 0x100000, 2, NP_BLOCK_SDMA, 128 },
	{ 0x46840000, 0x100000, 2, NP_BLOCK_SDMA, 130 },
	{ 0x82040000, 0x100000, 32, NP_BLOCK_SDMA, 0 },
	{ 0x94040000, 0x100000, 32, NP_BLOCK_SDMA, 32 },
	{ 0xa2040000, 0x100000, 32, NP_BLOCK_SDMA, 64 },
	{ 0xb4040000, 0x100000, 32, NP_BLOCK_SDMA, 96 },
	{ 0x6841000, 0x100000, 2, NP_BLOCK_SDMA_NOTIFICATION, 128 },
	{ 0x46841000, 0x100000, 2, NP_BLOCK_SDMA_NOTIFICATION, 130 },
	{ 0x82041000, 0x100000, 32, NP_BLOCK_SDMA_NOTIFICATION, 0 },
	{ 0x94041000, 0x100000, 32, NP_BLOCK_SDMA_NOTIFICATION, 32 },
	{ 0xa2041000, 0x100000, 32, NP_BLOCK_SDMA_NOTIFICATION, 64 },
	{ 0xb4041000, 0x100000, 32, NP_BLOCK_SDMA_NOTIFICATION, 96 },
	{ 0x8c000000, 0x20000, 32, NP_BLOCK_ERROR_TRIGGER, 0 },
	{ 0x9c400000, 0x20000, 32, NP_BLOCK_ERROR_TRIGGER, 32 },
	{ 0xac000000, 0x20000, 32, NP_BLOCK_ERROR_TRIGGER, 64 },
	{ 0xbc400000, 0x20000, 32, NP_BLOCK_ERROR_TRIGGER, 96 },
	{ 0x6001000, 0x180000, 2, NP_BLOCK_CORE_NOTIFICATION, 0 },
	{ 0x6401000, 0x180000, 2, NP_BLOCK_CORE_NOTIFICATION, 2 },
	{ 0x46001000, 0x180000, 2, NP_BLOCK_CORE_NOTIFICATION, 4 },
	{ 0x46401000, 0x180000, 2, NP_BLOCK_CORE_NOTIFICATION, 6 },
	{ 0x6a00000, 0x40000, 8, NP_BLOCK_TOP_SP_NOTIFICATION, 0 },
	{ 0x46a00000, 0x40000, 8, NP_BLOCK_TOP_SP_NOTIFICATION, 8 },
	{ 0x6141000, 0x180000, 2, NP_BLOCK_ACTIVITY, 0 },
	{ 0x6541000, 0x180000, 2, NP_BLOCK_ACTIVITY, 2 },
	{ 0x46141000, 0x180000, 2, NP_BLOCK_ACTIVITY, 4 },
	{ 0x46541000, 0x180000, 2, NP_BLOCK_ACTIVITY, 6 },
};

static const struct np_soc_window np_v4_soc_windows[] = {
	{ 0x1000000000, 0x10000000, 0x80000000 },
	{ 0x1200000000, 0x34c0000, 0xc0000000 },
	{ 0x2000000000, 0x2000000, 0xd0000000 },
	{ 0x2802000000, 0x2000000, 0xd2000000 },
	{ 0x3000000000, 0x2000000, 0xd4000000 },
	{ 0x3802000000, 0x2000000, 0xd6000000 },
	{ 0x5000000000, 0x10000000, 0x90000000 },
	{ 0x5200000000, 0x34c0000, 0xc4000000 },
	{ 0x6000000000, 0x2000000, 0xd8000000 },
	{ 0x6802000000, 0x2000000, 0xda000000 },
	{ 0x7000000000, 0x2000000, 0xdc000000 },
	{ 0x7802000000, 0x2000000, 0xde000000 },
	{ 0x8000000000, 0x20000000, 0x0 },
	{ 0x8280000000, 0x400000, 0xf0000000 },
	{ 0x82c0000000, 0x400000, 0xf0400000 },
	{ 0x8300000000, 0x400000, 0xf0800000 },
	{ 0x8340000000, 0x400000, 0xf0c00000 },
	{ 0x8380000000, 0x400000, 0xf1000000 },
	{ 0x83c0000000, 0x400000, 0xf1400000 },
	{ 0x8400000000, 0x400000, 0xf1800000 },
	{ 0x8440000000, 0x400000, 0xf1c00000 },
	{ 0x8480000000, 0x400000, 0xf2000000 },
	{ 0x84c0000000, 0x400000, 0xf2400000 },
	{ 0x801000000000, 0x10000000, 0xa0000000 },
	{ 0x801200000000, 0x34c0000, 0xc8000000 },
	{ 0x802000000000, 0x2000000, 0xe0000000 },
	{ 0x802802000000, 0x2000000, 0xe2000000 },
	{ 0x803000000000, 0x2000000, 0xe4000000 },
	{ 0x803802000000, 0x2000000, 0xe6000000 },
	{ 0x805000000000, 0x10000000, 0xb0000000 },
	{ 0x805200000000, 0x34c0000, 0xcc000000 },
	{ 0x806000000000, 0x2000000, 0xe8000000 },
	{ 0x806802000000, 0x2000000, 0xea000000 },
	{ 0x807000000000, 0x2000000, 0xec000000 },
	{ 0x807802000000, 0x2000000, 0xee000000 },
	{ 0x808000000000, 0x20000000, 0x40000000 },
	{ 0x808280000000, 0x400000, 0xf2800000 },
	{ 0x8082c0000000, 0x400000, 0xf2c00000 },
	{ 0x808300000000, 0x400000, 0xf3000000 },
	{ 0x808340000000, 0x400000, 0xf3400000 },
	{ 0x808380000000, 0x400000, 0xf3800000 },
	{ 0x8083c0000000, 0x400000, 0xf3c00000 },
	{ 0x808400000000, 0x400000, 0xf4000000 },
	{ 0x808440000000, 0x400000, 0xf4400000 },
	{ 0x808480000000, 0x400000, 0xf4800000 },
	{ 0x8084c0000000, 0x400000, 0xf4c00000 },
};

static const struct np_generation np_generations[] = {
	{
		.name = "V2",
		.arch = 2,
		.cores = 2,
		.engines = 34,
		.engines_per_core = 16,
		.first_h2t_engine = 32,
		.cores_per_h2t_engine = 1,
		.hbm_sized_by_bar = 0,
		.reset_with_firmware = 1,
		.budget_us_per_descriptor = 4,
		.budget_early_us = 3,
		.budget_estimates = 100,
		.register_bar_size = 0x40000000,
		.hbm_size = 0x400000000,
		.hbm_bar_stride = 0x400000000,
		.host_mask = 0xfffff00000000000,
		.host_value = 0x100000000000,
		.host_address_mask = 0xfffffffffff,
		.reset_flag = 0x30647010,
		.misc_ram = 0x30fa0000,
		.windows = np_v2_windows,
		.window_count = 19,
		.soc_windows = np_v2_soc_windows,
		.soc_window_count = 3,
		.hbm_count = 2,
		.hbm_base = { 0x0, 0x1000000000 },
	},
	{
		.name = "V3",
		.arch = 3,
		.cores = 8,
		.engines = 132,
		.engines_per_core = 16,
		.first_h2t_engine = 128,
		.cores_per_h2t_engine = 2,
		.hbm_sized_by_bar = 1,
		.reset_with_firmware = 0,
		.budget_us_per_descriptor = 2,
		.budget_early_us = 1,
		.budget_estimates = 400,
		.register_bar_size = 0x100000000,
		.hbm_size = 0x600000000,
		.hbm_bar_stride = 0x1000000000,
		.host_mask = 0xffff400000000000,
		.host_value = 0x400000000000,
		.host_address_mask = 0x3fffffffffff,
		.reset_flag = 0x6300010,
		.misc_ram = 0x6c84000,
		.windows = np_v3_windows,
		.window_count = 36,
		.soc_windows = np_v3_soc_windows,
		.soc_window_count = 46,
		.hbm_count = 4,
		.hbm_base = { 0x0, 0x4000000000, 0x800000000000, 0x804000000000 },
	},
	{
		.name = "V4",
		.arch = 4,
		.cores = 8,
		.engines = 132,
		.engines_per_core = 16,
		.first_h2t_engine = 128,
		.cores_per_h2t_engine = 2,
		.hbm_sized_by_bar = 1,
		.reset_with_firmware = 0,
		.budget_us_per_descriptor = 2,
		.budget_early_us = 1,
		.budget_estimates = 400,
		.register_bar_size = 0x100000000,
		.hbm_size = 0x900000000,
		.hbm_bar_stride = 0x1000000000,
		.host_mask = 0xffff400000000000,
		.host_value = 0x400000000000,
		.host_address_mask = 0x3fffffffffff,
		.reset_flag = 0x6300010,
		.misc_ram = 0x6c84000,
		.windows = np_v4_windows,
		.window_count = 36,
		.soc_windows = np_v4_soc_windows,
		.soc_window_count = 46,
		.hbm_count = 4,
		.hbm_base = { 0x0, 0x4000000000, 0x800000000000, 0x804000000000 },
	},
};

static const struct np_product np_products[] = {
	{ NP_DEVICE_7164, 0, "trn1",
	  { 0, 4, 1, 5, 3, 7, 2, 6, 12, 8, 13, 9, 15, 11, 14, 10,
	    0, 4, 1, 5, 3, 7, 2, 6, 12, 8, 13, 9, 15, 11, 14, 10,
	    0, 4, 1, 5, 3, 7, 2, 6, 12, 8, 13, 9, 15, 11, 14, 10,
	    0, 4, 1, 5, 3, 7, 2, 6, 12, 8, 13, 9, 15, 11, 14, 10 } },
	{ NP_DEVICE_7264, 0, "inf2",
	  { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
	    16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
	    32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47,
	    48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63 } },
	{ NP_DEVICE_7364, 1, "trn2",
	  { 0, 3, 4, 7, 12, 15, 8, 11, 1, 2, 5, 6, 13, 14, 9, 10,
	    0, 3, 4, 7, 12, 15, 8, 11, 1, 2, 5, 6, 13, 14, 9, 10,
	    0, 3, 4, 7, 12, 15, 8, 11, 1, 2, 5, 6, 13, 14, 9, 10,
	    0, 3, 4, 7, 12, 15, 8, 11, 1, 2, 5, 6, 13, 14, 9, 10 } },
	{ NP_DEVICE_7564, 2, "trn3",
	  { 0, 3, 4, 7, 12, 15, 8, 11, 1, 2, 5, 6, 13, 14, 9, 10,
	    0, 3, 4, 7, 12, 15, 8, 11, 1, 2, 5, 6, 13, 14, 9, 10,
	    0, 3, 4, 7, 12, 15, 8, 11, 1, 2, 5, 6, 13, 14, 9, 10,
	    0, 3, 4, 7, 12, 15, 8, 11, 1, 2, 5, 6, 13, 14, 9, 10 } },
	{ NP_DEVICE_7565, 2, "trn3",
	  { 0, 3, 4, 7, 12, 15, 8, 11, 1, 2, 5, 6, 13, 14, 9, 10,
	    0, 3, 4, 7, 12, 15, 8, 11, 1, 2, 5, 6, 13, 14, 9, 10,
	    0, 3, 4, 7, 12, 15, 8, 11, 1, 2, 5, 6, 13, 14, 9, 10,
	    0, 3, 4, 7, 12, 15, 8, 11, 1, 2, 5, 6, 13, 14, 9, 10 } },
};
#endif

#endif
