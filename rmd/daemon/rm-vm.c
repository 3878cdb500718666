/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "rm-vm.h"

#include <errno.h>
#include <gio/gunixsocketaddress.h>
#include <glib/gstdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rm-error.h"
#include "rm-fault.h"
#include "rm-paths.h"
#include "rm-peer.h"
#include "rm-qemu-args.h"
#include "rm-reconcile.h"
#include "rm-scrubber.h"

/* QEMU answers from its main loop; one that does not for so long is stuck. */
#define ANSWER_TIMEOUT_SEC 60
/* After a refused request, and before chunks that QEMU keeps too long are asked back. */
#define RETRY_MSEC 500
/* After something failed that a person has to look at. */
#define RETRY_FAILED_MSEC 10000
/* A connection that says so many things that are not so is ended. */
#define MISMATCHES_MAX 100
/*
 * One that broke the protocol may come back at once; then after a second, two, four… as long as it
 * does not behave for a while.
 */
#define PENALTY_MAX_SEC   64
#define GOOD_BEHAVIOR_SEC 300
/* After a connection that was refused nobody is listened to for a moment. */
#define REFUSED_MSEC 1000
/*
 * A channel grows by so much at once: the guest needs 1.6 % of what is plugged for its memmap, from
 * what it has, and is to have got that before more comes.
 */
#define STEP_CHUNKS 16
/* Signals of one domain are put together for so long. */
#define SIGNAL_MSEC 100

/* What QEMU says of one region (base memory or window of a channel). */
typedef struct {
	gboolean exists;
	guint64 requested_bytes;
	guint64 plugged_bytes;
	GHashTable *held; /* set of chunk numbers + 1; NULL: none */
} Region;

/* A possible channel with both its regions. */
typedef struct {
	Region base;
	Region window;
} Actual;

/* The one request that is under way. */
typedef struct {
	guint64 id; /* 0: none */
	enum { REQUEST_GRANT, REQUEST_RESIZE, REQUEST_REVOKE } kind;
	guint index; /* of the channel in vm->channels */
	gboolean base;
	guint64 requested_bytes;
	GArray *chunks; /* of guint */
	guint timeout;
	gint64 begun_usec;
} Request;

struct RmVm {
	RmDaemon *daemon;
	RmVmRow *row;
	GArray *channels; /* of RmVmChannel, by cNode */
	Actual *actual;   /* same index */
	RmProcess *process;
	GSocketService *listener;
	char *socket_path;
	RmPeer *peer;
	gboolean hello;
	gboolean ready;
	guint mismatches; /* of this connection */
	guint violations; /* in a row, of all connections */
	gint64 violated_usec;
	guint penalty; /* timeout: until then nobody is listened to */
	guint64 last_id;
	Request request;

	guint preparing;  /* tasks in worker threads */
	gboolean leaving; /* dropped or gone, as soon as nothing is being prepared */
	char *leaving_why;

	RmJob *job;
	guint job_timeout;
	guint job_distance; /* chunks to move when the job was first looked at */
	guint job_last_distance;
	guint claim_timeout;
	guint kick_idle;
	guint retry;
	gboolean backing_off; /* until retry: something failed, whatever others do */
	guint signal_timeout;
	gint64 revoke_after_usec; /* 0: nothing to ask back */
	guint revoke_next;
};

static void vm_leave(RmVm *vm, const char *why);
static void vm_fail_job(RmVm *vm, const char *message);
static void retry_later(RmVm *vm, guint msec);
static void finish_job(RmVm *vm, RmJobState state, const char *message);

static RmVmChannel *
channel_at(const RmVm *vm, guint i)
{
	return &g_array_index(vm->channels, RmVmChannel, i);
}

static const char *
channel_name(const RmVm *vm, guint i)
{
	return rm_topology_channel(vm->daemon->config->topology, channel_at(vm, i)->channel)->name;
}

static gboolean
find_channel(const RmVm *vm, const char *name, guint *ret_index)
{
	guint i;

	for (i = 0; i < vm->channels->len; i++) {
		if (g_str_equal(channel_name(vm, i), name)) {
			*ret_index = i;
			return TRUE;
		}
	}
	return FALSE;
}

/* Index in vm->channels of a channel of the topology. */
static guint
index_of(const RmVm *vm, guint channel)
{
	guint i;

	for (i = 0; i < vm->channels->len; i++) {
		if (channel_at(vm, i)->channel == channel)
			return i;
	}
	/* A chunk is granted only on possible channels; quarantine may bring others. */
	return G_MAXUINT;
}

static guint
window_target(const RmVmChannel *c)
{
	return c->target_chunks - c->base_chunks;
}

static Region *
region_of(RmVm *vm, guint i, gboolean base)
{
	return base ? &vm->actual[i].base : &vm->actual[i].window;
}

static gboolean
region_holds(const Region *region, guint chunk)
{
	return region->held && g_hash_table_contains(region->held, GUINT_TO_POINTER(chunk + 1));
}

/* Most regions of most domains hold nothing: no table for them. */
static void
region_add(Region *region, guint chunk)
{
	if (!region->held)
		region->held = g_hash_table_new(NULL, NULL);
	g_hash_table_add(region->held, GUINT_TO_POINTER(chunk + 1));
}

static void
region_remove(Region *region, guint chunk)
{
	if (region->held)
		g_hash_table_remove(region->held, GUINT_TO_POINTER(chunk + 1));
}

static guint
region_count(const Region *region)
{
	return region->held ? g_hash_table_size(region->held) : 0;
}

static void
region_reset(Region *region)
{
	region->exists = FALSE;
	region->requested_bytes = 0;
	region->plugged_bytes = 0;
	g_clear_pointer(&region->held, g_hash_table_unref);
}

static guint
bytes_to_chunks(guint64 bytes)
{
	return (guint)(bytes / RM_CHUNK_BYTES);
}

/* ---- telling ---- */

static gboolean
on_signal(gpointer data)
{
	RmVm *vm = data;

	vm->signal_timeout = 0;
	rm_daemon_emit_domain(vm->daemon, vm->row->uuid);
	rm_daemon_emit_channels(vm->daemon);
	return G_SOURCE_REMOVE;
}

static void
vm_changed(RmVm *vm)
{
	if (!vm->signal_timeout)
		vm->signal_timeout = g_timeout_add(SIGNAL_MSEC, on_signal, vm);
}

static void
save_row(RmVm *vm)
{
	g_autoptr(GError) error = NULL;

	if (!rm_ledger_update_vm(vm->daemon->ledger, vm->row, &error))
		rm_daemon_ledger_failed(error);
}

/* ---- chunks ---- */

typedef struct {
	guint granted; /* in any phase */
	guint reserved;
	guint prepared;
} Tally;

typedef struct {
	Tally base;
	Tally window;
} Tallies;

static Tallies *
count_chunks(RmVm *vm, const GArray *chunks)
{
	Tallies *tallies = g_new0(Tallies, vm->channels->len + 1);
	guint k;

	for (k = 0; k < chunks->len; k++) {
		const RmChunk *c = &g_array_index(chunks, RmChunk, k);
		guint i = index_of(vm, c->channel);
		Tally *t;

		if (c->state != RM_CHUNK_GRANTED || i == G_MAXUINT)
			continue;
		t = c->base ? &tallies[i].base : &tallies[i].window;
		t->granted++;
		t->reserved += c->phase == RM_PHASE_RESERVED;
		t->prepared += c->phase == RM_PHASE_PREPARED;
	}
	return tallies;
}

static GArray *
load_chunks(RmVm *vm)
{
	return rm_ledger_vm_chunks(vm->daemon->ledger, vm->row->id);
}

/* Marks chunks (RmChunk) of this domain as released and sets the scrubber on them. */
static void
release_chunks(RmVm *vm, const GArray *chunks)
{
	RmLedger *ledger = vm->daemon->ledger;
	g_autoptr(GError) error = NULL;
	g_autoptr(RmLedgerTx) tx = NULL;
	guint i;

	if (!chunks->len)
		return;
	tx = rm_ledger_begin(ledger, &error);
	for (i = 0; tx && i < chunks->len; i++) {
		const RmChunk *c = &g_array_index(chunks, RmChunk, i);

		if (!rm_ledger_set_state(ledger, c->channel, c->chunk, RM_CHUNK_RELEASED, &error))
			break;
	}
	if (!tx || error || !rm_ledger_commit(&tx, &error))
		rm_daemon_ledger_failed(error);
	rm_scrubber_kick(vm->daemon->scrubber);
	vm_changed(vm);
}

/* ---- preparing ---- */

typedef struct {
	RmVm *vm;
	RmVmPrepared done;
	gpointer data;
} Prepare;

typedef struct {
	RmStore *store;
	const char *channel;
	RmChunk chunk;
} PrepareWork;

static void
prepare_thread(GTask *task, gpointer source, gpointer data, GCancellable *cancellable)
{
	GArray *work = data;
	guint i;

	for (i = 0; i < work->len; i++) {
		PrepareWork *w = &g_array_index(work, PrepareWork, i);
		GError *error = NULL;

		rm_fault_point("prepare");
		if (!rm_store_prepare(w->store, w->channel, w->chunk.chunk, &error)) {
			g_task_return_error(task, error);
			return;
		}
	}
	g_task_return_boolean(task, TRUE);
}

