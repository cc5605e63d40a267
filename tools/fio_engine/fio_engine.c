/* SPDX-License-Identifier: MIT */
/*
 * tools/fio_engine/fio_engine.c - spillway as an engine of fio: fio
 * --ioengine=external:build/libspillway_fio.so
 *
 * Compiled against the source of the very fio that loads it (fetch.sh): fio installs no headers,
 * and its structures change. fio calls get_file_size in its main process; everything from init to
 * cleanup in the thread or process of one job, so each job has devices, memory and a queue of its
 * own. The order of calls is init, io_u_init, iomem_alloc, post_init, and at the end io_u_free,
 * iomem_free, cleanup.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <fio.h>
#include <optgroup.h>
#include <verify.h>

#include "level.h"
#include "util/names.h"

#if FIO_IOOPS_VERSION < 31 || FIO_IOOPS_VERSION > 39
#error "known are interfaces 31 (fio 3.33) to 39 of fio: see ioengines.h, then widen the range"
#endif

enum level_option {
	LEVEL_VOLUME,
	LEVEL_STORE,
};

struct engine_options {
	struct thread_data *td; /* fio demands a pointer as the first member */
	char *devices;
	unsigned int level;
	unsigned int backend;
	unsigned int stripe;
	unsigned long long chunk_bytes;
	unsigned int hipri;
	unsigned int sqthread_poll;
};

struct engine {
	struct spw_fio_level *level;
	struct io_u **completed; /* ring of io_us that ended and fio does not know of yet */
	unsigned completed_max, completed_head, completed_count;
	struct io_u **queued; /* io_us queued since the last commit */
	unsigned queued_count;
	bool complained;
};

/* What an io_u's engine_data points to. */
struct unit {
	struct engine *engine;
	struct io_u *io_u;
	bool trimmed; /* trim_now() has seen it end */
	struct spw_fio_request request;
	struct spw_io pieces[];
};

#define OPTION(option_name, kind, field, help_text)                                   \
	.name = option_name, .lname = option_name, .help = help_text, .type = kind,   \
	.off1 = offsetof(struct engine_options, field), .category = FIO_OPT_C_ENGINE, \
	.group = FIO_OPT_G_INVALID

#define CHOICE(word, value, help_text)                         \
	{                                                      \
		.ival = word, .oval = value, .help = help_text \
	}

/* clang-format off */
static struct fio_option options[] = {
	{OPTION("spillway_devices", FIO_OPT_STR_STORE, devices,
	        "Devices to stripe over, divided by colons (\\: for one in a name)")},
	{OPTION("spillway_level", FIO_OPT_STR, level, "What fio's blocks are"),
	 .def = "volume",
	 .posval = {CHOICE("volume", LEVEL_VOLUME, "Blocks of one address space over the devices"),
	            CHOICE("store", LEVEL_STORE, "Objects of a spillway store")}},
	{OPTION("spillway_backend", FIO_OPT_STR, backend, "How the kernel is asked for transfers"),
	 .def = "auto",
	 .posval = {CHOICE("auto", SPW_BACKEND_AUTO,
	                   "vfio for pci:*, nvme for /dev/ng*, else io_uring, else libaio"),
	            CHOICE("io_uring", SPW_BACKEND_IO_URING, "io_uring or nothing"),
	            CHOICE("libaio", SPW_BACKEND_LIBAIO, "Linux native AIO"),
	            CHOICE("nvme", SPW_BACKEND_NVME, "NVMe passthrough or nothing"),
	            CHOICE("vfio", SPW_BACKEND_VFIO,
	                   "Drives named pci:ADDRESS/1, driven from the job's process")}},
	{OPTION("spillway_stripe", FIO_OPT_STR, stripe, "How a store spreads an object's chunks"),
	 .def = "pull",
	 .posval = {CHOICE("pull", SPW_STRIPE_PULL,
	                   "A drive takes the next chunk when it has room")}},
	{OPTION("spillway_chunk", FIO_OPT_STR_VAL, chunk_bytes,
	        "Bytes on one device before a volume goes on to the next"),
	 .def = "1m"},
	{OPTION("hipri", FIO_OPT_STR_SET, hipri,
	        "Poll the drives for completions, as fio's io_uring engine does")},
	{OPTION("sqthread_poll", FIO_OPT_STR_SET, sqthread_poll,
	        "Let a kernel thread submit, as fio's io_uring engine does")},
	{.name = NULL},
};
/* clang-format on */

