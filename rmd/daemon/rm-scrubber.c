/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "rm-scrubber.h"

/* Few commits after a boot, when every chunk is dirty; the worker's time is what it is. */
#define BATCH_CHUNKS 1024

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
};

static void
work_clear(Work *work)
{
	g_clear_error(&work->error);
}

static void
run_batch(GTask *task, gpointer source, gpointer data, GCancellable *cancellable)
{
	GArray *batch = data;
	Step step = (Step)g_object_get_data(G_OBJECT(task), "step");
	guint i;

	for (i = 0; i < batch->len; i++) {
		Work *work = &g_array_index(batch, Work, i);

		step(work->store, work->channel, work->chunk.chunk, &work->error);
	}
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

		if (work->error)
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

	record_batch(scrubber, batch, RM_CHUNK_FREE);
	scrubber->running = FALSE;
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

	g_task_set_task_data(task, batch, (GDestroyNotify)g_array_unref);
	g_object_set_data(G_OBJECT(task), "step", (gpointer)step);
	g_task_run_in_thread(task, run_batch);
}

void
rm_scrubber_kick(RmScrubber *scrubber)
{
	RmDaemon *daemon = scrubber->daemon;
	g_autoptr(GArray) chunks = NULL;
	GArray *batch;
	guint i;

	if (scrubber->running)
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
	start_batch(scrubber, batch, rm_store_take_back, on_taken_back);
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
	while (scrubber->running)
		g_main_context_iteration(NULL, TRUE);
	g_free(scrubber);
}