static void
mark_prepared(RmVm *vm, const GArray *work)
{
	g_autoptr(GError) error = NULL;
	guint i;

	for (i = 0; i < work->len; i++) {
		const PrepareWork *w = &g_array_index(work, PrepareWork, i);

		if (!rm_ledger_set_phase(vm->daemon->ledger, w->chunk.channel, w->chunk.chunk,
					 RM_PHASE_PREPARED, &error))
			rm_daemon_ledger_failed(error);
	}
}

static void
on_prepared(GObject *source, GAsyncResult *result, gpointer data)
{
	g_autofree Prepare *prepare = data;
	RmVm *vm = prepare->vm;
	g_autoptr(GError) error = NULL;
	gboolean ok = g_task_propagate_boolean(G_TASK(result), &error);

	vm->preparing--;
	if (ok)
		mark_prepared(vm, g_task_get_task_data(G_TASK(result)));
	prepare->done(vm, error, prepare->data);
	if (vm->leaving && vm->row->state != RM_VM_GONE) {
		g_autofree char *why = g_steal_pointer(&vm->leaving_why);

		vm_leave(vm, why);
	}
}

void
rm_vm_prepare(RmVm *vm, RmVmPrepared done, gpointer data)
{
	g_autoptr(GArray) chunks = load_chunks(vm);
	GArray *work = g_array_new(FALSE, TRUE, sizeof(PrepareWork));
	g_autoptr(GTask) task = NULL;
	Prepare *prepare = g_new0(Prepare, 1);
	guint i;

	for (i = 0; i < chunks->len; i++) {
		PrepareWork w = {.chunk = g_array_index(chunks, RmChunk, i)};

		if (w.chunk.state != RM_CHUNK_GRANTED || w.chunk.phase != RM_PHASE_RESERVED)
			continue;
		w.store = rm_daemon_store(vm->daemon, w.chunk.channel);
		w.channel =
			rm_topology_channel(vm->daemon->config->topology, w.chunk.channel)->name;
		g_array_append_val(work, w);
	}
	prepare->vm = vm;
	prepare->done = done;
	prepare->data = data;
	vm->preparing++;
	task = g_task_new(NULL, NULL, on_prepared, prepare);
	g_task_set_task_data(task, work, (GDestroyNotify)g_array_unref);
	g_task_run_in_thread(task, prepare_thread);
}

static void
on_window_prepared(RmVm *vm, const GError *error, gpointer data)
{
	if (!vm->leaving && error) {
		g_autoptr(GArray) chunks = load_chunks(vm);
		g_autoptr(GArray) back = g_array_new(FALSE, FALSE, sizeof(RmChunk));
		guint i;

		for (i = 0; i < chunks->len; i++) {
			RmChunk c = g_array_index(chunks, RmChunk, i);

			if (c.state == RM_CHUNK_GRANTED && c.phase == RM_PHASE_RESERVED)
				g_array_append_val(back, c);
		}
		release_chunks(vm, back);
		vm_fail_job(vm, error->message);
		return;
	}
	rm_vm_kick(vm);
}

/* ---- requests ---- */

static void
request_clear(RmVm *vm)
{
	g_clear_handle_id(&vm->request.timeout, g_source_remove);
	g_clear_pointer(&vm->request.chunks, g_array_unref);
	vm->request.id = 0;
}

static gboolean
on_answer_timeout(gpointer data)
{
	RmVm *vm = data;

	vm->request.timeout = 0;
	rm_daemon_note(vm->daemon, G_LOG_LEVEL_WARNING, vm->row->uuid, "stuck",
		       "domain %s: QEMU does not answer for %d s", vm->row->name,
		       ANSWER_TIMEOUT_SEC);
	rm_peer_fail(vm->peer, "no answer to a request");
	return G_SOURCE_REMOVE;
}

static void
request_begin(RmVm *vm, int kind, guint index, gboolean base)
{
	vm->request.id = ++vm->last_id;
	vm->request.kind = kind;
	vm->request.begun_usec = g_get_monotonic_time();
	vm->request.index = index;
	vm->request.base = base;
	vm->request.chunks = g_array_new(FALSE, FALSE, sizeof(guint));
	vm->request.timeout = g_timeout_add_seconds(ANSWER_TIMEOUT_SEC, on_answer_timeout, vm);
}

static void
send_resize(RmVm *vm, guint index, guint64 requested_bytes)
{
	gboolean drain = requested_bytes == 0;

	request_begin(vm, REQUEST_RESIZE, index, FALSE);
	vm->request.requested_bytes = requested_bytes;
	g_debug("domain %s: resize %s to %" G_GUINT64_FORMAT, vm->row->name,
		channel_name(vm, index), requested_bytes);
	rm_peer_send(vm->peer,
		     rm_rpc_format_resize(rm_peer_next_seq(vm->peer), vm->request.id,
					  channel_name(vm, index), requested_bytes, drain),
		     NULL);
}

static void
send_revoke(RmVm *vm, guint index, guint chunk)
{
	request_begin(vm, REQUEST_REVOKE, index, FALSE);
	g_array_append_val(vm->request.chunks, chunk);
	g_debug("domain %s: revoke chunk %u of %s", vm->row->name, chunk, channel_name(vm, index));
	rm_peer_send(vm->peer,
		     rm_rpc_format_revoke(rm_peer_next_seq(vm->peer), vm->request.id,
					  channel_name(vm, index), &chunk, 1),
		     NULL);
}

/* That the chunks are this domain's is on disk since they were reserved: the journal is first. */
static void
mark_sent(RmVm *vm, const GArray *chunks)
{
	g_autoptr(GError) error = NULL;
	guint i;

	for (i = 0; i < chunks->len; i++) {
		const RmChunk *c = &g_array_index(chunks, RmChunk, i);

		if (!rm_ledger_set_phase(vm->daemon->ledger, c->channel, c->chunk, RM_PHASE_SENT,
					 &error))
			rm_daemon_ledger_failed(error);
	}
	rm_daemon_flush_soon(vm->daemon);
	rm_fault_point("grant-send");
}

/* Grants the prepared chunks of a region, as many as one message carries. */
static void
send_grant(RmVm *vm, guint index, gboolean base, const GArray *chunks)
{
	g_autoptr(GUnixFDList) fds = g_unix_fd_list_new();
	g_autoptr(GArray) batch = g_array_new(FALSE, FALSE, sizeof(RmChunk));
	g_autoptr(GArray) grants = g_array_new(FALSE, TRUE, sizeof(RmRpcGrant));
	RmStore *store = rm_daemon_store(vm->daemon, channel_at(vm, index)->channel);
	guint k;

	for (k = 0; k < chunks->len && batch->len < RM_RPC_FDS_MAX; k++) {
		RmChunk c = g_array_index(chunks, RmChunk, k);
		g_autoptr(GError) error = NULL;
		RmRpcGrant grant = {.chunk = c.chunk};
		int fd;

		if (c.state != RM_CHUNK_GRANTED || c.phase != RM_PHASE_PREPARED || c.base != base ||
		    c.channel != channel_at(vm, index)->channel)
			continue;
		fd = rm_store_open_chunk(store, channel_name(vm, index), c.chunk,
					 &grant.offset_bytes, &error);
		if (fd < 0) {
			g_autoptr(GArray) bad = g_array_new(FALSE, FALSE, sizeof(RmChunk));

			/* Its file was removed under us: another chunk will be taken. */
			g_array_append_val(bad, c);
			release_chunks(vm, bad);
			rm_daemon_note(vm->daemon, G_LOG_LEVEL_WARNING, vm->row->uuid, "store",
				       "domain %s: %s", vm->row->name, error->message);
			continue;
		}
		g_unix_fd_list_append(fds, fd, NULL);
		close(fd);
		g_array_append_val(batch, c);
		g_array_append_val(grants, grant);
	}
	if (!batch->len) {
		rm_vm_kick(vm);
		return;
	}
	mark_sent(vm, batch);
	request_begin(vm, REQUEST_GRANT, index, base);
	for (k = 0; k < batch->len; k++)
		g_array_append_val(vm->request.chunks, g_array_index(batch, RmChunk, k).chunk);
	g_debug("domain %s: grant %u chunks of %s%s", vm->row->name, batch->len,
		channel_name(vm, index), base ? " (base)" : "");
	rm_peer_send(vm->peer,
		     rm_rpc_format_grant(rm_peer_next_seq(vm->peer), vm->request.id,
					 channel_name(vm, index), base,
					 (const RmRpcGrant *)(gpointer)grants->data, grants->len),
		     fds);
}

/* ---- converging ---- */

static gboolean
on_retry(gpointer data)
{
	RmVm *vm = data;

	vm->retry = 0;
	vm->backing_off = FALSE;
	rm_vm_kick(vm);
	return G_SOURCE_REMOVE;
}