extern struct ioengine_ops ioengine;

/* ---- Configuration --------------------------------------------------------------------------- */

static void log_line(void *context, enum spw_log_level level, const char *message)
{
	(void)context;
	if (level >= SPW_LOG_WARNING)
		log_err("spillway: %s\n", message);
	else
		dprint(FD_IO, "spillway: %s\n", message);
}

/* fio's macro td_verror() mixes signed and unsigned. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"
static void set_error(struct thread_data *td, int error)
{
	td_verror(td, error, "spillway");
}
#pragma GCC diagnostic pop

static int refuse(struct thread_data *td, const char *why)
{
	log_err("spillway: job %s: %s\n", td->o.name, why);
	set_error(td, EINVAL);
	return 1;
}

/* Report an error. fio takes ENOENT as a file that it will create, and goes on, so replace it. */
static int failed(struct thread_data *td, int err)
{
	log_err("spillway: job %s: %s\n", td->o.name, spw_last_error());
	set_error(td, err == -ENOENT ? ENXIO : -err);
	return 1;
}

static void free_paths(struct spw_fio_config *config)
{
	for (unsigned i = 0; i < config->path_count; i++)
		free(config->paths[i]);
	free(config->paths);
}

static int add_path(void *context, const char *path)
{
	struct spw_fio_config *config = context;

	if (*path && !(config->paths[config->path_count] = strdup(path)))
		return -ENOMEM;
	config->path_count += *path != '\0';
	return 0;
}

/* Split the names. The array has an element per character, so it is large enough. */
static bool split_paths(struct spw_fio_config *config, const char *text)
{
	config->paths = calloc(strlen(text) + 1, sizeof(*config->paths));
	return config->paths && spw_names_split(text, ':', add_path, config) == 0 &&
	       config->path_count > 0;
}

static bool file_paths(struct spw_fio_config *config, struct thread_data *td)
{
	struct fio_file *f;
	unsigned int i;

	config->paths = calloc(td->o.nr_files + 1, sizeof(*config->paths));
	if (!config->paths)
		return false;
	for_each_file(td, f, i)
	{
		config->paths[i] = strdup(f->file_name);
		if (!config->paths[i])
			return false;
		config->path_count++;
	}
	return config->path_count > 0;
}

static int make_config(struct thread_data *td, struct spw_fio_config *config)
{
	const struct engine_options *o = td->eo;
	bool named = o->devices && *o->devices;
	int err;

	*config = (struct spw_fio_config){
		.striped = named || o->level == LEVEL_STORE,
		.chunk_bytes = o->chunk_bytes,
		.backend = (enum spw_backend)o->backend,
		.wait = o->hipri           ? SPW_WAIT_POLL
			: o->sqthread_poll ? SPW_WAIT_SQPOLL
					   : SPW_WAIT_INTERRUPT,
		.depth = td->o.iodepth,
		.block_bytes_max = td_max_bs(td),
		.read_only = !td_write(td) && !td_trim(td),
		.log = {.write = log_line},
	};
	if (config->striped && td->o.nr_files > 1)
		return refuse(td, "several files: a stripe and a store are one address space; name "
				  "the drives in spillway_devices");
	if (!(named ? split_paths(config, o->devices) : file_paths(config, td))) {
		free_paths(config);
		return refuse(td,
			      "no device: give filename=DEVICE or spillway_devices=DEVICE:DEVICE");
	}
	err = spw_drives_distinct((const char *const *)config->paths, config->path_count);
	if (err) {
		free_paths(config);
		return failed(td, err);
	}
	return 0;
}

