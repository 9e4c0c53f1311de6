// SPDX-License-Identifier: GPL-2.0
/*
 * The legacy firmware mailbox: a request and a response buffer in guest RAM,
 * whose addresses and trigger are registers. The answer is polled in memory,
 * where its sequence byte arrives last.
 */
#include <linux/crc32.h>
#include <linux/delay.h>
#include <linux/dma-mapping.h>

#include "neuron_test.h"

#define NT_MAILBOX_SIZE PAGE_SIZE
#define NT_TRIES 30
#define NT_TRY_MS 1000

int nt_mailbox_init(struct nt_dev *nd)
{
	struct device *dev = &nd->pdev->dev;
	struct nt_mailbox *box = &nd->mailbox;

	box->request = dma_alloc_coherent(dev, NT_MAILBOX_SIZE, &box->request_dma, GFP_KERNEL);
	box->response = dma_alloc_coherent(dev, NT_MAILBOX_SIZE, &box->response_dma, GFP_KERNEL);
	return box->request && box->response ? 0 : -ENOMEM;
}

void nt_mailbox_exit(struct nt_dev *nd)
{
	struct device *dev = &nd->pdev->dev;
	struct nt_mailbox *box = &nd->mailbox;

	if (box->request)
		dma_free_coherent(dev, NT_MAILBOX_SIZE, box->request, box->request_dma);
	if (box->response)
		dma_free_coherent(dev, NT_MAILBOX_SIZE, box->response, box->response_dma);
	box->request = NULL;
	box->response = NULL;
}

static void nt_mailbox_send(struct nt_dev *nd, u8 command, u32 payload)
{
	struct nt_mailbox *box = &nd->mailbox;
	struct np_mailbox_request *request = box->request;
	struct np_mailbox_response *response = box->response;
	u64 from = nt_host_address(nd, box->request_dma), to = nt_host_address(nd, box->response_dma);
	u32 size = sizeof(*request) + payload;

	/* Sequence numbers are never 0, which is what an empty response buffer holds. */
	box->seq = box->seq == U8_MAX ? 1 : box->seq + 1;
	request->seq = box->seq;
	request->command = command;
	request->size = cpu_to_le16(size);
	request->crc = 0;
	request->crc = cpu_to_le32(~__crc32c_le(~0, box->request, size));
	WRITE_ONCE(response->seq, 0);

	nt_misc_write(nd, NP_MISC_REQUEST_LOW, lower_32_bits(from));
	nt_misc_write(nd, NP_MISC_REQUEST_HIGH, upper_32_bits(from));
	nt_misc_write(nd, NP_MISC_RESPONSE_LOW, lower_32_bits(to));
	nt_misc_write(nd, NP_MISC_RESPONSE_HIGH, upper_32_bits(to));
	mb();
	nt_misc_write(nd, NP_MISC_TRIGGER, 1);
}

/* Sends what lies behind the request header; returns the bytes of the answer's payload. */
static int nt_mailbox_call(struct nt_dev *nd, u8 command, u32 payload)
{
	struct np_mailbox_response *response = nd->mailbox.response;
	u32 try, ms;

	for (try = 0; try < NT_TRIES; try++) {
		nt_mailbox_send(nd, command, payload);
		for (ms = 0; READ_ONCE(response->seq) != nd->mailbox.seq; ms++) {
			if (READ_ONCE(nd->dying))
				return -ENODEV;
			if (ms == NT_TRY_MS)
				break;
			usleep_range(1000, 1500);
		}
		if (READ_ONCE(response->seq) != nd->mailbox.seq)
			continue;
		dma_rmb();
		if (response->error == NP_MAILBOX_UNKNOWN)
			return -EOPNOTSUPP;
		if (!response->error && le16_to_cpu(response->size) >= sizeof(*response) &&
		    le16_to_cpu(response->size) <= NT_MAILBOX_SIZE)
			return le16_to_cpu(response->size) - sizeof(*response);
	}
	dev_err(&nd->dev, "the firmware mailbox did not answer command %u in %u tries\n", command, NT_TRIES);
	return -ETIMEDOUT;
}

int nt_mailbox_post(struct nt_dev *nd, const u8 *data, u32 size)
{
	u32 i, word;
	int ret;

	if (mutex_lock_killable(&nd->mailbox.lock))
		return -EINTR;
	for (i = 0; i < size; i += sizeof(word)) {
		word = 0;
		memcpy(&word, data + i, min_t(u32, sizeof(word), size - i));
		nt_misc_write(nd, NP_MISC_DATA + i, word);
	}
	ret = nt_mailbox_call(nd, NP_MAILBOX_POST, 0);
	mutex_unlock(&nd->mailbox.lock);
	return ret < 0 ? ret : 0;
}

int nt_mailbox_read(struct nt_dev *nd, const u64 *addresses, u32 *values, u32 count)
{
	int ret;

	if (mutex_lock_killable(&nd->mailbox.lock))
		return -EINTR;
	memcpy(nd->mailbox.request + sizeof(struct np_mailbox_request), addresses, count * sizeof(*addresses));
	ret = nt_mailbox_call(nd, NP_MAILBOX_READ, count * sizeof(*addresses));
	if (ret >= (int)(count * sizeof(*values))) {
		memcpy(values, nd->mailbox.response + sizeof(struct np_mailbox_response), count * sizeof(*values));
		ret = 0;
	} else if (ret >= 0) {
		ret = -EIO;
	}
	mutex_unlock(&nd->mailbox.lock);
	return ret;
}