static void
retry_later(RmVm *vm, guint msec)
{
	if (!vm->retry)
		vm->retry = g_timeout_add(msec, on_retry, vm);
}

/* Reserves what is missing of a region in the ledger; FALSE if nothing was reserved. */
static gboolean
reserve(RmVm *vm, guint index, gboolean base, guint missing)
{
	RmLedger *ledger = vm->daemon->ledger;
	g_autoptr(GArray) granted = g_array_new(FALSE, FALSE, sizeof(RmChunk));
	g_autoptr(GError) error = NULL;
	g_autoptr(RmLedgerTx) tx = NULL;

	if (!missing)
		return FALSE;
	tx = rm_ledger_begin(ledger, &error);
	if (!tx ||
	    !rm_ledger_grant(ledger, vm->row->id, channel_at(vm, index)->channel, missing, base,
			     granted, &error) ||
	    !rm_ledger_commit(&tx, &error))
		rm_daemon_ledger_failed(error);
	if (granted->len)
		vm_changed(vm);
	return granted->len > 0;
}

/*
 * Chunks that were sent and that QEMU does not have: it gave them back while rmd was away, or never
 * got them. With a request under way this would be too early: its answer settles its chunks.
 */
static gboolean
step_missing(RmVm *vm, const GArray *chunks)
{
	g_autoptr(GArray) missing = g_array_new(FALSE, FALSE, sizeof(RmChunk));
	guint k;

	for (k = 0; k < chunks->len; k++) {
		RmChunk c = g_array_index(chunks, RmChunk, k);
		guint i = index_of(vm, c.channel);

		if (c.state == RM_CHUNK_GRANTED && c.phase == RM_PHASE_SENT && i != G_MAXUINT &&
		    !region_holds(region_of(vm, i, c.base), c.chunk))
			g_array_append_val(missing, c);
	}
	release_chunks(vm, missing);
	return missing->len > 0;
}

/* Chunks above the target that QEMU never got need no question. */
static gboolean
step_trim(RmVm *vm, const GArray *chunks, const Tallies *tallies)
{
	g_autoptr(GArray) back = g_array_new(FALSE, FALSE, sizeof(RmChunk));
	guint i, k;

	for (i = 0; i < vm->channels->len; i++) {
		guint want = window_target(channel_at(vm, i));
		guint excess = tallies[i].window.granted;

		excess = excess > want ? excess - want : 0;
		for (k = chunks->len; k > 0 && excess; k--) {
			RmChunk c = g_array_index(chunks, RmChunk, k - 1);

			if (c.state != RM_CHUNK_GRANTED || c.phase == RM_PHASE_SENT || c.base ||
			    c.channel != channel_at(vm, i)->channel)
				continue;
			g_array_append_val(back, c);
			excess--;
		}
	}
	release_chunks(vm, back);
	return back->len > 0;
}

/* Reserves all that is missing anywhere, then has it prepared. TRUE: wait for that. */
static gboolean
step_reserve(RmVm *vm, const Tallies *tallies)
{
	gboolean any = FALSE;
	guint i;

	for (i = 0; i < vm->channels->len; i++) {
		const RmVmChannel *c = channel_at(vm, i);
		const Tallies *t = &tallies[i];
		guint want = window_target(c);

		any |= t->base.reserved || t->window.reserved;
		if (t->base.granted < c->base_chunks)
			any |= reserve(vm, i, TRUE, c->base_chunks - t->base.granted);
		if (t->window.granted < want)
			any |= reserve(vm, i, FALSE, want - t->window.granted);
	}
	if (any)
		rm_vm_prepare(vm, on_window_prepared, NULL);
	return any;
}

/*
 * Base memory is granted as soon as QEMU is there: it waits for it and has no region to show
 * before. Windows only when QEMU has shown them.
 */
static gboolean
step_grant(RmVm *vm, const GArray *chunks, const Tallies *tallies)
{
	guint i;

	for (i = 0; i < vm->channels->len; i++) {
		if (tallies[i].base.prepared) {
			send_grant(vm, i, TRUE, chunks);
			return TRUE;
		}
	}
	for (i = 0; vm->ready && i < vm->channels->len; i++) {
		if (tallies[i].window.prepared && vm->actual[i].window.exists) {
			send_grant(vm, i, FALSE, chunks);
			return TRUE;
		}
	}
	return FALSE;
}

static gboolean
step_grow(RmVm *vm, const Tallies *tallies, gboolean *ret_growing)
{
	guint i;

	*ret_growing = FALSE;
	for (i = 0; i < vm->channels->len; i++) {
		Region *w = &vm->actual[i].window;
		guint want = window_target(channel_at(vm, i));
		guint64 goal_bytes = MIN(want, region_count(w)) * RM_CHUNK_BYTES;
		guint64 step_bytes = w->plugged_bytes + STEP_CHUNKS * RM_CHUNK_BYTES;

		if (w->requested_bytes < MIN(goal_bytes, step_bytes)) {
			send_resize(vm, i, MIN(goal_bytes, step_bytes));
			return TRUE;
		}
		if (tallies[i].window.granted < want || w->requested_bytes < goal_bytes ||
		    w->plugged_bytes < MIN(want * RM_CHUNK_BYTES, w->requested_bytes))
			*ret_growing = TRUE;
	}
	return FALSE;
}

/*
 * QEMU gives back by itself what it has above its requested size. Where it keeps more (a growth
 * that was given up before it was asked for) we ask for chunk after chunk: those in use are
 * refused.
 */
static gboolean
ask_back(RmVm *vm, guint index, const GArray *chunks)
{
	Region *w = &vm->actual[index].window;
	guint k, n = 0;

	if (!vm->revoke_after_usec) {
		vm->revoke_after_usec = g_get_monotonic_time() + RETRY_MSEC * 1000;
		retry_later(vm, RETRY_MSEC);
		return FALSE;
	}
	if (g_get_monotonic_time() < vm->revoke_after_usec) {
		retry_later(vm, RETRY_MSEC);
		return FALSE;
	}
	for (k = chunks->len; k > 0; k--) {
		const RmChunk *c = &g_array_index(chunks, RmChunk, k - 1);

		if (c->state != RM_CHUNK_GRANTED || c->base ||
		    c->channel != channel_at(vm, index)->channel || !region_holds(w, c->chunk))
			continue;
		if (n++ < vm->revoke_next)
			continue;
		vm->revoke_next++;
		send_revoke(vm, index, c->chunk);
		return TRUE;
	}
	vm->revoke_next = 0;
	vm->revoke_after_usec = 0;
	retry_later(vm, RETRY_MSEC);
	return FALSE;
}

static gboolean
step_shrink(RmVm *vm, const GArray *chunks, const Tallies *tallies, gboolean *ret_shrinking)
{
	guint i;

	*ret_shrinking = FALSE;
	for (i = 0; i < vm->channels->len; i++) {
		Region *w = &vm->actual[i].window;
		guint want = window_target(channel_at(vm, i));

		if (w->requested_bytes > want * RM_CHUNK_BYTES) {
			send_resize(vm, i, want * RM_CHUNK_BYTES);
			return TRUE;
		}
	}
	for (i = 0; i < vm->channels->len; i++) {
		Region *w = &vm->actual[i].window;
		guint want = window_target(channel_at(vm, i));

		if (w->plugged_bytes > want * RM_CHUNK_BYTES) {
			*ret_shrinking = TRUE;
			continue;
		}
		if (tallies[i].window.granted <= want)
			continue;
		*ret_shrinking = TRUE;
		if (ask_back(vm, i, chunks))
			return TRUE;
	}
	if (!*ret_shrinking) {
		vm->revoke_after_usec = 0;
		vm->revoke_next = 0;
	}
	return FALSE;
}

/* ---- jobs ---- */

static gboolean
on_job_timeout(gpointer data)
{
	RmVm *vm = data;
	g_autofree char *message = NULL;

	vm->job_timeout = 0;
	if (!vm->job)
		return G_SOURCE_REMOVE;
	message = g_strdup_printf("no progress for %u s, %u chunks are left: %s",
				  vm->daemon->config->job_timeout_sec, vm->job_last_distance,
				  !vm->peer    ? "QEMU is not connected"
				  : !vm->ready ? "the machine is not complete"
					       : "the guest does not follow (no driver, or pages "
						 "that cannot move)");
	vm_fail_job(vm, message);
	return G_SOURCE_REMOVE;
}

static void
arm_job_timeout(RmVm *vm)
{
	g_clear_handle_id(&vm->job_timeout, g_source_remove);
	if (vm->job)
		vm->job_timeout = g_timeout_add_seconds(vm->daemon->config->job_timeout_sec,
							on_job_timeout, vm);
}

static void
save_job(RmVm *vm)
{
	g_autoptr(GError) error = NULL;

	if (!rm_ledger_update_job(vm->daemon->ledger, vm->job, &error))
		rm_daemon_ledger_failed(error);
}

