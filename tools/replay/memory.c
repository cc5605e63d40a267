/* SPDX-License-Identifier: MIT */
/* tools/replay/memory.c - buffers of a replay's tensors, filled with their patterns */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "tools/replay/pattern.h"
#include "tools/replay/replaying.h"
#include "util/util.h"

#define MEMORY_ALIGN 4096
#define DRAIN_MAX    64

struct buffer *replay_buffer_of(struct replaying *replaying, uint32_t index)
{
	const struct replay_content *content = &replaying->run->step->contents[index];
	struct buffer *buffer = replaying->current[index];

	if (buffer)
		return buffer;
	buffer = calloc(1, sizeof(*buffer));
	if (buffer)
		buffer->bytes =
			aligned_alloc(MEMORY_ALIGN, spw_round_up(content->len_bytes, MEMORY_ALIGN));
	if (!buffer || !buffer->bytes) {
		free(buffer);
		(void)spw_error(-ENOMEM,
				"no memory for a tensor of %" PRIu64
				" bytes: make all smaller with --scale",
				content->len_bytes);
		return NULL;
	}
	if (replaying->keys[index] == 0)
		replaying->keys[index] = ++replaying->sequence;
	buffer->seed = replay_pattern_seed(replaying->keys[index]);
	buffer->content = index;
	replay_pattern_fill(buffer->bytes, content->len_bytes, buffer->seed);
	buffer->next = replaying->all;
	buffer->link = &replaying->all;
	if (buffer->next)
		buffer->next->link = &buffer->next;
	replaying->all = replaying->current[index] = buffer;
	return buffer;
}

struct spw_offer replay_offer(const struct replaying *replaying, const struct replay_op *op,
			      const struct buffer *buffer)
{
	return (struct spw_offer){
		.storage_key = replaying->keys[op->content],
		.storage_bytes = buffer->bytes,
		.storage_len_bytes = replaying->run->step->contents[op->content].len_bytes,
		.offset_bytes = op->offset_bytes,
		.len_bytes = op->len_bytes,
		.owner = (uint64_t)(uintptr_t)buffer,
	};
}

void replay_buffer_let_go(struct replaying *replaying, struct buffer *buffer)
{
	if (buffer->holds > 0)
		return;
	if (replaying->current[buffer->content] == buffer)
		replaying->current[buffer->content] = NULL;
	*buffer->link = buffer->next;
	if (buffer->next)
		buffer->next->link = buffer->link;
	free(buffer->bytes);
	free(buffer);
}

void replay_drain(struct replaying *replaying)
{
	uint64_t owners[DRAIN_MAX];
	int count;

	do {
		count = spw_cache_drain(replaying->run->cache, owners, DRAIN_MAX);
		for (int i = 0; i < count; i++) {
			struct buffer *buffer = (struct buffer *)(uintptr_t)owners[i];

			buffer->holds--;
			replay_buffer_let_go(replaying, buffer);
		}
	} while (count == DRAIN_MAX);
}

void replay_buffers_free(struct replaying *replaying)
{
	for (struct buffer *buffer = replaying->all, *next; buffer; buffer = next) {
		next = buffer->next;
		free(buffer->bytes);
		free(buffer);
	}
}