static const struct spw_fio_level_ops *level_ops(const struct thread_data *td)
{
	const struct engine_options *o = td->eo;

	return o->level == LEVEL_STORE ? &spw_fio_objects : &spw_fio_volume;
}

/* Called in the main process before any job runs, so written devices are claimed here. */
static int engine_get_file_size(struct thread_data *td, struct fio_file *f)
{
	struct spw_fio_config config;
	uint64_t bytes;
	int err;

	if (fio_file_size_known(f))
		return 0;
	if (td->io_ops != &ioengine)
		return refuse(td, "fio's structures are not those of its headers: it was built "
				  "with other options; rebuild fio");
	if (make_config(td, &config))
		return 1;
	err = level_ops(td)->size(&config, (unsigned)f->fileno, &bytes);
	free_paths(&config);
	if (err)
		return failed(td, err);
	f->real_file_size = bytes;
	f->filetype = FIO_TYPE_BLOCK; /* a fixed size: fio must not try to extend the file */
	fio_file_set_size_known(f);
	return 0;
}

/* ---- A job's begin and end ------------------------------------------------------------------- */

static int check_store_job(struct thread_data *td, struct spw_fio_config *config)
{
	const struct fio_file *f = td->files[0];
	uint64_t bs = td_max_bs(td);

	for (int ddir = DDIR_READ; ddir < DDIR_RWDIR_CNT; ddir++)
		if (td->o.min_bs[ddir] != bs || td->o.max_bs[ddir] != bs || td->o.ba[ddir] != bs)
			return refuse(td, "level=store needs one fixed bs, and blockalign equal to "
					  "it: a block is an object");
	if (!td->o.create_serialize)
		return refuse(td, "level=store needs create_serialize=1");
	if (f->file_offset % bs)
		return refuse(td, "level=store needs an offset that is a multiple of bs");
	if (td_read(td) && !td_write(td) && td->o.verify != VERIFY_NONE)
		return refuse(td, "objects end with their job: verify in the job that writes them");
	if (config->wait != SPW_WAIT_INTERRUPT)
		return refuse(td, "level=store has no hipri and no sqthread_poll");
	config->range_start_bytes = f->file_offset;
	config->range_len_bytes = f->io_size;
	/* a replayed log may touch everything, and fio has not asked for the size */
	if (td->o.read_iolog_file) {
		int err = spw_fio_objects.size(config, 0, &config->range_len_bytes);

		config->range_start_bytes = 0;
		return err ? failed(td, err) : 0;
	}
	return 0;
}

static void engine_cleanup(struct thread_data *td)
{
	struct engine *engine = td->io_ops_data;

	if (!engine)
		return;
	if (engine->level)
		engine->level->ops->close(engine->level);
	free(engine->completed);
	free(engine->queued);
	free(engine);
	td->io_ops_data = NULL;
}

static int engine_init(struct thread_data *td)
{
	const struct engine_options *o = td->eo;
	struct spw_fio_config config;
	struct engine *engine;
	int err;

	if (fio_option_is_set(&td->o, mem_type))
		return refuse(td, "leave out mem= and iomem=: fio's buffers come from memory that "
				  "this engine registers with the queue");
	if (make_config(td, &config))
		return 1;
	err = o->level == LEVEL_STORE ? check_store_job(td, &config) : 0;
	if (err)
		goto out;
	engine = calloc(1, sizeof(*engine));
	td->io_ops_data = engine;
	if (engine) {
		/* fio may reuse an io_u before it reads its slot: twice the depth is enough. */
		engine->completed_max = 2 * td->o.iodepth;
		engine->completed = calloc(engine->completed_max, sizeof(struct io_u *));
		engine->queued = calloc(td->o.iodepth, sizeof(struct io_u *));
	}
	if (!engine || !engine->completed || !engine->queued) {
		set_error(td, ENOMEM);
		err = 1;
		goto out;
	}
	err = level_ops(td)->open(&config, &engine->level);
	if (err)
		err = failed(td, err);
out:
	/* The level has opened the paths and no longer needs their names. */
	free_paths(&config);
	return err;
}