static void
finish_job(RmVm *vm, RmJobState state, const char *message)
{
	if (!vm->job)
		return;
	g_clear_handle_id(&vm->job_timeout, g_source_remove);
	vm->job->state = state;
	vm->job->finished_usec = g_get_real_time();
	if (state == RM_JOB_DONE)
		vm->job->progress = 1;
	g_free(vm->job->message);
	vm->job->message = g_strdup(message);
	save_job(vm);
	rm_daemon_note(vm->daemon, G_LOG_LEVEL_INFO, vm->row->uuid, "job",
		       "domain %s: job %" G_GUINT64_FORMAT " (%s) %s: %s", vm->row->name,
		       vm->job->id, vm->job->kind, rm_job_state_name(state), message);
	rm_daemon_emit_job(vm->daemon, vm->job);
	g_clear_pointer(&vm->job, rm_job_free);
	vm_changed(vm);
}

/* What the domain has now becomes what it is to have. */
static void
accept_actual(RmVm *vm)
{
	RmLedger *ledger = vm->daemon->ledger;
	g_autoptr(GArray) chunks = load_chunks(vm);
	g_autofree Tallies *tallies = count_chunks(vm, chunks);
	g_autoptr(GError) error = NULL;
	g_autoptr(RmLedgerTx) tx = rm_ledger_begin(ledger, &error);
	guint i, sum = 0, used = 0;

	for (i = 0; tx && !error && i < vm->channels->len; i++) {
		RmVmChannel *c = channel_at(vm, i);
		guint plugged = bytes_to_chunks(vm->actual[i].window.plugged_bytes);

		/* Unknown is not zero: without a hello the books are all there is. */
		if (!vm->hello)
			plugged = tallies[i].window.granted;
		plugged = MIN(plugged, tallies[i].window.granted);
		c->target_chunks = c->base_chunks + MIN(plugged, c->window_chunks);
		sum += c->target_chunks;
		used += c->target_chunks > 0;
		rm_ledger_set_target(ledger, vm->row->id, c->channel, c->target_chunks, &error);
	}
	vm->row->capacity_chunks = MAX(sum, 1);
	vm->row->bandwidth_channels = MAX(used, 1);
	vm->row->generation++;
	if (!tx || error || !rm_ledger_update_vm(ledger, vm->row, &error) ||
	    !rm_ledger_commit(&tx, &error))
		rm_daemon_ledger_failed(error);
}

/*
 * A growth or shrink that cannot go on ends where it is. A start, and a domain without a job (it
 * may be rebooting right now), keeps its target and tries again.
 */
static void
vm_fail_job(RmVm *vm, const char *message)
{
	gboolean resize = vm->job && !g_str_equal(vm->job->kind, "start");

	if (!vm->job)
		g_warning("domain %s: %s", vm->row->name, message);
	finish_job(vm, RM_JOB_FAILED, message);
	if (resize) {
		accept_actual(vm);
		rm_vm_kick(vm);
	} else {
		g_clear_handle_id(&vm->retry, g_source_remove);
		retry_later(vm, RETRY_FAILED_MSEC);
		vm->backing_off = TRUE;
	}
}

/* Chunks that are not yet where the target wants them. */
static guint
distance(RmVm *vm, const Tallies *tallies)
{
	guint sum = 0, i;

	for (i = 0; i < vm->channels->len; i++) {
		const RmVmChannel *c = channel_at(vm, i);
		guint want = window_target(c);
		guint plugged = bytes_to_chunks(vm->actual[i].window.plugged_bytes);

		sum += want > plugged ? want - plugged : plugged - want;
		if (tallies[i].window.granted > MAX(plugged, want))
			sum += tallies[i].window.granted - MAX(plugged, want);
	}
	return sum;
}

static void
track_job(RmVm *vm, const Tallies *tallies)
{
	guint d = distance(vm, tallies);
	gdouble progress;

	if (!vm->job)
		return;
	if (d > vm->job_distance) {
		vm->job_distance = d;
		arm_job_timeout(vm);
	}
	if (d == vm->job_last_distance && vm->job_timeout)
		return;
	vm->job_last_distance = d;
	arm_job_timeout(vm);
	progress = vm->job_distance ? 1 - (gdouble)d / vm->job_distance : 0;
	if (progress > vm->job->progress) {
		vm->job->progress = progress;
		rm_daemon_emit_job(vm->daemon, vm->job);
	}
}

static void
finish_converged(RmVm *vm)
{
	g_autofree char *size = rm_size_format(vm->row->capacity_chunks * RM_CHUNK_BYTES);
	g_autofree char *message =
		g_strdup_printf("%s on %u channels", size, vm->row->bandwidth_channels);

	finish_job(vm, RM_JOB_DONE, message);
}

/* One look: takes the first step that is missing. */
static void
converge(RmVm *vm)
{
	g_autoptr(GArray) chunks = NULL;
	g_autofree Tallies *tallies = NULL;
	gboolean growing, shrinking;

	if (vm->row->state != RM_VM_RUNNING || vm->leaving || !vm->peer || !vm->hello ||
	    vm->request.id || vm->preparing || vm->backing_off)
		return;
	chunks = load_chunks(vm);
	tallies = count_chunks(vm, chunks);
	track_job(vm, tallies);
	if (step_missing(vm, chunks) || step_trim(vm, chunks, tallies)) {
		rm_vm_kick(vm);
		return;
	}
	if (step_reserve(vm, tallies) || step_grant(vm, chunks, tallies) || !vm->ready)
		return;
	if (step_grow(vm, tallies, &growing) || growing)
		return;
	if (step_shrink(vm, chunks, tallies, &shrinking) || shrinking)
		return;
	if (vm->job)
		finish_converged(vm);
}

static gboolean
on_kick(gpointer data)
{
	RmVm *vm = data;

	vm->kick_idle = 0;
	converge(vm);
	return G_SOURCE_REMOVE;
}

void
rm_vm_kick(RmVm *vm)
{
	if (!vm->kick_idle)
		vm->kick_idle = g_idle_add_full(G_PRIORITY_DEFAULT, on_kick, vm, NULL);
}

/* ---- messages of QEMU ---- */

/* QEMU says something of a chunk that the books do not. FALSE: once too often. */
static gboolean
note_mismatch(RmVm *vm, const char *text, GError **error)
{
	if (++vm->mismatches > MISMATCHES_MAX) {
		rm_error_set(error, RM_ERROR_INVALID, "more than %d claims that the ledger denies",
			     MISMATCHES_MAX);
		return FALSE;
	}
	rm_daemon_note(vm->daemon, G_LOG_LEVEL_WARNING, vm->row->uuid, "mismatch", "domain %s %s",
		       vm->row->name, text);
	return TRUE;
}

/*
 * One chunk that QEMU says it holds. What the books do not say of it is never taken over: a chunk
 * that nobody has is set aside, any other is only reported, since taking it from QEMU by file
 * (truncate) is what its true owner's books lead to anyway.
 */
static gboolean
reconcile_held(RmVm *vm, guint index, gboolean base, guint chunk, GError **error)
{
	RmLedger *ledger = vm->daemon->ledger;
	guint channel = channel_at(vm, index)->channel;
	g_autofree char *text = NULL;
	RmReconcileCase found;
	RmChunkFacts facts;
	RmChunk c;

	if (!rm_ledger_get_chunk(ledger, channel, chunk, &c, error))
		return FALSE;
	facts = (RmChunkFacts){&c, vm->row->id, base, RM_FACT_YES, TRUE};
	found = rm_reconcile_chunk(&facts);
	/*
	 * After an adoption the books only guess which chunks are base memory; QEMU knows. Within
	 * one domain that is no matter of anybody else's.
	 */
	if (found == RM_CASE_HELD_OTHER && c.vm == vm->row->id) {
		if (!rm_ledger_set_base(ledger, channel, chunk, base, error))
			return FALSE;
		found = RM_CASE_HELD;
	}
	if (found == RM_CASE_HELD) {
		region_add(region_of(vm, index, base), chunk);
		/* It can have it only from us, whatever was written last. */
		return c.phase == RM_PHASE_SENT ||
		       rm_ledger_set_phase(ledger, channel, chunk, RM_PHASE_SENT, error);
	}
	text = g_strdup_printf("says it holds chunk %u of %s%s, which is %s in the ledger", chunk,
			       channel_name(vm, index), base ? " as base" : "",
			       c.state == RM_CHUNK_GRANTED ? "granted otherwise"
							   : rm_chunk_state_name(c.state));
	if (!note_mismatch(vm, text, error))
		return FALSE;
	if (rm_reconcile_rule(found)->action == RM_ACTION_QUARANTINE)
		return rm_ledger_quarantine(ledger, channel, chunk, vm->row->id, error);
	return TRUE;
}

