/* SPDX-License-Identifier: MIT */
/* tools/replay/step.c - make a step's operations and tensors from a trace's events */
#include "tools/replay/step.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "util/util.h"

/* Larger figures are cut to this before they are refused, so that sums of a few still fit. */
#define LARGEST         0x1p61
#define SAVED_BYTES_MAX 0x1p50
#define STEP_NS_MAX     0x1p50 /* 13 days, the planner's limit */

struct making {
	const struct spw_trace *trace;
	const struct replay_step_opts *opts;
	struct replay_step *step;
	uint32_t first, end; /* events of the step */
	/* the trace marks the backward pass; if not, it begins with the first take */
	bool marked;
	bool backward;
	uint64_t last_ns;     /* time of the last event in the trace, */
	uint64_t passed_ns;   /* and in compute time, at the trace's speed */
	uint32_t scope;       /* number of the interval between scope events */
	uint32_t *tensor_of;  /* a tensor's number in the step, from 1; 0: not there */
	uint32_t *users;      /* by number in the step */
	uint32_t *content_of; /* by the trace's storage: number of its latest content, from 1 */
};

uint64_t replay_scaled(uint64_t bytes, double scale)
{
	return scale == 1 ? bytes : (uint64_t)fmin((double)bytes * scale, LARGEST);
}

/* Scale both ends of a range, so that ranges that touch or enclose each other still do. */
static void scale_part(const struct spw_trace_event *event, double scale, struct replay_op *op)
{
	uint64_t end = replay_scaled(event->offset_bytes + event->len_bytes, scale);

	op->offset_bytes = replay_scaled(event->offset_bytes, scale);
	op->len_bytes = end > op->offset_bytes ? end - op->offset_bytes : 1;
}

/* Scale a storage, with room for one byte more: parts are scaled to at least one byte. */
static uint64_t scale_whole(uint64_t bytes, double scale)
{
	return replay_scaled(bytes, scale) + (scale != 1);
}

/*
 * The compute time of an event at @ns that ended a wait. Overlapping waits may exceed the time
 * between events: then no compute time passes.
 */
static uint64_t now_of(struct making *making, uint64_t ns, uint64_t wait_ns)
{
	uint64_t ns_between = ns - making->last_ns;

	making->last_ns = ns;
	if (ns_between > wait_ns)
		making->passed_ns += ns_between - wait_ns;
	return (uint64_t)fmin((double)making->passed_ns / making->opts->speed, LARGEST);
}

/* ---- The events ---- */

/* Find the events of the wanted step. Return: whether the step exists. */
static bool find_events(struct making *making)
{
	uint32_t wanted = making->opts->number ? making->opts->number : making->trace->steps,
		 number = 0;

	making->end = making->trace->count;
	for (uint32_t i = 0; i < making->trace->count; i++) {
		if (making->trace->events[i].kind != SPW_TRACE_STEP)
			continue;
		if (number == wanted) {
			making->end = i;
			break;
		}
		number++;
		making->first = i;
	}
	making->step->number = number;
	return wanted > 0 && number == wanted;
}

static struct replay_op *add_op(struct making *making, const struct spw_trace_event *event,
				uint64_t ns)
{
	struct replay_op *op = &making->step->ops[making->step->ops_count++];

	*op = (struct replay_op){.ns = ns, .event = event};
	return op;
}

static uint32_t content_of(struct making *making, const struct spw_trace_event *event)
{
	struct replay_step *step = making->step;
	uint32_t *known = &making->content_of[event->storage_key];
	uint64_t len_bytes = scale_whole(event->storage_len_bytes, making->opts->scale);
	struct replay_content *content = *known ? &step->contents[*known - 1] : NULL;

	if (!content || content->version != event->storage_version ||
	    content->len_bytes != len_bytes) {
		content = &step->contents[step->contents_count++];
		*content = (struct replay_content){.version = event->storage_version,
						   .len_bytes = len_bytes};
		*known = step->contents_count;
	}
	return *known - 1;
}

static void add_offer(struct making *making, const struct spw_trace_event *event, uint64_t ns)
{
	struct replay_step *step = making->step;
	struct replay_op *op = add_op(making, event, ns);
	uint32_t *known = &making->tensor_of[event->tensor];
	struct replay_tensor *tensor;

	scale_part(event, making->opts->scale, op);
	op->content = content_of(making, event);
	if (*known == 0) {
		*known = ++step->tensors_count;
		tensor = &step->tensors[*known - 1];
		tensor->content = op->content;
		tensor->pack_ns = ns;
		tensor->scope = making->scope;
		tensor->in_backward = making->backward;
		tensor->hint = event->hint;
		/* The cache stores the whole storage for a part of at least half of it. */
		tensor->bytes = event->len_bytes >= event->storage_len_bytes - event->len_bytes
					? step->contents[op->content].len_bytes
					: op->len_bytes;
	}
	op->tensor = *known - 1;
	making->users[op->tensor]++;
}