static int engine_iomem_alloc(struct thread_data *td, size_t len)
{
	struct engine *engine = td->io_ops_data;
	void *memory = NULL;
	int err = engine->level->ops->memory_alloc(engine->level, len, &memory);

	if (err)
		return failed(td, err);
	td->orig_buffer = memory;
	return 0;
}

static void engine_iomem_free(struct thread_data *td)
{
	struct engine *engine = td->io_ops_data;

	if (engine && engine->level && td->orig_buffer)
		engine->level->ops->memory_free(engine->level, td->orig_buffer);
}

/* Put the objects that the job reads, as fio lays out files. Not part of the measured time. */
static int lay_out(struct thread_data *td)
{
	struct engine *engine = td->io_ops_data;
	uint64_t *words = (uint64_t *)td->orig_buffer, word = 0x9e3779b97f4a7c15u;
	int err;

	for (size_t i = 0; i < td_max_bs(td) / sizeof(*words); i++) {
		word ^= word << 13;
		word ^= word >> 7;
		word ^= word << 17;
		words[i] = word;
	}
	err = spw_fio_objects_lay_out(engine->level, words);
	return err ? failed(td, err) : 0;
}

static int engine_post_init(struct thread_data *td)
{
	const struct engine_options *o = td->eo;
	struct engine *engine = td->io_ops_data;
	int err = engine->level->ops->start(engine->level);

	if (err)
		return failed(td, err);
	if (output_format & FIO_OUTPUT_NORMAL)
		log_info("%s: spillway %s: %s\n", td->o.name,
			 o->level == LEVEL_STORE ? "store" : "volume", engine->level->description);
	return o->level == LEVEL_STORE && td_read(td) ? lay_out(td) : 0;
}

static void request_done(struct spw_fio_request *request)
{
	struct unit *unit = request->context;
	struct engine *engine = unit->engine;

	unit->io_u->error = (unsigned int)-request->res;
	unit->io_u->resid = 0;
	engine->completed[(engine->completed_head + engine->completed_count++) %
			  engine->completed_max] = unit->io_u;
}

static int engine_io_u_init(struct thread_data *td, struct io_u *io_u)
{
	struct engine *engine = td->io_ops_data;
	size_t pieces_bytes = engine->level->pieces_max * sizeof(struct spw_io);
	struct unit *unit = calloc(1, sizeof(*unit) + pieces_bytes);

	if (!unit)
		return ENOMEM;
	unit->engine = engine;
	unit->io_u = io_u;
	unit->request.done = request_done;
	unit->request.context = unit;
	unit->request.level = engine->level;
	unit->request.pieces = unit->pieces;
	io_u->engine_data = unit;
	return 0;
}

static void engine_io_u_free(struct thread_data *td, struct io_u *io_u)
{
	(void)td;
	free(io_u->engine_data);
	io_u->engine_data = NULL;
}

/* ---- Transfers ------------------------------------------------------------------------------- */

static bool to_request(const struct io_u *io_u, struct spw_fio_request *request)
{
	switch (io_u->ddir) {
	case DDIR_READ: request->op = SPW_READ; break;
	case DDIR_WRITE: request->op = SPW_WRITE; break;
	case DDIR_TRIM: request->op = SPW_DISCARD; break;
	case DDIR_SYNC:
	case DDIR_DATASYNC: request->op = SPW_FLUSH; break;
	default: return false;
	}
	request->file = (uint32_t)io_u->file->fileno;
	request->offset_bytes = io_u->offset;
	request->len_bytes = io_u->xfer_buflen;
	request->buf = io_u->xfer_buf;
	return true;
}