static gboolean
check_region(RmVm *vm, const RmRpcRegion *r, guint *ret_index, GError **error)
{
	const RmVmChannel *c;
	guint64 size_bytes;

	if (!find_channel(vm, r->channel, ret_index)) {
		rm_error_set(error, RM_ERROR_INVALID, "hello: channel %s is not one of this domain",
			     r->channel);
		return FALSE;
	}
	c = channel_at(vm, *ret_index);
	size_bytes = (r->base ? c->base_chunks : c->window_chunks) * RM_CHUNK_BYTES;
	if (r->size_bytes != size_bytes || r->plugged_bytes > size_bytes ||
	    r->requested_bytes > size_bytes) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "hello: channel %s has size %" G_GUINT64_FORMAT
			     ", requested %" G_GUINT64_FORMAT ", plugged %" G_GUINT64_FORMAT
			     " where the size is %" G_GUINT64_FORMAT,
			     r->channel, r->size_bytes, r->requested_bytes, r->plugged_bytes,
			     size_bytes);
		return FALSE;
	}
	return TRUE;
}

static gboolean
reconcile(RmVm *vm, const RmRpcMessage *m, GError **error)
{
	g_autoptr(RmLedgerTx) tx = rm_ledger_begin(vm->daemon->ledger, error);
	guint i, k;

	if (!tx)
		return FALSE;
	for (i = 0; i < m->regions->len; i++) {
		const RmRpcRegion *r = g_ptr_array_index(m->regions, i);
		Region *region;
		guint index;

		if (!check_region(vm, r, &index, error))
			return FALSE;
		region = region_of(vm, index, r->base);
		region->exists = TRUE;
		region->requested_bytes = r->requested_bytes;
		region->plugged_bytes = r->plugged_bytes;
		for (k = 0; k < r->chunks->len; k++) {
			if (!reconcile_held(vm, index, r->base,
					    g_array_index(r->chunks, RmRpcChunk, k).chunk, error))
				return FALSE;
		}
	}
	return rm_ledger_commit(&tx, error);
}

static gboolean
handle_hello(RmVm *vm, const RmRpcMessage *m, GError **error)
{
	guint i;

	if (m->version != RM_RPC_VERSION) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "hello: version %u of the protocol, this rmd speaks %d", m->version,
			     RM_RPC_VERSION);
		return FALSE;
	}
	if (g_ascii_strcasecmp(m->uuid, vm->row->uuid) != 0) {
		rm_error_set(error, RM_ERROR_INVALID, "hello: UUID %s on the socket of %s", m->uuid,
			     vm->row->uuid);
		return FALSE;
	}
	for (i = 0; i < vm->channels->len; i++) {
		region_reset(&vm->actual[i].base);
		region_reset(&vm->actual[i].window);
	}
	if (!reconcile(vm, m, error))
		return FALSE;
	for (i = 0; m->ready && i < vm->channels->len; i++) {
		if (vm->actual[i].window.exists)
			continue;
		rm_error_set(error, RM_ERROR_INVALID,
			     "hello: the machine is complete without a window for channel %s",
			     channel_name(vm, i));
		return FALSE;
	}
	vm->hello = TRUE;
	vm->ready = m->ready;
	g_info("domain %s: hello, %s", vm->row->name,
	       m->ready ? "machine complete" : "machine not complete yet");
	return TRUE;
}

static gboolean
handle_released(RmVm *vm, const RmRpcMessage *m, GError **error)
{
	g_autoptr(GArray) back = g_array_new(FALSE, FALSE, sizeof(RmChunk));
	guint index, i;

	if (!find_channel(vm, m->channel, &index)) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "released: channel %s is not one of this domain", m->channel);
		return FALSE;
	}
	for (i = 0; i < m->chunks->len; i++) {
		guint chunk = g_array_index(m->chunks, guint, i);
		g_autofree char *text = NULL;
		RmChunk c;

		if (!rm_ledger_get_chunk(vm->daemon->ledger, channel_at(vm, index)->channel, chunk,
					 &c, error))
			return FALSE;
		region_remove(region_of(vm, index, m->base), chunk);
		if (c.state == RM_CHUNK_GRANTED && c.vm == vm->row->id && c.base == m->base &&
		    c.phase == RM_PHASE_SENT) {
			g_array_append_val(back, c);
			continue;
		}
		text = g_strdup_printf("releases chunk %u of %s, which it does not have", chunk,
				       m->channel);
		if (!note_mismatch(vm, text, error))
			return FALSE;
	}
	release_chunks(vm, back);
	return TRUE;
}

static gboolean
handle_progress(RmVm *vm, const RmRpcMessage *m, GError **error)
{
	guint index;
	Region *w;

	if (!find_channel(vm, m->channel, &index)) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "progress: channel %s is not one of this domain", m->channel);
		return FALSE;
	}
	if (MAX(m->plugged_bytes, m->requested_bytes) >
	    channel_at(vm, index)->window_chunks * RM_CHUNK_BYTES) {
		rm_error_set(error, RM_ERROR_INVALID, "progress: channel %s is more than full",
			     m->channel);
		return FALSE;
	}
	w = &vm->actual[index].window;
	w->requested_bytes = m->requested_bytes;
	w->plugged_bytes = m->plugged_bytes;
	vm_changed(vm);
	return TRUE;
}

static void
handle_stalled(RmVm *vm, const RmRpcMessage *m)
{
	g_autofree char *left = rm_size_format(m->remaining_bytes);

	g_info("domain %s: channel %s makes no progress for %" G_GUINT64_FORMAT " s, %s left",
	       vm->row->name, m->channel, m->seconds, left);
	if (!vm->job)
		return;
	g_free(vm->job->message);
	vm->job->message =
		g_strdup_printf("channel %s: no progress for %" G_GUINT64_FORMAT " s, %s left",
				m->channel, m->seconds, left);
	rm_daemon_emit_job(vm->daemon, vm->job);
}

static void
request_done(RmVm *vm)
{
	Region *region = region_of(vm, vm->request.index, vm->request.base);
	guint i;

	if (vm->request.kind == REQUEST_GRANT) {
		for (i = 0; i < vm->request.chunks->len; i++) {
			guint chunk = g_array_index(vm->request.chunks, guint, i);

			region_add(region, chunk);
		}
	}
	/* Its `progress` may come after the answer. */
	if (vm->request.kind == REQUEST_RESIZE)
		region->requested_bytes = vm->request.requested_bytes;
	request_clear(vm);
}

/* Chunks of a refused grant: QEMU has none of them. */
static void
take_back_request(RmVm *vm)
{
	g_autoptr(GArray) back = g_array_new(FALSE, FALSE, sizeof(RmChunk));
	guint i;

	for (i = 0; i < vm->request.chunks->len; i++) {
		g_autoptr(GError) error = NULL;
		RmChunk c;

		if (!rm_ledger_get_chunk(vm->daemon->ledger,
					 channel_at(vm, vm->request.index)->channel,
					 g_array_index(vm->request.chunks, guint, i), &c, &error))
			rm_daemon_ledger_failed(error);
		if (c.state == RM_CHUNK_GRANTED && c.vm == vm->row->id)
			g_array_append_val(back, c);
	}
	release_chunks(vm, back);
}

static void
request_refused(RmVm *vm, const RmRpcMessage *m)
{
	g_autofree char *message = NULL;
	gboolean grant = vm->request.kind == REQUEST_GRANT;
	gboolean revoke = vm->request.kind == REQUEST_REVOKE;

	message = g_strdup_printf("QEMU refuses %s of channel %s: %s (%s)",
				  grant    ? "a grant"
				  : revoke ? "to give back a chunk"
					   : "a new size",
				  channel_name(vm, vm->request.index), m->desc, m->error_class);
	if (grant)
		take_back_request(vm);
	request_clear(vm);
	/* In use is what revoke expects of most chunks; a resize may meet a busy moment. */
	if (revoke || (!grant && g_str_equal(m->error_class, "Busy"))) {
		g_debug("domain %s: %s", vm->row->name, message);
		retry_later(vm, RETRY_MSEC);
		return;
	}
	/* A region that does not exist yet is no failure while the machine is being built. */
	if (grant && !vm->ready) {
		g_info("domain %s: %s", vm->row->name, message);
		retry_later(vm, RETRY_MSEC);
		return;
	}
	vm_fail_job(vm, message);
}

static gboolean
on_message(RmPeer *peer, const RmRpcMessage *m, gpointer data, GError **error)
{
	RmVm *vm = data;
	gboolean ok = TRUE;

	if (!vm->hello && m->type != RM_RPC_HELLO) {
		rm_error_set(error, RM_ERROR_INVALID, "the first message is not hello");
		return FALSE;
	}
	if ((m->type == RM_RPC_DONE || m->type == RM_RPC_ERROR) &&
	    (!vm->request.id || m->id != vm->request.id)) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "an answer to request %" G_GUINT64_FORMAT ", which is not under way",
			     m->id);
		return FALSE;
	}
	switch (m->type) {
	case RM_RPC_HELLO:
		ok = handle_hello(vm, m, error);
		vm_changed(vm);
		break;
	case RM_RPC_DONE:
		g_debug("domain %s: request %" G_GUINT64_FORMAT " is done after %" G_GINT64_FORMAT
			" us",
			vm->row->name, vm->request.id,
			g_get_monotonic_time() - vm->request.begun_usec);
		request_done(vm);
		break;
	case RM_RPC_ERROR:
		request_refused(vm, m);
		break;
	case RM_RPC_PROGRESS:
		ok = handle_progress(vm, m, error);
		break;
	case RM_RPC_RELEASED:
		ok = handle_released(vm, m, error);
		break;
	case RM_RPC_STALLED:
		handle_stalled(vm, m);
		break;
	case RM_RPC_OTHER:
		break;
	}
	if (ok && !vm->retry)
		rm_vm_kick(vm); /* a retry that waits is also what keeps us from asking too often */
	return ok;
}