static void add_use(struct making *making, const struct spw_trace_event *event, uint64_t ns)
{
	uint32_t known = making->tensor_of[event->tensor];
	struct replay_tensor *tensor;
	struct replay_op *op;

	/* Skip tensors of earlier steps, and returns: releases tell when memory is free. */
	if (known == 0 || event->kind == SPW_TRACE_RETURN)
		return;
	tensor = &making->step->tensors[known - 1];
	op = add_op(making, event, ns);
	op->tensor = known - 1;
	op->content = tensor->content;
	if (event->kind == SPW_TRACE_TAKE) {
		scale_part(event, making->opts->scale, op);
		if (tensor->takes++ == 0)
			tensor->use_ns = ns;
	} else if (--making->users[known - 1] == 0) {
		tensor->release_ns = ns;
	}
}

static void enter_stage(struct making *making, bool backward, uint64_t ns)
{
	making->backward = backward;
	if (backward && ns < making->step->backward_ns)
		making->step->backward_ns = ns;
}

static void add_event(struct making *making, const struct spw_trace_event *event)
{
	uint64_t ns = now_of(making, event->ns, event->wait_ns);

	switch (event->kind) {
	case SPW_TRACE_OFFER: add_offer(making, event, ns); break;
	case SPW_TRACE_TAKE:
		if (!making->marked)
			enter_stage(making, true, ns);
		add_use(making, event, ns);
		break;
	case SPW_TRACE_RETURN:
	case SPW_TRACE_RELEASE: add_use(making, event, ns); break;
	case SPW_TRACE_STAGE:
		enter_stage(making, event->backward, ns);
		making->scope++;
		(void)add_op(making, event, ns);
		break;
	case SPW_TRACE_SCOPE_ENTER:
	case SPW_TRACE_SCOPE_LEAVE:
	case SPW_TRACE_STEP:
		making->scope++;
		(void)add_op(making, event, ns);
		break;
	case SPW_TRACE_HOLD:
	case SPW_TRACE_AGAIN: break; /* the replaying cache decides this by its own plan */
	}
	if (ns > making->step->compute_ns)
		making->step->compute_ns = ns;
}

static const struct spw_trace_event release_event = {.kind = SPW_TRACE_RELEASE};

/* Release at the end of the step the tensors that the trace releases later, or never. */
static void release_rest(struct making *making)
{
	struct replay_step *step = making->step;

	for (uint32_t i = 0; i < step->tensors_count; i++)
		for (; making->users[i] > 0; making->users[i]--) {
			struct replay_op *op = add_op(making, &release_event, step->compute_ns);

			op->tensor = i;
			step->tensors[i].release_ns = step->compute_ns;
		}
}

/* ---- Properties of the step ---- */

/* Compute the memory in use if everything is kept. @users: scratch, zero before and after */
static void keep_all(struct replay_step *step, uint32_t *users)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < step->ops_count; i++) {
		struct replay_op *op = &step->ops[i];

		if (op->event->kind == SPW_TRACE_OFFER && users[op->tensor]++ == 0)
			bytes += step->tensors[op->tensor].bytes;
		if (op->event->kind == SPW_TRACE_RELEASE && --users[op->tensor] == 0)
			bytes -= step->tensors[op->tensor].bytes;
		if (bytes > step->keep_all_bytes)
			step->keep_all_bytes = bytes;
		op->kept_bytes = bytes;
	}
}

static void find_largest_scope(struct replay_step *step, uint64_t min_bytes)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < step->tensors_count; i++) {
		if (i == 0 || step->tensors[i].scope != step->tensors[i - 1].scope)
			bytes = 0;
		bytes += step->tensors[i].bytes;
		if (bytes > step->scope_bytes)
			step->scope_bytes = bytes;
		step->saved_bytes += step->tensors[i].bytes;
		if (step->tensors[i].bytes < min_bytes)
			step->small_bytes += step->tensors[i].bytes;
	}
}

