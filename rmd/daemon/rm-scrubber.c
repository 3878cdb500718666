/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "rm-scrubber.h"

#include "rm-error.h"
#include "rm-fault.h"

/*
 * Few commits after a boot, when every chunk is dirty, and yet clean chunks early for those who
 * wait.
 */
#define BATCH_CHUNKS 256
#define WAIT_USEC    20000

typedef gboolean (*Step)(RmStore *store, const char *channel, guint chunk, GError **error);

/* What a worker gets: no pointer into the daemon's own data. */
typedef struct {
	RmStore *store;      /* lives as long as the daemon */
	const char *channel; /* name, of the topology */
	RmChunk chunk;
	GError *error;
} Work;

struct RmScrubber {
	RmDaemon *daemon;
	gboolean running;
	gint stopping;
	guint64 done_chunks;
	guint64 rate_bytes_per_sec;
	gint64 begun_usec;
};

/* A batch under way; every thread takes the next chunk that none has. */
typedef struct {
	RmScrubber *scrubber;
	GArray *work;
	Step step;
	gboolean limited;
	gint64 begun_usec;
	gint next;
	gint done;
} Batch;

static void
work_clear(Work *work)
{
	g_clear_error(&work->error);
}

/* Keeps all threads together at the rate; a stop does not wait for it. */
static void
keep_rate(const Batch *batch, guint done)
{
	guint64 rate = batch->scrubber->daemon->config->scrub_bytes_per_sec;
	gint64 due;

	if (!rate || !batch->limited)
		return;
	due = batch->begun_usec + (gint64)((gdouble)done * RM_CHUNK_BYTES / (gdouble)rate * 1e6);
	while (due > g_get_monotonic_time() && !g_atomic_int_get(&batch->scrubber->stopping))
		g_usleep((gulong)CLAMP(due - g_get_monotonic_time(), 1, WAIT_USEC));
}

static gpointer
work_off(gpointer data)
{
	Batch *batch = data;

	for (;;) {
		guint i = (guint)g_atomic_int_add(&batch->next, 1);
		Work *work;

		if (i >= batch->work->len)
			return NULL;
		work = &g_array_index(batch->work, Work, i);
		if (g_atomic_int_get(&batch->scrubber->stopping)) {
			rm_error_set(&work->error, RM_ERROR_BUSY, "rmd is ending");
			continue;
		}
		rm_fault_point(batch->step == rm_store_scrub ? "scrub" : "take-back");
		batch->step(work->store, work->channel, work->chunk.chunk, &work->error);
		keep_rate(batch, (guint)g_atomic_int_add(&batch->done, 1) + 1);
	}
}

static void
run_batch(GTask *task, gpointer source, gpointer data, GCancellable *cancellable)
{
	Batch *batch = g_object_get_data(G_OBJECT(task), "batch");
	guint n = MIN(batch->scrubber->daemon->config->scrub_threads, batch->work->len), i;
	g_autofree GThread **threads = g_new0(GThread *, n + 1);

	for (i = 1; i < n; i++)
		threads[i] = g_thread_new("rmd-scrub", work_off, batch);
	work_off(batch);
	for (i = 1; i < n; i++)
		g_thread_join(threads[i]);
	g_task_return_boolean(task, TRUE);
}

static void start_batch(RmScrubber *scrubber, GArray *batch, Step step, GAsyncReadyCallback done);

/* Moves the chunks of a finished batch to @state, and those that failed out of the way. */
static void
record_batch(RmScrubber *scrubber, GArray *batch, RmChunkState state)
{
	RmDaemon *daemon = scrubber->daemon;
	g_autoptr(GError) error = NULL;
	g_autoptr(RmLedgerTx) tx = rm_ledger_begin(daemon->ledger, &error);
	guint i;

	for (i = 0; tx && i < batch->len; i++) {
		Work *work = &g_array_index(batch, Work, i);

		/* Not done, and not wrong: the next rmd does it. */
		if (g_error_matches(work->error, RM_ERROR, RM_ERROR_BUSY))
			continue;
		if (work->error ? !rm_ledger_quarantine(daemon->ledger, work->chunk.channel,
							work->chunk.chunk, 0, &error)
				: !rm_ledger_set_state(daemon->ledger, work->chunk.channel,
						       work->chunk.chunk, state, &error))
			break;
	}
	if (!tx || error || !rm_ledger_commit(&tx, &error))
		rm_daemon_ledger_failed(error);
	for (i = 0; i < batch->len; i++) {
		Work *work = &g_array_index(batch, Work, i);

		if (work->error && !g_error_matches(work->error, RM_ERROR, RM_ERROR_BUSY))
			rm_daemon_note(daemon, G_LOG_LEVEL_WARNING, NULL, "quarantine",
				       "channel %s: chunk %u is out of use: %s", work->channel,
				       work->chunk.chunk, work->error->message);
	}
}