static gboolean
on_penalty_over(gpointer data)
{
	RmVm *vm = data;

	vm->penalty = 0;
	if (vm->listener)
		g_socket_service_start(vm->listener);
	return G_SOURCE_REMOVE;
}

/* Whoever wants to connect meanwhile waits in the kernel's queue and costs nothing. */
static void
deafen(RmVm *vm, guint msec)
{
	if (!vm->listener || vm->penalty)
		return;
	g_socket_service_stop(vm->listener);
	vm->penalty = g_timeout_add(msec, on_penalty_over, vm);
}

static void
punish(RmVm *vm)
{
	gint64 now_usec = g_get_monotonic_time();
	guint sec;

	if (now_usec - vm->violated_usec > GOOD_BEHAVIOR_SEC * G_USEC_PER_SEC)
		vm->violations = 0;
	vm->violated_usec = now_usec;
	if (++vm->violations < 2 || !vm->listener || vm->penalty)
		return;
	sec = MIN(1u << MIN(vm->violations - 2, 6), PENALTY_MAX_SEC);
	rm_daemon_note(vm->daemon, G_LOG_LEVEL_WARNING, vm->row->uuid, "penalty",
		       "domain %s: broke the protocol %u times; it is not listened to for %u s",
		       vm->row->name, vm->violations, sec);
	deafen(vm, sec * 1000);
}

/* EOF means unknown, not dead: nothing is freed, all that QEMU said is forgotten. */
static void
on_closed(RmPeer *peer, const char *reason, gpointer data)
{
	RmVm *vm = data;
	guint i;

	rm_daemon_note(vm->daemon, G_LOG_LEVEL_INFO, vm->row->uuid, "disconnected",
		       "domain %s: connection ended: %s", vm->row->name, reason);
	if (rm_peer_violated(vm->peer))
		punish(vm);
	g_clear_pointer(&vm->peer, rm_peer_free);
	request_clear(vm);
	vm->hello = FALSE;
	vm->ready = FALSE;
	for (i = 0; i < vm->channels->len; i++) {
		region_reset(&vm->actual[i].base);
		region_reset(&vm->actual[i].window);
	}
	vm_changed(vm);
}

/* ---- the socket ---- */

static gboolean
on_incoming(GSocketService *service, GSocketConnection *connection, GObject *source, gpointer data)
{
	static const RmPeerFuncs funcs = {.message = on_message, .closed = on_closed};
	RmVm *vm = data;
	g_autoptr(GError) error = NULL;
	g_autoptr(RmProcess) process =
		rm_process_open_peer(g_socket_connection_get_socket(connection), &error);
	const char *why = NULL;

	if (!process)
		why = error->message;
	else if (!vm->process || !rm_process_equal(process, vm->process))
		why = "it is not the process of this domain";
	else if (vm->peer)
		why = "this domain is connected already";
	if (why) {
		/*
		 * A process that is not ours must neither cost rmd its time nor the domain its
		 * place: while it is connected nobody else has business here.
		 */
		deafen(vm, vm->peer ? REFUSED_MSEC : REFUSED_MSEC / 10);
		rm_daemon_note(vm->daemon, G_LOG_LEVEL_WARNING, vm->row->uuid, "refused",
			       "domain %s: a connection of process %d is refused: %s",
			       vm->row->name, process ? rm_process_pid(process) : 0, why);
		g_io_stream_close(G_IO_STREAM(connection), NULL, NULL);
		return TRUE;
	}
	vm->peer = rm_peer_new(connection, &funcs, vm);
	vm->mismatches = 0;
	vm_changed(vm);
	return TRUE;
}

static gboolean
vm_listen(RmVm *vm, const RmProcess *process, GError **error)
{
	g_autoptr(GSocketService) service = g_socket_service_new();
	g_autoptr(GSocketAddress) address = NULL;
	uid_t uid;

	if (vm->listener)
		return TRUE;
	if (g_unlink(vm->socket_path) < 0 && errno != ENOENT) {
		rm_error_set(error, RM_ERROR_FAILED, "cannot remove %s: %s", vm->socket_path,
			     g_strerror(errno));
		return FALSE;
	}
	address = g_unix_socket_address_new(vm->socket_path);
	if (!g_socket_listener_add_address(G_SOCKET_LISTENER(service), address,
					   G_SOCKET_TYPE_STREAM, G_SOCKET_PROTOCOL_DEFAULT, NULL,
					   NULL, error)) {
		g_prefix_error(error, "cannot listen on %s: ", vm->socket_path);
		return FALSE;
	}
	/* QEMU may run as another user. Who it is is checked by pid; this keeps others out earlier.
	 */
	if (chmod(vm->socket_path, 0600) < 0 ||
	    (rm_process_uid(process, &uid) && uid != geteuid() &&
	     chown(vm->socket_path, uid, (gid_t)-1) < 0)) {
		rm_error_set(error, RM_ERROR_FAILED, "cannot change the owner of %s: %s",
			     vm->socket_path, g_strerror(errno));
		return FALSE;
	}
	g_signal_connect(service, "incoming", G_CALLBACK(on_incoming), vm);
	g_socket_service_start(service);
	vm->listener = g_steal_pointer(&service);
	return TRUE;
}

static void
vm_unlisten(RmVm *vm)
{
	g_clear_handle_id(&vm->penalty, g_source_remove);
	if (!vm->listener)
		return;
	g_socket_service_stop(vm->listener);
	g_socket_listener_close(G_SOCKET_LISTENER(vm->listener));
	g_clear_object(&vm->listener);
}

/* ---- leaving ---- */

static void
vm_leave(RmVm *vm, const char *why)
{
	RmLedger *ledger = vm->daemon->ledger;
	g_autoptr(GError) error = NULL;
	g_autoptr(RmLedgerTx) tx = NULL;
	guint i;

	vm->leaving = TRUE;
	g_free(vm->leaving_why);
	vm->leaving_why = g_strdup(why);
	g_clear_handle_id(&vm->claim_timeout, g_source_remove);
	/* A worker may be making files of chunks that would be given back here. */
	if (vm->preparing)
		return;
	request_clear(vm);
	g_clear_pointer(&vm->peer, rm_peer_free);
	vm->hello = vm->ready = FALSE;
	if (vm->listener) {
		vm_unlisten(vm);
		g_unlink(vm->socket_path);
	}
	for (i = 0; i < vm->channels->len; i++) {
		region_reset(&vm->actual[i].base);
		region_reset(&vm->actual[i].window);
	}
	finish_job(vm, RM_JOB_FAILED, why);
	vm->row->state = RM_VM_GONE;
	tx = rm_ledger_begin(ledger, &error);
	if (!tx || !rm_ledger_update_vm(ledger, vm->row, &error) ||
	    !rm_ledger_release_vm(ledger, vm->row->id, &error) || !rm_ledger_commit(&tx, &error))
		rm_daemon_ledger_failed(error);
	rm_daemon_note(vm->daemon, G_LOG_LEVEL_INFO, vm->row->uuid, "gone", "domain %s: %s",
		       vm->row->name, why);
	vm_changed(vm);
	rm_scrubber_kick(vm->daemon->scrubber);
	rm_daemon_settle(vm->daemon);
}

void
rm_vm_drop(RmVm *vm, const char *why)
{
	if (!vm->leaving)
		vm_leave(vm, why);
}

static void
on_process_gone(gpointer data)
{
	RmVm *vm = data;

	if (!vm->leaving)
		vm_leave(vm, "its process has ended");
}

gboolean
rm_vm_check_process(RmVm *vm)
{
	if (vm->process && !vm->leaving && !rm_process_alive(vm->process))
		vm_leave(vm, "its process has ended");
	return vm->row->state == RM_VM_RUNNING && !vm->leaving;
}

static gboolean
on_claim_timeout(gpointer data)
{
	RmVm *vm = data;

	vm->claim_timeout = 0;
	rm_vm_drop(vm, "its claim timed out: no process came for it");
	return G_SOURCE_REMOVE;
}

static void
arm_claim_timeout(RmVm *vm)
{
	gint64 age_sec = (g_get_real_time() - vm->row->claimed_usec) / G_USEC_PER_SEC;
	gint64 left = (gint64)vm->daemon->config->claim_timeout_sec - MAX(age_sec, 0);

	vm->claim_timeout = g_timeout_add_seconds((guint)MAX(left, 1), on_claim_timeout, vm);
}

/* ---- life ---- */