static void set_issue_time(struct thread_data *td, struct io_u *io_u)
{
	if (fio_fill_issue_time(td))
		fio_gettime(&io_u->issue_time, NULL);
}

/* End a request in queue(). fio calls no errdetails for it, so print the first error here. */
static enum fio_q_status completed_at_once(struct thread_data *td, struct io_u *io_u,
					   const struct spw_fio_request *request)
{
	struct engine *engine = td->io_ops_data;

	io_u->error = (unsigned int)-request->res;
	if (request->res && !engine->complained) {
		engine->complained = true;
		log_err("spillway: job %s: %s\n", td->o.name, request->text);
	}
	io_u_mark_submit(td, 1);
	io_u_mark_complete(td, 1);
	return FIO_Q_COMPLETED;
}

static void trim_done(struct spw_fio_request *request)
{
	struct unit *unit = request->context;

	unit->trimmed = true;
}

/*
 * Run a trim to its end. In a job that trims each range and then writes it, fio issues the write as
 * soon as the trim is queued, and counts the bytes of an unfinished trim as the job's: the last
 * write would never come. So a trim ends before this returns, as in fio's own engines, and requests
 * that are queued already are submitted first.
 */
static enum fio_q_status trim_now(struct thread_data *td, struct io_u *io_u,
				  struct spw_fio_request *request)
{
	struct engine *engine = td->io_ops_data;
	const struct spw_fio_level_ops *ops = engine->level->ops;
	struct unit *unit = io_u->engine_data;
	enum spw_fio_queued queued;
	int err;

	if (engine->queued_count)
		return FIO_Q_BUSY;
	set_issue_time(td, io_u);
	unit->trimmed = false;
	request->done = trim_done;
	queued = ops->queue(engine->level, request);
	err = queued == SPW_FIO_QUEUED ? ops->submit(engine->level) : 0;
	while (queued == SPW_FIO_QUEUED && !unit->trimmed && err >= 0)
		err = ops->reap(engine->level, 1);
	if (err < 0) { /* the trim may still end when the level is closed */
		(void)failed(td, err);
		io_u->error = (unsigned int)-err;
		return FIO_Q_COMPLETED;
	}
	request->done = request_done;
	return queued == SPW_FIO_BUSY ? FIO_Q_BUSY : completed_at_once(td, io_u, request);
}

static enum fio_q_status engine_queue(struct thread_data *td, struct io_u *io_u)
{
	struct engine *engine = td->io_ops_data;
	struct spw_fio_request *request = &((struct unit *)io_u->engine_data)->request;

	fio_ro_check(td, io_u);
	if (engine->queued_count == td->o.iodepth)
		return FIO_Q_BUSY;
	if (!to_request(io_u, request)) {
		request->res = -EOPNOTSUPP;
		snprintf(request->text, sizeof(request->text),
			 "this engine has no sync_file_range; use fsync or fdatasync");
		set_issue_time(td, io_u);
		return completed_at_once(td, io_u, request);
	}
	if (request->op == SPW_DISCARD && td_trimwrite(td))
		return trim_now(td, io_u, request);
	switch (engine->level->ops->queue(engine->level, request)) {
	case SPW_FIO_BUSY: return FIO_Q_BUSY;
	case SPW_FIO_DONE: set_issue_time(td, io_u); return completed_at_once(td, io_u, request);
	case SPW_FIO_QUEUED: break;
	}
	engine->queued[engine->queued_count++] = io_u;
	return FIO_Q_QUEUED;
}