static void
on_scrubbed(GObject *source, GAsyncResult *result, gpointer data)
{
	RmScrubber *scrubber = data;
	GArray *batch = g_task_get_task_data(G_TASK(result));

	gint64 usec = MAX(g_get_monotonic_time() - scrubber->begun_usec, 1);

	record_batch(scrubber, batch, RM_CHUNK_FREE);
	scrubber->running = FALSE;
	scrubber->done_chunks += batch->len;
	scrubber->rate_bytes_per_sec =
		(guint64)((gdouble)batch->len * RM_CHUNK_BYTES / (gdouble)usec * 1e6);
	if (scrubber->stopping)
		return;
	rm_daemon_emit_channels(scrubber->daemon);
	rm_daemon_settle(scrubber->daemon);
	rm_scrubber_kick(scrubber);
}

static void
on_taken_back(GObject *source, GAsyncResult *result, gpointer data)
{
	RmScrubber *scrubber = data;
	GArray *batch = g_task_get_task_data(G_TASK(result));
	GArray *next = g_array_new(FALSE, TRUE, sizeof(Work));
	guint i;

	record_batch(scrubber, batch, RM_CHUNK_SCRUBBING);
	g_array_set_clear_func(next, (GDestroyNotify)work_clear);
	for (i = 0; i < batch->len; i++) {
		Work work = g_array_index(batch, Work, i);

		if (!work.error)
			g_array_append_val(next, work);
	}
	start_batch(scrubber, next, rm_store_scrub, on_scrubbed);
}

static void
start_batch(RmScrubber *scrubber, GArray *batch, Step step, GAsyncReadyCallback done)
{
	g_autoptr(GTask) task = g_task_new(NULL, NULL, done, scrubber);
	Batch *b = g_new0(Batch, 1);

	b->scrubber = scrubber;
	b->work = batch;
	b->step = step;
	b->limited = step == rm_store_scrub;
	b->begun_usec = g_get_monotonic_time();
	g_task_set_task_data(task, batch, (GDestroyNotify)g_array_unref);
	g_object_set_data_full(G_OBJECT(task), "batch", b, g_free);
	g_task_run_in_thread(task, run_batch);
}

void
rm_scrubber_kick(RmScrubber *scrubber)
{
	RmDaemon *daemon = scrubber->daemon;
	g_autoptr(GArray) chunks = NULL;
	GArray *batch;
	guint i;

	if (scrubber->running || scrubber->stopping)
		return;
	chunks = rm_ledger_chunks_in_state(daemon->ledger, RM_CHUNK_RELEASED, BATCH_CHUNKS);
	if (!chunks->len)
		return;
	batch = g_array_new(FALSE, TRUE, sizeof(Work));
	g_array_set_clear_func(batch, (GDestroyNotify)work_clear);
	for (i = 0; i < chunks->len; i++) {
		Work work = {.chunk = g_array_index(chunks, RmChunk, i)};

		work.store = rm_daemon_store(daemon, work.chunk.channel);
		work.channel =
			rm_topology_channel(daemon->config->topology, work.chunk.channel)->name;
		g_array_append_val(batch, work);
	}
	scrubber->running = TRUE;
	scrubber->begun_usec = g_get_monotonic_time();
	start_batch(scrubber, batch, rm_store_take_back, on_taken_back);
}

RmScrubProgress
rm_scrubber_progress(const RmScrubber *scrubber)
{
	const RmDaemon *daemon = scrubber->daemon;
	const RmChannelCounts *counts = rm_ledger_counts(daemon->ledger);
	RmScrubProgress progress = {
		.done_chunks = scrubber->done_chunks,
		.rate_bytes_per_sec = scrubber->rate_bytes_per_sec,
	};
	guint i;

	for (i = 0; i < rm_topology_n_channels(daemon->config->topology); i++)
		progress.left_chunks +=
			counts[i].n[RM_CHUNK_RELEASED] + counts[i].n[RM_CHUNK_SCRUBBING];
	return progress;
}

RmScrubber *
rm_scrubber_new(RmDaemon *daemon)
{
	RmScrubber *scrubber = g_new0(RmScrubber, 1);

	scrubber->daemon = daemon;
	return scrubber;
}

void
rm_scrubber_free(RmScrubber *scrubber)
{
	g_atomic_int_set(&scrubber->stopping, 1);
	while (scrubber->running)
		g_main_context_iteration(NULL, TRUE);
	g_free(scrubber);
}