RmVm *
rm_vm_new(RmDaemon *daemon, RmVmRow *row, GArray *channels, RmJob *job)
{
	RmVm *vm = g_new0(RmVm, 1);

	vm->daemon = daemon;
	vm->row = row;
	vm->channels = channels;
	vm->actual = g_new0(Actual, channels->len + 1);
	vm->socket_path = rm_paths_vm_socket(daemon->config->runtime_dir, row->uuid);
	vm->job = job;
	if (row->state == RM_VM_CLAIMED)
		arm_claim_timeout(vm);
	return vm;
}

void
rm_vm_free(RmVm *vm)
{
	guint i;

	if (!vm)
		return;
	while (vm->preparing)
		g_main_context_iteration(NULL, TRUE);
	request_clear(vm);
	g_clear_pointer(&vm->peer, rm_peer_free);
	vm_unlisten(vm);
	g_clear_pointer(&vm->process, rm_process_free);
	g_clear_handle_id(&vm->job_timeout, g_source_remove);
	g_clear_handle_id(&vm->claim_timeout, g_source_remove);
	g_clear_handle_id(&vm->kick_idle, g_source_remove);
	g_clear_handle_id(&vm->retry, g_source_remove);
	g_clear_handle_id(&vm->signal_timeout, g_source_remove);
	for (i = 0; i < vm->channels->len; i++) {
		region_reset(&vm->actual[i].base);
		region_reset(&vm->actual[i].window);
	}
	g_free(vm->actual);
	g_array_unref(vm->channels);
	rm_job_free(vm->job);
	rm_vm_row_free(vm->row);
	g_free(vm->leaving_why);
	g_free(vm->socket_path);
	g_free(vm);
}

/*
 * libvirt's own file of the process that it runs the domain as. Missing says nothing: libvirt may
 * be another one (session mode), or none.
 */
static RmFact
ask_libvirt(const RmVm *vm)
{
	g_autofree char *path = g_strdup_printf("/run/libvirt/qemu/%s.pid", vm->row->name);
	g_autofree char *text = NULL;

	if (strchr(vm->row->name, '/') || !g_file_get_contents(path, &text, NULL, NULL))
		return RM_FACT_UNKNOWN;
	return (gint)g_ascii_strtoll(text, NULL, 10) == vm->row->pid ? RM_FACT_YES : RM_FACT_NO;
}

static RmDomainFacts
get_facts(RmVm *vm)
{
	RmDomainFacts facts = {
		.same_boot = TRUE, /* another boot has made every domain gone before */
		.state = vm->row->state,
		.process = RM_FACT_UNKNOWN,
		.same_start = RM_FACT_UNKNOWN,
		.in_libvirt = RM_FACT_UNKNOWN,
		.connected = vm->hello,
	};
	gint64 age_sec = (g_get_real_time() - vm->row->claimed_usec) / G_USEC_PER_SEC;

	facts.claim_old = age_sec > (gint64)vm->daemon->config->claim_timeout_sec;
	if (vm->row->state == RM_VM_RUNNING) {
		g_autoptr(RmProcess) any = rm_process_open(vm->row->pid, 0, NULL);

		facts.process = any ? RM_FACT_YES : RM_FACT_NO;
		if (any)
			facts.same_start =
				rm_process_start_time_ticks(any) == vm->row->start_time_ticks
					? RM_FACT_YES
					: RM_FACT_NO;
		facts.in_libvirt = ask_libvirt(vm);
	}
	if (vm->ready) {
		g_autoptr(GArray) chunks = load_chunks(vm);
		g_autofree Tallies *tallies = count_chunks(vm, chunks);

		facts.at_target = distance(vm, tallies) == 0;
	}
	return facts;
}

static void
add_line(GVariantBuilder *lines, const RmVm *vm, const char *channel, RmReconcileCase c, guint n)
{
	rm_daemon_add_reconcile_line(lines, vm->row->name, channel, c, n);
}

void
rm_vm_reconcile(RmVm *vm, gboolean dry_run, GVariantBuilder *lines)
{
	RmDomainFacts facts = get_facts(vm);
	RmReconcileCase found = rm_reconcile_domain(&facts);
	g_autoptr(GArray) chunks = load_chunks(vm);
	g_autofree guint *counts = g_new0(guint, RM_CASE_N * (vm->channels->len + 1));
	g_autofree guint *granted = g_new0(guint, vm->channels->len + 1);
	guint i, k;

	add_line(lines, vm, "", found, chunks->len);
	for (k = 0; k < chunks->len; k++) {
		const RmChunk *c = &g_array_index(chunks, RmChunk, k);
		RmChunkFacts f = {c, vm->row->id, c->base, RM_FACT_UNKNOWN, TRUE};

		i = index_of(vm, c->channel);
		if (i == G_MAXUINT || c->state == RM_CHUNK_RELEASED)
			continue;
		if (c->state == RM_CHUNK_QUARANTINED) {
			counts[i * RM_CASE_N + RM_CASE_HELD_FREE]++;
			continue;
		}
		/* With a request under way its answer settles its chunks. */
		if (vm->ready && !vm->request.id)
			f.held = region_holds(region_of(vm, i, c->base), c->chunk) ? RM_FACT_YES
										   : RM_FACT_NO;
		f.wanted = ++granted[i] <= channel_at(vm, i)->target_chunks;
		counts[i * RM_CASE_N + rm_reconcile_chunk(&f)]++;
	}
	for (i = 0; i < vm->channels->len; i++) {
		for (k = 0; k < RM_CASE_N; k++) {
			if (counts[i * RM_CASE_N + k] && k != RM_CASE_HELD)
				add_line(lines, vm, channel_name(vm, i), (RmReconcileCase)k,
					 counts[i * RM_CASE_N + k]);
		}
	}
	if (dry_run)
		return;
	if (found == RM_CASE_CLAIM_OLD)
		rm_vm_drop(vm, rm_reconcile_rule(found)->when);
	else if (rm_vm_check_process(vm))
		rm_vm_kick(vm);
}

void
rm_vm_resume(RmVm *vm)
{
	RmDomainFacts facts = get_facts(vm);
	const RmReconcileRule *rule = rm_reconcile_rule(rm_reconcile_domain(&facts));
	g_autoptr(GError) error = NULL;

	if (rule->action == RM_ACTION_RELEASE) {
		vm_leave(vm, rule->when);
		return;
	}
	if (rule->action == RM_ACTION_REPORT)
		rm_daemon_note(vm->daemon, G_LOG_LEVEL_WARNING, vm->row->uuid, rule->name,
			       "domain %s: %s; %s", vm->row->name, rule->when, rule->then);
	if (vm->row->state != RM_VM_RUNNING)
		return;
	vm->process = rm_process_open(vm->row->pid, vm->row->start_time_ticks, &error);
	if (!vm->process) {
		vm_leave(vm, error->message);
		return;
	}
	rm_process_watch(vm->process, on_process_gone, vm);
	if (!vm_listen(vm, vm->process, &error))
		g_warning("domain %s: %s", vm->row->name, error->message);
	arm_job_timeout(vm);
}

gboolean
rm_vm_start(RmVm *vm, RmProcess *process, char ***ret_arguments, char **ret_socket_path,
	    GError **error)
{
	g_autoptr(RmProcess) owned = process;
	g_auto(GStrv) arguments = NULL;

	if (vm->leaving || vm->row->state == RM_VM_GONE) {
		rm_error_set(error, RM_ERROR_NOT_FOUND,
			     "domain %s has no claim any more; start it again", vm->row->name);
		return FALSE;
	}
	if (vm->preparing && vm->row->state == RM_VM_CLAIMED) {
		rm_error_set(error, RM_ERROR_BUSY, "domain %s: its claim is not granted yet",
			     vm->row->name);
		return FALSE;
	}
	if (vm->process && !rm_process_equal(vm->process, process)) {
		rm_error_set(error, RM_ERROR_BUSY, "domain %s runs already as process %d",
			     vm->row->name, vm->row->pid);
		return FALSE;
	}
	arguments = rm_qemu_args_build(vm->daemon->config->topology, vm->row, vm->channels,
				       vm->socket_path, error);
	if (!arguments || !vm_listen(vm, process, error))
		return FALSE;
	if (!vm->process) {
		vm->process = g_steal_pointer(&owned);
		vm->row->state = RM_VM_RUNNING;
		vm->row->pid = rm_process_pid(vm->process);
		vm->row->start_time_ticks = rm_process_start_time_ticks(vm->process);
		save_row(vm);
		g_clear_handle_id(&vm->claim_timeout, g_source_remove);
		arm_job_timeout(vm);
		rm_daemon_note(vm->daemon, G_LOG_LEVEL_INFO, vm->row->uuid, "start",
			       "domain %s: started as process %d", vm->row->name, vm->row->pid);
		rm_process_watch(vm->process, on_process_gone, vm);
		vm_changed(vm);
	}
	*ret_arguments = g_steal_pointer(&arguments);
	*ret_socket_path = g_strdup(vm->socket_path);
	return TRUE;
}

gboolean
rm_vm_is_process(const RmVm *vm, const RmProcess *process)
{
	return vm->process && rm_process_equal(vm->process, process);
}

const RmVmRow *
rm_vm_row(const RmVm *vm)
{
	return vm->row;
}

const GArray *
rm_vm_channels(const RmVm *vm)
{
	return vm->channels;
}