/* Note the time of submission, where latencies begin, as in fio's own engines. */
static void mark_issued(struct thread_data *td, unsigned count)
{
	struct engine *engine = td->io_ops_data;
	struct timespec now;

	if (!fio_fill_issue_time(td))
		return;
	fio_gettime(&now, NULL);
	for (unsigned i = 0; i < count; i++) {
		engine->queued[i]->issue_time = now;
		io_u_queued(td, engine->queued[i]);
	}
	if (td->o.read_iolog_file)
		td->last_issue = now;
}

static int engine_commit(struct thread_data *td)
{
	struct engine *engine = td->io_ops_data;
	unsigned count = engine->queued_count;
	int err;

	if (!count)
		return 0;
	err = engine->level->ops->submit(engine->level);
	mark_issued(td, count);
	engine->queued_count = 0;
	io_u_mark_submit(td, count);
	if (err)
		failed(td, err);
	return err;
}

/* As in fio's own engines, iodepth_batch_complete_min=0 asks for polling instead of sleeping. */
static int engine_getevents(struct thread_data *td, unsigned int min, unsigned int max,
			    const struct timespec *timeout)
{
	struct engine *engine = td->io_ops_data;
	bool sleeps = td->o.iodepth_batch_complete_min > 0;

	(void)timeout; /* fio passes NULL, or zero together with min = 0 */
	while (engine->completed_count < min || !engine->completed_count) {
		unsigned missing =
			min > engine->completed_count ? min - engine->completed_count : 0;
		int err = engine->level->ops->reap(engine->level, sleeps ? missing : 0);

		if (err < 0) {
			failed(td, err);
			return err;
		}
		if (min == 0)
			break;
	}
	return (int)(engine->completed_count < max ? engine->completed_count : max);
}

static struct io_u *engine_event(struct thread_data *td, int event)
{
	struct engine *engine = td->io_ops_data;
	struct io_u *io_u = engine->completed[engine->completed_head];

	(void)event; /* fio asks for all events, in order */
	engine->completed_head = (engine->completed_head + 1) % engine->completed_max;
	engine->completed_count--;
	return io_u;
}

static char *errdetails(struct io_u *io_u)
{
	const struct unit *unit = io_u->engine_data;

	return strdup(unit->request.text);
}

static fio_unused char *errdetails_td(struct thread_data *td, struct io_u *io_u)
{
	(void)td;
	return errdetails(io_u);
}

/* errdetails gained a parameter between interfaces 31 and 39: choose by its type in the header. */
#define ERRDETAILS                                                                \
	_Generic(((struct ioengine_ops *)0)->errdetails, char *(*)(struct io_u *) \
		 : errdetails, default                                            \
		 : errdetails_td)

/* open_file and close_file do nothing: the devices are open from init to cleanup. */
static int engine_file(struct thread_data *td, struct fio_file *f)
{
	(void)td;
	(void)f;
	return 0;
}

__attribute__((visibility("default"))) struct ioengine_ops ioengine = {
	.name = "spillway",
	.version = FIO_IOOPS_VERSION,
	/* Diskless: fio neither opens, extends nor stats the file name, a list of devices. */
	.flags = FIO_DISKLESSIO | FIO_NODISKUTIL | FIO_NOEXTEND | FIO_RAWIO | FIO_MEMALIGN |
		 FIO_NO_OFFLOAD | FIO_ASYNCIO_SETS_ISSUE_TIME,
	.init = engine_init,
	.post_init = engine_post_init,
	.queue = engine_queue,
	.commit = engine_commit,
	.getevents = engine_getevents,
	.event = engine_event,
	.errdetails = ERRDETAILS,
	.cleanup = engine_cleanup,
	.open_file = engine_file,
	.close_file = engine_file,
	.get_file_size = engine_get_file_size,
	.iomem_alloc = engine_iomem_alloc,
	.iomem_free = engine_iomem_free,
	.io_u_init = engine_io_u_init,
	.io_u_free = engine_io_u_free,
	.options = options,
	.option_struct_size = sizeof(struct engine_options),
};