/* Refuse a step beyond any real one, so that sums of sizes and times cannot overflow. */
static int check_size(const struct making *making)
{
	double bytes = 0;

	for (uint32_t i = making->first; i < making->end; i++)
		if (making->trace->events[i].kind == SPW_TRACE_OFFER)
			bytes += (double)making->trace->events[i].storage_len_bytes *
				 making->opts->scale;
	if (bytes > SAVED_BYTES_MAX)
		return spw_error(-EINVAL, "step %u of the trace saves %.3g bytes; at most %.3g",
				 making->step->number, bytes, SAVED_BYTES_MAX);
	return 0;
}

static int go_through(struct making *making)
{
	struct replay_step *step = making->step;
	int rc = check_size(making);

	if (rc)
		return rc;

	step->backward_ns = UINT64_MAX;
	making->last_ns = making->trace->events[making->first].ns;
	for (uint32_t i = making->first; i < making->end; i++)
		making->marked |= making->trace->events[i].kind == SPW_TRACE_STAGE &&
				  making->trace->events[i].backward;
	for (uint32_t i = making->first; i < making->end; i++)
		add_event(making, &making->trace->events[i]);
	/* The time until the next step, such as the optimizer's, is part of the step. */
	if (making->end < making->trace->count) {
		uint64_t ns = now_of(making, making->trace->events[making->end].ns, 0);

		if (ns > step->compute_ns)
			step->compute_ns = ns;
	}
	if ((double)step->compute_ns > STEP_NS_MAX)
		return spw_error(
			-EINVAL,
			"step %u of the trace takes %.3g s; at most %.3g: make it faster (--speed)",
			step->number, (double)step->compute_ns / 1e9, STEP_NS_MAX / 1e9);
	release_rest(making);
	if (step->backward_ns > step->compute_ns)
		step->backward_ns = step->compute_ns;
	if (step->tensors_count == 0)
		return spw_error(-EINVAL, "step %u of the trace saves no tensors", step->number);
	if (step->compute_ns == 0)
		return spw_error(
			-EINVAL,
			"step %u of the trace takes no time: take another step, or a lower speed",
			step->number);
	keep_all(step, making->users);
	find_largest_scope(step, replay_scaled(making->opts->min_bytes, making->opts->scale));
	return 0;
}

int replay_step_make(const struct spw_trace *trace, const struct replay_step_opts *opts,
		     struct replay_step *step)
{
	struct making making = {.trace = trace, .opts = opts, .step = step};
	size_t events;
	int rc = -ENOMEM;

	*step = (struct replay_step){0};
	if (!find_events(&making))
		return spw_error(-EINVAL, "the trace has %u steps, and no step %u", trace->steps,
				 opts->number ? opts->number : 1);
	events = making.end - making.first;
	/* Each offer adds at most one release. */
	step->ops = calloc(2 * events + 1, sizeof(*step->ops));
	step->tensors = calloc(events + 1, sizeof(*step->tensors));
	step->contents = calloc(events + 1, sizeof(*step->contents));
	making.users = calloc(events + 1, sizeof(*making.users));
	making.tensor_of = calloc((size_t)trace->tensors + 1, sizeof(*making.tensor_of));
	making.content_of = calloc((size_t)trace->storages + 1, sizeof(*making.content_of));
	if (step->ops && step->tensors && step->contents && making.users && making.tensor_of &&
	    making.content_of)
		rc = go_through(&making);
	else
		(void)spw_error(rc, "no memory for a step of %zu events", events);
	free(making.users);
	free(making.tensor_of);
	free(making.content_of);
	if (rc)
		replay_step_free(step);
	return rc;
}

void replay_step_free(struct replay_step *step)
{
	free(step->ops);
	free(step->tensors);
	free(step->contents);
	*step = (struct replay_step){0};
}

void replay_step_plan(const struct replay_step *step, uint64_t min_bytes,
		      struct spw_plan_tensor tensors[], struct spw_plan_step *plan)
{
	for (uint32_t i = 0; i < step->tensors_count; i++) {
		const struct replay_tensor *tensor = &step->tensors[i];

		tensors[i] = (struct spw_plan_tensor){
			.bytes = tensor->bytes,
			.pack_ns = tensor->pack_ns,
			.use_ns = tensor->takes > 0 ? tensor->use_ns : tensor->release_ns,
			.release_ns = tensor->release_ns,
			.users = tensor->takes,
			.scope = tensor->scope,
			.must_keep = tensor->bytes < min_bytes || tensor->in_backward ||
				     tensor->hint == SPW_TRACE_HINT_KEEP ||
				     tensor->hint == SPW_TRACE_HINT_PIN,
		};
	}
	*plan = (struct spw_plan_step){.tensors = tensors,
				       .count = step->tensors_count,
				       .forward_ns = step->backward_ns,
				       .backward_ns = step->compute_ns - step->backward_ns};
}