const RmJob *
rm_vm_job(const RmVm *vm)
{
	return vm->job;
}

/* ---- resizing ---- */

static gboolean
targets_equal(RmVm *vm, const guint *target_chunks)
{
	guint i;

	for (i = 0; i < vm->channels->len; i++) {
		if (channel_at(vm, i)->target_chunks != target_chunks[i])
			return FALSE;
	}
	return TRUE;
}

/* Everything of a new target in one transaction; memory follows only when it is on disk. */
static gboolean
record_target(RmVm *vm, const guint *target_chunks, RmVmRow *row, RmJob *job, GError **error)
{
	RmLedger *ledger = vm->daemon->ledger;
	guint n = rm_topology_n_channels(vm->daemon->config->topology);
	g_autofree guint *granted = g_new0(guint, n + 1);
	g_autoptr(GArray) reserved = g_array_new(FALSE, FALSE, sizeof(RmChunk));
	g_autoptr(RmLedgerTx) tx = rm_ledger_begin(ledger, error);
	guint i;

	if (!tx)
		return FALSE;
	rm_ledger_vm_counts(ledger, row->id, granted, NULL);
	for (i = 0; i < vm->channels->len; i++) {
		guint channel = channel_at(vm, i)->channel;

		if (!rm_ledger_set_target(ledger, row->id, channel, target_chunks[i], error))
			return FALSE;
		/* What is clean is reserved at once: one sync less before it can be granted. */
		if (target_chunks[i] > granted[channel] &&
		    !rm_ledger_grant(ledger, row->id, channel, target_chunks[i] - granted[channel],
				     FALSE, reserved, error))
			return FALSE;
	}
	return rm_ledger_update_vm(ledger, row, error) && rm_ledger_add_job(ledger, job, error) &&
	       rm_ledger_commit(&tx, error);
}

gboolean
rm_vm_set_target(RmVm *vm, const char *kind, const guint *target_chunks, guint capacity_chunks,
		 guint bandwidth_channels, guint mbps, guint64 *ret_job, GError **error)
{
	g_autoptr(RmVmRow) row = rm_vm_row_copy(vm->row);
	g_autoptr(RmJob) job = g_new0(RmJob, 1);
	guint i;

	if (targets_equal(vm, target_chunks)) {
		*ret_job = vm->job ? vm->job->id : 0;
		return TRUE;
	}
	row->capacity_chunks = capacity_chunks;
	row->bandwidth_channels = bandwidth_channels;
	row->mbps = mbps;
	row->generation++;
	job->uuid = g_strdup(row->uuid);
	job->name = g_strdup(row->name);
	job->kind = g_strdup(kind);
	job->message = g_strdup("");
	job->created_usec = g_get_real_time();
	finish_job(vm, RM_JOB_CANCELLED, "replaced by a newer request");
	if (!record_target(vm, target_chunks, row, job, error))
		return FALSE;
	for (i = 0; i < vm->channels->len; i++)
		channel_at(vm, i)->target_chunks = target_chunks[i];
	rm_vm_row_free(vm->row);
	vm->row = g_steal_pointer(&row);
	*ret_job = job->id;
	vm->job = g_steal_pointer(&job);
	vm->job_distance = vm->job_last_distance = 0;
	vm->backing_off = FALSE;
	g_clear_handle_id(&vm->retry, g_source_remove);
	arm_job_timeout(vm);
	rm_daemon_emit_job(vm->daemon, vm->job);
	vm_changed(vm);
	rm_vm_kick(vm);
	return TRUE;
}

gboolean
rm_vm_cancel_job(RmVm *vm, GError **error)
{
	if (g_str_equal(vm->job->kind, "start")) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "job %" G_GUINT64_FORMAT " is the %s of domain %s and cannot be "
			     "cancelled; stop the domain instead",
			     vm->job->id, vm->job->kind, vm->row->name);
		return FALSE;
	}
	if (!vm->hello) {
		rm_error_set(error, RM_ERROR_BUSY,
			     "job %" G_GUINT64_FORMAT
			     " cannot be cancelled while QEMU of domain %s "
			     "is not connected: what it has is not known",
			     vm->job->id, vm->row->name);
		return FALSE;
	}
	finish_job(vm, RM_JOB_CANCELLED, "cancelled by request");
	accept_actual(vm);
	rm_vm_kick(vm);
	return TRUE;
}

/* ---- showing ---- */

static void
add_u(GVariantDict *dict, const char *key, guint value)
{
	g_variant_dict_insert(dict, key, "u", value);
}

static void
add_t(GVariantDict *dict, const char *key, guint64 value)
{
	g_variant_dict_insert(dict, key, "t", value);
}

static GVariant *
channel_to_variant(RmVm *vm, guint i, const Tallies *t)
{
	const RmVmChannel *c = channel_at(vm, i);
	const RmChannel *channel = rm_topology_channel(vm->daemon->config->topology, c->channel);
	const Region *w = &vm->actual[i].window;
	g_auto(GVariantDict) dict = G_VARIANT_DICT_INIT(NULL);

	g_variant_dict_insert(&dict, "name", "s", channel->name);
	g_variant_dict_insert(&dict, "tier", "s", rm_tier_name(channel->tier));
	add_u(&dict, "cnode", c->cnode);
	add_u(&dict, "snode", c->snode);
	add_u(&dict, "base-chunks", c->base_chunks);
	add_u(&dict, "chunks", t->base.granted + t->window.granted);
	add_u(&dict, "target-chunks", c->target_chunks);
	add_t(&dict, "requested-bytes", w->requested_bytes);
	add_t(&dict, "plugged-bytes", w->plugged_bytes);
	return g_variant_dict_end(&dict);
}

GVariant *
rm_vm_to_variant(RmVm *vm)
{
	g_auto(GVariantDict) dict = G_VARIANT_DICT_INIT(NULL);
	g_autoptr(GArray) chunks = load_chunks(vm);
	g_autofree Tallies *tallies = NULL;
	GVariantBuilder list;
	guint64 actual_bytes = 0;
	guint i;

	tallies = count_chunks(vm, chunks);
	g_variant_builder_init(&list, G_VARIANT_TYPE("aa{sv}"));
	for (i = 0; i < vm->channels->len; i++) {
		actual_bytes += region_count(&vm->actual[i].base) * RM_CHUNK_BYTES +
				vm->actual[i].window.plugged_bytes;
		g_variant_builder_add_value(&list, channel_to_variant(vm, i, &tallies[i]));
	}
	g_variant_dict_insert(&dict, "name", "s", vm->row->name);
	g_variant_dict_insert(&dict, "uuid", "s", vm->row->uuid);
	g_variant_dict_insert(&dict, "state", "s", rm_vm_state_name(vm->row->state));
	g_variant_dict_insert(&dict, "pid", "i", vm->row->pid);
	g_variant_dict_insert(&dict, "connected", "b", vm->peer != NULL);
	g_variant_dict_insert(&dict, "ready", "b", vm->ready);
	add_t(&dict, "capacity-bytes", vm->row->capacity_chunks * RM_CHUNK_BYTES);
	add_t(&dict, "capacity-min-bytes", vm->row->capacity_min_chunks * RM_CHUNK_BYTES);
	add_t(&dict, "capacity-max-bytes", vm->row->capacity_max_chunks * RM_CHUNK_BYTES);
	add_t(&dict, "actual-bytes", actual_bytes);
	add_u(&dict, "bandwidth-channels", vm->row->bandwidth_channels);
	add_u(&dict, "bandwidth-min", vm->row->bandwidth_min_channels);
	add_u(&dict, "bandwidth-max", vm->row->bandwidth_max_channels);
	add_u(&dict, "bandwidth-mbps", vm->row->mbps);
	add_u(&dict, "bandwidth-mbps-min", vm->row->mbps_min);
	add_u(&dict, "bandwidth-mbps-max", vm->row->mbps_max);
	g_variant_dict_insert(&dict, "share", "s", vm->row->shared ? "shared" : "exclusive");
	add_t(&dict, "generation", vm->row->generation);
	g_variant_dict_insert_value(&dict, "channels", g_variant_builder_end(&list));
	return g_variant_dict_end(&dict);
}

GVariant *
rm_job_to_variant(const RmJob *job)
{
	g_auto(GVariantDict) dict = G_VARIANT_DICT_INIT(NULL);

	add_t(&dict, "id", job->id);
	g_variant_dict_insert(&dict, "vm", "s", job->name);
	g_variant_dict_insert(&dict, "uuid", "s", job->uuid);
	g_variant_dict_insert(&dict, "kind", "s", job->kind);
	g_variant_dict_insert(&dict, "state", "s", rm_job_state_name(job->state));
	g_variant_dict_insert(&dict, "progress", "d", job->progress);
	g_variant_dict_insert(&dict, "message", "s", job->message ? job->message : "");
	g_variant_dict_insert(&dict, "created-usec", "x", job->created_usec);
	g_variant_dict_insert(&dict, "finished-usec", "x", job->finished_usec);
	return g_variant_dict_end(&dict);
}
