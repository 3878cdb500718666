/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "rm-ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rm-error.h"
#include "rm-fault.h"

#define EVENTS_MAX 10000
#define JOBS_MAX   1000
#define NO_SLOT    G_MAXUINT32

/* One chunk as the file has it, and its place in the list of its domain's. */
typedef struct {
	RmChunk chunk;
	guint32 next;
	guint32 previous;
} Slot;

/*
 * The table of chunks is also kept in memory: a host has a hundred thousand, and each message of
 * each QEMU asks for some. Writes go to the file first and only then here; what a transaction
 * changed is undone here when it is rolled back there.
 */
struct RmLedger {
	sqlite3 *db;
	char *path;
	const RmTopology *topology;
	GHashTable *statements; /* SQL text (static) -> sqlite3_stmt */
	gint64 *channel_ids;    /* by index in the topology */
	gboolean is_new;
	GArray *added;
	Slot *slots;          /* all chunks, by channel and number */
	guint32 *first_slots; /* of each channel, and the end of the last */
	guint *first_free;    /* no free chunk of that channel has a lower number */
	GHashTable *vm_slots; /* id of a domain (gint64 *) -> guint32 *, head of its list */
	RmChannelCounts *counts;
	RmChannelState *states;
	GArray *undo;      /* of RmChunk, as they were, oldest first */
	GPtrArray *events; /* of RmEvent, not written yet */
	GArray *phases;    /* of RmChunk: their phase is not written yet */
};

static const char *const chunk_states[RM_CHUNK_N] = {
	[RM_CHUNK_FREE] = "free",
	[RM_CHUNK_GRANTED] = "granted",
	[RM_CHUNK_RELEASED] = "released",
	[RM_CHUNK_SCRUBBING] = "scrubbing",
	[RM_CHUNK_QUARANTINED] = "quarantined",
};

static const char *const channel_states[RM_CHANNEL_N] = {
	[RM_CHANNEL_ONLINE] = "online",
	[RM_CHANNEL_DRAINING] = "draining",
	[RM_CHANNEL_OFFLINE] = "offline",
};

static const char *const vm_states[RM_VM_N] = {
	[RM_VM_CLAIMED] = "claimed",
	[RM_VM_RUNNING] = "running",
	[RM_VM_GONE] = "gone",
};

static const char *const job_states[RM_JOB_N] = {
	[RM_JOB_RUNNING] = "running",
	[RM_JOB_DONE] = "done",
	[RM_JOB_FAILED] = "failed",
	[RM_JOB_CANCELLED] = "cancelled",
};

/*
 * migrations[n] brings a file from version n to n + 1. A migration that was ever released is never
 * changed.
 *
 * Double allocation is impossible by the shape of the table chunk (one row a chunk, one column for
 * its owner) and by its triggers (an owner never changes without a way through free, no row appears
 * beyond the channel, no row goes while it is in use).
 */
static const char *const migrations[RM_LEDGER_VERSION] = {
	"CREATE TABLE meta ("
	" key TEXT PRIMARY KEY,"
	" value TEXT NOT NULL"
	") STRICT, WITHOUT ROWID;"
	"INSERT INTO meta VALUES ('boot-id', '');"

	"CREATE TABLE channel ("
	" id INTEGER PRIMARY KEY,"
	" name TEXT NOT NULL UNIQUE,"
	" size_chunks INTEGER NOT NULL CHECK (size_chunks > 0)"
	") STRICT;"

	"CREATE TABLE vm ("
	" id INTEGER PRIMARY KEY AUTOINCREMENT,"
	" uuid TEXT NOT NULL UNIQUE,"
	" name TEXT NOT NULL UNIQUE,"
	" state TEXT NOT NULL CHECK (state IN ('claimed', 'running', 'gone')),"
	" pid INTEGER NOT NULL DEFAULT 0 CHECK (pid >= 0),"
	" start_time INTEGER NOT NULL DEFAULT 0,"
	" vcpus INTEGER NOT NULL CHECK (vcpus > 0),"
	" machine TEXT NOT NULL,"
	" generation INTEGER NOT NULL DEFAULT 1 CHECK (generation > 0),"
	" claimed_usec INTEGER NOT NULL,"
	" capacity INTEGER NOT NULL CHECK (capacity > 0),"
	" capacity_min INTEGER NOT NULL,"
	" capacity_max INTEGER NOT NULL CHECK (capacity_max >= capacity_min),"
	" bandwidth INTEGER NOT NULL CHECK (bandwidth > 0),"
	" bandwidth_min INTEGER NOT NULL,"
	" bandwidth_max INTEGER NOT NULL CHECK (bandwidth_max >= bandwidth_min),"
	" CHECK (state <> 'running' OR pid > 0)"
	") STRICT;"

	"CREATE TABLE vm_channel ("
	" vm INTEGER NOT NULL REFERENCES vm ON DELETE CASCADE,"
	" channel INTEGER NOT NULL REFERENCES channel,"
	" cnode INTEGER NOT NULL CHECK (cnode >= 0),"
	" snode INTEGER NOT NULL CHECK (snode >= 0 AND snode <= cnode),"
	" base INTEGER NOT NULL CHECK (base >= 0),"
	" window INTEGER NOT NULL CHECK (window > 0),"
	" target INTEGER NOT NULL CHECK (target >= base AND target <= base + window),"
	" PRIMARY KEY (vm, channel),"
	" UNIQUE (vm, cnode)"
	") STRICT, WITHOUT ROWID;"

	"CREATE TABLE chunk ("
	" channel INTEGER NOT NULL REFERENCES channel,"
	" chunk INTEGER NOT NULL CHECK (chunk >= 0),"
	" state TEXT NOT NULL"
	"  CHECK (state IN ('free', 'granted', 'released', 'scrubbing', 'quarantined')),"
	" vm INTEGER REFERENCES vm,"
	" base INTEGER NOT NULL DEFAULT 0 CHECK (base IN (0, 1)),"
	" phase INTEGER NOT NULL DEFAULT 0 CHECK (phase BETWEEN 0 AND 2),"
	" PRIMARY KEY (channel, chunk),"
	" CHECK (state <> 'free' OR (vm IS NULL AND base = 0 AND phase = 0)),"
	" CHECK (state <> 'granted' OR vm IS NOT NULL)"
	") STRICT, WITHOUT ROWID;"
	"CREATE INDEX chunk_vm ON chunk (vm) WHERE vm IS NOT NULL;"
	"CREATE INDEX chunk_by_state ON chunk (state, channel, chunk);"

	"CREATE TRIGGER chunk_insert BEFORE INSERT ON chunk"
	" WHEN NEW.state NOT IN ('released', 'quarantined') OR NEW.vm IS NOT NULL OR NEW.chunk >="
	"  (SELECT size_chunks FROM channel WHERE id = NEW.channel)"
	" BEGIN SELECT RAISE(ABORT, 'a new chunk is dirty and within its channel'); END;"
	"CREATE TRIGGER chunk_delete BEFORE DELETE ON chunk WHEN OLD.state NOT IN ('free', "
	"'released')"
	" OR OLD.vm IS NOT NULL"
	" BEGIN SELECT RAISE(ABORT, 'a chunk in use cannot go'); END;"
	"CREATE TRIGGER chunk_state BEFORE UPDATE OF state ON chunk"
	" WHEN OLD.state <> NEW.state AND (OLD.state || '>' || NEW.state) NOT IN ("
	"  'free>granted', 'granted>released', 'released>scrubbing', 'scrubbing>free',"
	"  'free>released', 'scrubbing>released', 'free>quarantined', 'released>quarantined',"
	"  'scrubbing>quarantined', 'quarantined>released')"
	" BEGIN SELECT RAISE(ABORT, 'no such change of state of a chunk'); END;"
	"CREATE TRIGGER chunk_owner BEFORE UPDATE OF vm ON chunk"
	" WHEN OLD.vm IS NOT NULL AND NEW.vm IS NOT OLD.vm AND NEW.state <> 'free'"
	" AND NOT (NEW.state = 'quarantined' AND NEW.vm IS NULL)"
	" BEGIN SELECT RAISE(ABORT, 'a chunk changes its owner only by way of free'); END;"
	"CREATE TRIGGER chunk_key BEFORE UPDATE OF channel, chunk ON chunk"
	" BEGIN SELECT RAISE(ABORT, 'a chunk keeps its number'); END;"

	"CREATE TABLE job ("
	" id INTEGER PRIMARY KEY AUTOINCREMENT,"
	" uuid TEXT NOT NULL,"
	" name TEXT NOT NULL,"
	" kind TEXT NOT NULL,"
	" state TEXT NOT NULL CHECK (state IN ('running', 'done', 'failed', 'cancelled')),"
	" progress REAL NOT NULL CHECK (progress BETWEEN 0 AND 1),"
	" message TEXT NOT NULL,"
	" created_usec INTEGER NOT NULL,"
	" finished_usec INTEGER NOT NULL DEFAULT 0,"
	" CHECK ((state = 'running') = (finished_usec = 0))"
	") STRICT;"
	"CREATE UNIQUE INDEX job_running ON job (uuid) WHERE state = 'running';"

	"CREATE TABLE event ("
	" id INTEGER PRIMARY KEY AUTOINCREMENT,"
	" time_usec INTEGER NOT NULL,"
	" uuid TEXT,"
	" kind TEXT NOT NULL,"
	" text TEXT NOT NULL"
	") STRICT;",

	/*
	 * 2: channels that are being emptied; domains that share channels or ask for MB/s. The
	 * index by state is gone: it is asked in memory now and made each change of state dearer.
	 */
	"ALTER TABLE channel ADD COLUMN state TEXT NOT NULL DEFAULT 'online'"
	" CHECK (state IN ('online', 'draining', 'offline'));"
	"ALTER TABLE vm ADD COLUMN shared INTEGER NOT NULL DEFAULT 0 CHECK (shared IN (0, 1));"
	"ALTER TABLE vm ADD COLUMN mbps INTEGER NOT NULL DEFAULT 0 CHECK (mbps >= 0);"
	"ALTER TABLE vm ADD COLUMN mbps_min INTEGER NOT NULL DEFAULT 0 CHECK (mbps_min >= 0);"
	"ALTER TABLE vm ADD COLUMN mbps_max INTEGER NOT NULL DEFAULT 0"
	" CHECK (mbps_max >= mbps_min);"
	"DROP INDEX chunk_by_state;"
	"CREATE TRIGGER chunk_offline BEFORE UPDATE OF state ON chunk"
	" WHEN NEW.state = 'granted' AND OLD.state <> 'granted' AND"
	"  (SELECT state FROM channel WHERE id = NEW.channel) = 'offline'"
	" BEGIN SELECT RAISE(ABORT, 'nothing is granted on a channel that is offline'); END;",
};

/* ---- SQLite ---- */

typedef sqlite3_stmt Query;

/* Statements are cached: leaving the scope only makes them ready for the next use. */
static void
query_reset(Query *query)
{
	sqlite3_reset(query);
	sqlite3_clear_bindings(query);
}
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Query, query_reset)

static void
finalize(gpointer query)
{
	sqlite3_finalize(query);
}

static gboolean
fail(RmLedger *ledger, GError **error)
{
	int rc = sqlite3_errcode(ledger->db);
	RmError code = rc == SQLITE_FULL                             ? RM_ERROR_NO_SPACE
		       : rc == SQLITE_CORRUPT || rc == SQLITE_NOTADB ? RM_ERROR_DAMAGED
								     : RM_ERROR_FAILED;

	rm_error_set(error, code, "ledger %s: %s", ledger->path, sqlite3_errmsg(ledger->db));
	return FALSE;
}

static gboolean
exec(RmLedger *ledger, const char *sql, GError **error)
{
	if (sqlite3_exec(ledger->db, sql, NULL, NULL, NULL) != SQLITE_OK)
		return fail(ledger, error);
	return TRUE;
}

/*
 * @sql must be a literal: it is the key of the cache. @format has one letter for each parameter: i
 * (gint64), d (double), s (string or NULL).
 */
static Query *
query_va(RmLedger *ledger, GError **error, const char *sql, const char *format, va_list args)
{
	Query *query = g_hash_table_lookup(ledger->statements, sql);
	int i, rc = SQLITE_OK;

	if (!query) {
		if (sqlite3_prepare_v3(ledger->db, sql, -1, SQLITE_PREPARE_PERSISTENT, &query,
				       NULL) != SQLITE_OK) {
			fail(ledger, error);
			return NULL;
		}
		g_hash_table_insert(ledger->statements, (gpointer)sql, query);
	}
	for (i = 0; format[i] && rc == SQLITE_OK; i++) {
		if (format[i] == 'i')
			rc = sqlite3_bind_int64(query, i + 1, va_arg(args, gint64));
		else if (format[i] == 'd')
			rc = sqlite3_bind_double(query, i + 1, va_arg(args, double));
		else
			rc = sqlite3_bind_text(query, i + 1, va_arg(args, const char *), -1,
					       SQLITE_TRANSIENT);
	}
	if (rc != SQLITE_OK) {
		fail(ledger, error);
		query_reset(query);
		return NULL;
	}
	return query;
}

static Query *
query_new(RmLedger *ledger, GError **error, const char *sql, const char *format, ...)
{
	Query *query;
	va_list args;

	va_start(args, format);
	query = query_va(ledger, error, sql, format, args);
	va_end(args);
	return query;
}

/* TRUE: a row is there, or *ret_done is set. */
static gboolean
query_step(RmLedger *ledger, Query *query, gboolean *ret_done, GError **error)
{
	int rc = sqlite3_step(query);

	*ret_done = rc != SQLITE_ROW;
	return rc == SQLITE_ROW || rc == SQLITE_DONE || fail(ledger, error);
}

/* Runs a statement without result rows. */
static gboolean
run(RmLedger *ledger, GError **error, const char *sql, const char *format, ...)
{
	g_autoptr(Query) query = NULL;
	gboolean done;
	va_list args;

	va_start(args, format);
	query = query_va(ledger, error, sql, format, args);
	va_end(args);
	return query && query_step(ledger, query, &done, error);
}

static char *
column_text(Query *query, int i)
{
	return g_strdup((const char *)sqlite3_column_text(query, i));
}

static guint
find_name(const char *const *names, guint n, const char *name)
{
	guint i;

	for (i = 0; i < n; i++) {
		if (name && g_str_equal(names[i], name))
			return i;
	}
	/* The schema's CHECKs allow no other. */
	g_return_val_if_reached(0);
}

/* ---- chunks in memory ---- */

static Slot *
slot_of(const RmLedger *ledger, guint channel, guint chunk)
{
	guint32 at = ledger->first_slots[channel] + chunk;

	return at < ledger->first_slots[channel + 1] ? &ledger->slots[at] : NULL;
}

static void
slot_unlink(RmLedger *ledger, Slot *slot)
{
	guint32 *head;

	if (!slot->chunk.vm)
		return;
	if (slot->next != NO_SLOT)
		ledger->slots[slot->next].previous = slot->previous;
	if (slot->previous != NO_SLOT) {
		ledger->slots[slot->previous].next = slot->next;
		return;
	}
	if (slot->next == NO_SLOT) {
		g_hash_table_remove(ledger->vm_slots, &slot->chunk.vm);
		return;
	}
	head = g_hash_table_lookup(ledger->vm_slots, &slot->chunk.vm);
	*head = slot->next;
}

static void
slot_link(RmLedger *ledger, Slot *slot)
{
	guint32 *head = g_hash_table_lookup(ledger->vm_slots, &slot->chunk.vm);
	guint32 at = (guint32)(slot - ledger->slots);

	slot->previous = NO_SLOT;
	slot->next = head ? *head : NO_SLOT;
	if (head) {
		ledger->slots[*head].previous = at;
		*head = at;
	} else {
		g_hash_table_insert(ledger->vm_slots,
				    g_memdup2(&slot->chunk.vm, sizeof(slot->chunk.vm)),
				    g_memdup2(&at, sizeof(at)));
	}
}

static void
slot_set(RmLedger *ledger, Slot *slot, const RmChunk *chunk)
{
	RmChannelCounts *counts = &ledger->counts[chunk->channel];

	counts->n[slot->chunk.state]--;
	counts->n[chunk->state]++;
	if (chunk->state == RM_CHUNK_FREE && chunk->chunk < ledger->first_free[chunk->channel])
		ledger->first_free[chunk->channel] = chunk->chunk;
	if (slot->chunk.vm == chunk->vm) {
		slot->chunk = *chunk;
		return;
	}
	slot_unlink(ledger, slot);
	slot->chunk = *chunk;
	if (chunk->vm)
		slot_link(ledger, slot);
}

/* The file has taken it: here as well. */
static void
slot_change(RmLedger *ledger, Slot *slot, const RmChunk *chunk)
{
	if (!sqlite3_get_autocommit(ledger->db))
		g_array_append_val(ledger->undo, slot->chunk);
	slot_set(ledger, slot, chunk);
}

static guint index_of_channel(RmLedger *ledger, gint64 id);

static gboolean
load_chunks(RmLedger *ledger, GError **error)
{
	guint n = rm_topology_n_channels(ledger->topology), i;
	g_autoptr(Query) query = NULL;
	gint64 last_id = -1;
	guint channel = 0;
	gboolean done;

	for (i = 0; i < n; i++)
		ledger->first_slots[i + 1] = ledger->first_slots[i] +
					     rm_topology_channel(ledger->topology, i)->size_chunks;
	ledger->slots = g_new0(Slot, ledger->first_slots[n] + 1);
	query = query_new(ledger, error, "SELECT channel, chunk, state, vm, base, phase FROM chunk",
			  "");
	if (!query)
		return FALSE;
	for (;;) {
		gint64 id;
		RmChunk c;
		Slot *slot;

		if (!query_step(ledger, query, &done, error))
			return FALSE;
		if (done)
			return TRUE;
		id = sqlite3_column_int64(query, 0);
		if (id != last_id)
			channel = index_of_channel(ledger, id);
		last_id = id;
		c.channel = channel;
		c.chunk = (guint)sqlite3_column_int64(query, 1);
		c.state = (RmChunkState)find_name(chunk_states, RM_CHUNK_N,
						  (const char *)sqlite3_column_text(query, 2));
		c.vm = sqlite3_column_int64(query, 3);
		c.base = sqlite3_column_int(query, 4);
		c.phase = (RmChunkPhase)sqlite3_column_int(query, 5);
		slot = slot_of(ledger, channel, c.chunk);
		g_return_val_if_fail(slot, FALSE);
		slot->chunk = c;
		ledger->counts[channel].n[c.state]++;
		if (c.vm)
			slot_link(ledger, slot);
	}
}

static gboolean
load_states(RmLedger *ledger, GError **error)
{
	g_autoptr(Query) query = query_new(ledger, error, "SELECT id, state FROM channel", "");
	gboolean done;

	if (!query)
		return FALSE;
	for (;;) {
		if (!query_step(ledger, query, &done, error))
			return FALSE;
		if (done)
			return TRUE;
		ledger->states[index_of_channel(ledger, sqlite3_column_int64(query, 0))] =
			(RmChannelState)find_name(channel_states, RM_CHANNEL_N,
						  (const char *)sqlite3_column_text(query, 1));
	}
}

/* ---- opening ---- */

static gboolean
get_version(RmLedger *ledger, gint64 *ret_version, GError **error)
{
	g_autoptr(Query) query = query_new(ledger, error, "PRAGMA user_version", "");
	gboolean done;

	if (!query || !query_step(ledger, query, &done, error))
		return FALSE;
	*ret_version = sqlite3_column_int64(query, 0);
	return TRUE;
}

static gboolean
migrate_one(RmLedger *ledger, gint64 version, GError **error)
{
	g_autoptr(RmLedgerTx) tx = rm_ledger_begin(ledger, error);
	g_autofree char *pragma =
		g_strdup_printf("PRAGMA user_version = %" G_GINT64_FORMAT, version + 1);

	return tx && exec(ledger, migrations[version], error) && exec(ledger, pragma, error) &&
	       rm_ledger_commit(&tx, error);
}

/* A migration is done once; what was there before it is kept beside. */
static gboolean
backup_before(RmLedger *ledger, gint64 version, GError **error)
{
	g_autofree char *path = g_strdup_printf("%s.v%" G_GINT64_FORMAT, ledger->path, version);

	return version == 0 || rm_ledger_backup(ledger, path, error);
}

static gboolean
migrate(RmLedger *ledger, GError **error)
{
	gint64 version;

	if (!get_version(ledger, &version, error))
		return FALSE;
	if (version < 0 || version > RM_LEDGER_VERSION) {
		rm_error_set(error, RM_ERROR_FAILED,
			     "ledger %s has version %" G_GINT64_FORMAT
			     ", this rmd knows up to %d: it was written by a newer rmd",
			     ledger->path, version, RM_LEDGER_VERSION);
		return FALSE;
	}
	ledger->is_new = version == 0;
	if (version < RM_LEDGER_VERSION && !backup_before(ledger, version, error))
		return FALSE;
	for (; version < RM_LEDGER_VERSION; version++) {
		if (!migrate_one(ledger, version, error))
			return FALSE;
	}
	return TRUE;
}

static gboolean
check_integrity(RmLedger *ledger, GError **error)
{
	g_autoptr(Query) query = query_new(ledger, error, "PRAGMA quick_check(1)", "");
	const char *text;
	gboolean done;

	if (!query || !query_step(ledger, query, &done, error))
		return FALSE;
	text = done ? "" : (const char *)sqlite3_column_text(query, 0);
	if (g_strcmp0(text, "ok") == 0)
		return TRUE;
	rm_error_set(error, RM_ERROR_DAMAGED, "ledger %s is damaged: %s", ledger->path, text);
	return FALSE;
}

/*
 * Chunks that leave the books: those of a channel that is not declared any more, or beyond its new
 * size. Free ones go, anything else stops us with its name.
 */
static gboolean
remove_chunks(RmLedger *ledger, gint64 id, const char *name, gint64 from, GError **error)
{
	g_autoptr(Query) query =
		query_new(ledger, error,
			  "SELECT count(*), min(chunk) FROM chunk WHERE channel = ? AND chunk >= ? "
			  "AND (vm IS NOT NULL OR state NOT IN ('free', 'released'))",
			  "ii", id, from);
	gboolean done;

	if (!query || !query_step(ledger, query, &done, error))
		return FALSE;
	if (sqlite3_column_int64(query, 0)) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "channel %s is configured with %" G_GINT64_FORMAT
			     " chunks, but %" G_GINT64_FORMAT " beyond are in use (the first is "
			     "%" G_GINT64_FORMAT "): configure it as it was",
			     name, from, (gint64)sqlite3_column_int64(query, 0),
			     (gint64)sqlite3_column_int64(query, 1));
		return FALSE;
	}
	query_reset(g_steal_pointer(&query));
	return run(ledger, error, "DELETE FROM chunk WHERE channel = ? AND chunk >= ?", "ii", id,
		   from);
}

/* A domain that may get chunks of a channel keeps it in the books, also while it has none. */
static gboolean
check_unclaimed(RmLedger *ledger, gint64 id, const char *name, GError **error)
{
	g_autoptr(Query) query = query_new(ledger, error,
					   "SELECT name FROM vm WHERE id IN"
					   " (SELECT vm FROM vm_channel WHERE channel = ?)",
					   "i", id);
	gboolean done;

	if (!query || !query_step(ledger, query, &done, error))
		return FALSE;
	if (done)
		return TRUE;
	rm_error_set(error, RM_ERROR_INVALID,
		     "channel %s is not configured any more, but domain %s was started with it: "
		     "configure it, or stop the domain first",
		     name, (const char *)sqlite3_column_text(query, 0));
	return FALSE;
}

/* Rows of channels that the configuration has no longer. */
static gboolean
drop_channels(RmLedger *ledger, GError **error)
{
	g_autoptr(GArray) ids = g_array_new(FALSE, FALSE, sizeof(gint64));
	g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func(g_free);
	g_autoptr(Query) query = query_new(ledger, error, "SELECT id, name FROM channel", "");
	gboolean done;
	guint i;

	if (!query)
		return FALSE;
	for (;;) {
		gint64 id;

		if (!query_step(ledger, query, &done, error))
			return FALSE;
		if (done)
			break;
		if (rm_topology_find(ledger->topology, (const char *)sqlite3_column_text(query, 1),
				     NULL))
			continue;
		id = sqlite3_column_int64(query, 0);
		g_array_append_val(ids, id);
		g_ptr_array_add(names, column_text(query, 1));
	}
	for (i = 0; i < ids->len; i++) {
		gint64 id = g_array_index(ids, gint64, i);

		if (!check_unclaimed(ledger, id, g_ptr_array_index(names, i), error) ||
		    !remove_chunks(ledger, id, g_ptr_array_index(names, i), 0, error) ||
		    !run(ledger, error, "DELETE FROM channel WHERE id = ?", "i", id))
			return FALSE;
	}
	return TRUE;
}

static gboolean
add_chunks(RmLedger *ledger, guint index, gint64 from, GError **error)
{
	const RmChannel *channel = rm_topology_channel(ledger->topology, index);
	gint64 i;

	for (i = from; i < channel->size_chunks; i++) {
		RmChunk chunk = {.channel = index, .chunk = (guint)i, .state = RM_CHUNK_RELEASED};

		if (!run(ledger, error,
			 "INSERT INTO chunk (channel, chunk, state) VALUES (?, ?, 'released')",
			 "ii", ledger->channel_ids[index], i))
			return FALSE;
		g_array_append_val(ledger->added, chunk);
	}
	return TRUE;
}

static gboolean
sync_channel(RmLedger *ledger, guint index, GError **error)
{
	const RmChannel *channel = rm_topology_channel(ledger->topology, index);
	g_autoptr(Query) query =
		query_new(ledger, error, "SELECT id, size_chunks FROM channel WHERE name = ?", "s",
			  channel->name);
	gint64 size = 0;
	gboolean done = TRUE;

	if (!query || !query_step(ledger, query, &done, error))
		return FALSE;
	if (!done) {
		ledger->channel_ids[index] = sqlite3_column_int64(query, 0);
		size = sqlite3_column_int64(query, 1);
	}
	query_reset(g_steal_pointer(&query));
	if (done) {
		if (!run(ledger, error, "INSERT INTO channel (name, size_chunks) VALUES (?, ?)",
			 "si", channel->name, (gint64)channel->size_chunks))
			return FALSE;
		ledger->channel_ids[index] = sqlite3_last_insert_rowid(ledger->db);
	} else if (size != channel->size_chunks) {
		if (!remove_chunks(ledger, ledger->channel_ids[index], channel->name,
				   channel->size_chunks, error) ||
		    !run(ledger, error, "UPDATE channel SET size_chunks = ? WHERE id = ?", "ii",
			 (gint64)channel->size_chunks, ledger->channel_ids[index]))
			return FALSE;
	}
	return add_chunks(ledger, index, size, error);
}

static gboolean
sync_channels(RmLedger *ledger, GError **error)
{
	g_autoptr(RmLedgerTx) tx = rm_ledger_begin(ledger, error);
	guint i;

	if (!tx || !drop_channels(ledger, error))
		return FALSE;
	for (i = 0; i < rm_topology_n_channels(ledger->topology); i++) {
		if (!sync_channel(ledger, i, error))
			return FALSE;
	}
	return rm_ledger_commit(&tx, error);
}

RmLedger *
rm_ledger_open(const char *path, const RmTopology *topology, GError **error)
{
	g_autoptr(RmLedger) ledger = g_new0(RmLedger, 1);
	guint n = rm_topology_n_channels(topology);

	ledger->path = g_strdup(path);
	ledger->topology = topology;
	ledger->statements = g_hash_table_new_full(g_direct_hash, g_direct_equal, NULL, finalize);
	ledger->channel_ids = g_new0(gint64, rm_topology_n_channels(topology) + 1);
	ledger->added = g_array_new(FALSE, FALSE, sizeof(RmChunk));
	ledger->undo = g_array_new(FALSE, FALSE, sizeof(RmChunk));
	ledger->phases = g_array_new(FALSE, FALSE, sizeof(RmChunk));
	ledger->events = g_ptr_array_new_with_free_func((GDestroyNotify)rm_event_free);
	ledger->first_slots = g_new0(guint32, n + 1);
	ledger->first_free = g_new0(guint, n + 1);
	ledger->counts = g_new0(RmChannelCounts, n + 1);
	ledger->states = g_new0(RmChannelState, n + 1);
	ledger->vm_slots = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, g_free);
	/* Who shares the host with whom is nobody's business; SQLite gives its side files the same
	 * mode. */
	if (chmod(path, 0600) < 0 && errno == ENOENT) {
		int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

		if (fd >= 0)
			close(fd);
	}
	if (sqlite3_open_v2(path, &ledger->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, NULL) !=
	    SQLITE_OK) {
		fail(ledger, error);
		return NULL;
	}
	sqlite3_extended_result_codes(ledger->db, 0);
	sqlite3_busy_timeout(ledger->db, 5000);
	if (!exec(ledger,
		  "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;"
		  "PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON",
		  error) ||
	    !check_integrity(ledger, error) || !migrate(ledger, error) ||
	    !sync_channels(ledger, error) || !load_chunks(ledger, error) ||
	    !load_states(ledger, error))
		return NULL;
	return g_steal_pointer(&ledger);
}

void
rm_ledger_free(RmLedger *ledger)
{
	if (!ledger)
		return;
	if (ledger->slots)
		rm_ledger_flush(ledger, NULL);
	g_ptr_array_unref(ledger->events);
	g_array_unref(ledger->phases);
	g_hash_table_unref(ledger->statements);
	sqlite3_close(ledger->db);
	g_array_unref(ledger->added);
	g_array_unref(ledger->undo);
	g_hash_table_unref(ledger->vm_slots);
	g_free(ledger->slots);
	g_free(ledger->first_slots);
	g_free(ledger->first_free);
	g_free(ledger->counts);
	g_free(ledger->states);
	g_free(ledger->channel_ids);
	g_free(ledger->path);
	g_free(ledger);
}

gboolean
rm_ledger_is_new(const RmLedger *ledger)
{
	return ledger->is_new;
}

const GArray *
rm_ledger_added(const RmLedger *ledger)
{
	return ledger->added;
}

/* ---- transactions ---- */

static gboolean
write_phase(RmLedger *ledger, const RmChunk *c, GError **error)
{
	return run(ledger, error,
		   "UPDATE chunk SET phase = ? WHERE channel = ? AND chunk = ?"
		   " AND state = 'granted' AND vm = ?",
		   "iiii", (gint64)c->phase, ledger->channel_ids[c->channel], (gint64)c->chunk,
		   c->vm);
}

/* Before anything else of a transaction, and again in the next when this one is given up. */
static gboolean
write_phases(RmLedger *ledger, GError **error)
{
	guint i;

	for (i = 0; i < ledger->phases->len; i++) {
		if (!write_phase(ledger, &g_array_index(ledger->phases, RmChunk, i), error))
			return FALSE;
	}
	return TRUE;
}

RmLedgerTx *
rm_ledger_begin(RmLedger *ledger, GError **error)
{
	g_autoptr(RmLedgerTx) tx = NULL;

	g_array_set_size(ledger->undo, 0);
	if (!run(ledger, error, "BEGIN IMMEDIATE", ""))
		return NULL;
	tx = ledger;
	if (!write_phases(ledger, error))
		return NULL;
	return g_steal_pointer(&tx);
}

static gboolean
write_events(RmLedger *ledger, GError **error)
{
	guint i;

	for (i = 0; i < ledger->events->len; i++) {
		const RmEvent *e = g_ptr_array_index(ledger->events, i);

		if (!run(ledger, error,
			 "INSERT INTO event (time_usec, uuid, kind, text) VALUES (?, ?, ?, ?)",
			 "isss", e->time_usec, e->uuid, e->kind, e->text))
			return FALSE;
	}
	if (ledger->events->len && !run(ledger, error, "DELETE FROM event WHERE id <= ?", "i",
					(gint64)sqlite3_last_insert_rowid(ledger->db) - EVENTS_MAX))
		return FALSE;
	g_ptr_array_set_size(ledger->events, 0);
	return TRUE;
}

gboolean
rm_ledger_commit(RmLedgerTx **tx, GError **error)
{
	RmLedger *ledger = *tx;

	if (!write_events(ledger, error))
		return FALSE;
	rm_fault_point("ledger-commit");
	if (!run(ledger, error, "COMMIT", ""))
		return FALSE;
	rm_fault_point("ledger-committed");
	g_array_set_size(ledger->phases, 0);
	*tx = NULL;
	return TRUE;
}

void
rm_ledger_tx_rollback(RmLedgerTx *tx)
{
	/* SQLite rolls back by itself after some errors. */
	if (!sqlite3_get_autocommit(tx->db))
		run(tx, NULL, "ROLLBACK", "");
	while (tx->undo->len) {
		RmChunk c = g_array_index(tx->undo, RmChunk, tx->undo->len - 1);

		g_array_set_size(tx->undo, tx->undo->len - 1);
		slot_set(tx, slot_of(tx, c.channel, c.chunk), &c);
	}
}

/* ---- boot ---- */

char *
rm_ledger_boot_id(RmLedger *ledger, GError **error)
{
	g_autoptr(Query) query =
		query_new(ledger, error, "SELECT value FROM meta WHERE key = 'boot-id'", "");
	gboolean done;

	if (!query || !query_step(ledger, query, &done, error))
		return NULL;
	return done ? g_strdup("") : column_text(query, 0);
}

gboolean
rm_ledger_new_boot(RmLedger *ledger, const char *boot_id, GError **error)
{
	g_autoptr(RmLedgerTx) tx = rm_ledger_begin(ledger, error);
	guint32 n = ledger->first_slots[rm_topology_n_channels(ledger->topology)], i;

	if (!tx ||
	    !run(ledger, error, "UPDATE chunk SET state = 'released' WHERE state <> 'released'",
		 "") ||
	    !run(ledger, error, "UPDATE vm SET state = 'gone'", "") ||
	    !run(ledger, error, "UPDATE meta SET value = ? WHERE key = 'boot-id'", "s", boot_id))
		return FALSE;
	for (i = 0; i < n; i++) {
		RmChunk c = ledger->slots[i].chunk;

		c.state = RM_CHUNK_RELEASED;
		slot_change(ledger, &ledger->slots[i], &c);
	}
	return rm_ledger_commit(&tx, error);
}

/* ---- channels ---- */

gboolean
rm_ledger_set_channel_state(RmLedger *ledger, guint channel, RmChannelState state, GError **error)
{
	if (!run(ledger, error, "UPDATE channel SET state = ? WHERE id = ?", "si",
		 channel_states[state], ledger->channel_ids[channel]))
		return FALSE;
	ledger->states[channel] = state;
	return TRUE;
}

RmChannelState
rm_ledger_channel_state(const RmLedger *ledger, guint channel)
{
	return ledger->states[channel];
}

const char *
rm_channel_state_name(RmChannelState state)
{
	return channel_states[state];
}

gboolean
rm_channel_state_parse(const char *name, RmChannelState *ret_state)
{
	guint i;

	for (i = 0; i < RM_CHANNEL_N; i++) {
		if (g_str_equal(channel_states[i], name)) {
			*ret_state = (RmChannelState)i;
			return TRUE;
		}
	}
	return FALSE;
}

/* ---- domains ---- */

gboolean
rm_ledger_add_vm(RmLedger *ledger, RmVmRow *vm, const RmVmChannel *channels, guint n,
		 GError **error)
{
	guint i;

	if (!run(ledger, error,
		 "INSERT INTO vm (uuid, name, state, vcpus, machine, generation, claimed_usec, "
		 "capacity,"
		 " capacity_min, capacity_max, bandwidth, bandwidth_min, bandwidth_max, shared,"
		 " mbps, mbps_min, mbps_max)"
		 " VALUES (?, ?, 'claimed', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		 "ssisiiiiiiiiiiii", vm->uuid, vm->name, (gint64)vm->vcpus, vm->machine,
		 (gint64)vm->generation, vm->claimed_usec, (gint64)vm->capacity_chunks,
		 (gint64)vm->capacity_min_chunks, (gint64)vm->capacity_max_chunks,
		 (gint64)vm->bandwidth_channels, (gint64)vm->bandwidth_min_channels,
		 (gint64)vm->bandwidth_max_channels, (gint64)vm->shared, (gint64)vm->mbps,
		 (gint64)vm->mbps_min, (gint64)vm->mbps_max))
		return FALSE;
	vm->id = sqlite3_last_insert_rowid(ledger->db);
	for (i = 0; i < n; i++) {
		const RmVmChannel *c = &channels[i];

		if (!run(ledger, error,
			 "INSERT INTO vm_channel (vm, channel, cnode, snode, base, window, target)"
			 " VALUES (?, ?, ?, ?, ?, ?, ?)",
			 "iiiiiii", vm->id, ledger->channel_ids[c->channel], (gint64)c->cnode,
			 (gint64)c->snode, (gint64)c->base_chunks, (gint64)c->window_chunks,
			 (gint64)c->target_chunks))
			return FALSE;
	}
	return TRUE;
}

gboolean
rm_ledger_update_vm(RmLedger *ledger, const RmVmRow *vm, GError **error)
{
	return run(ledger, error,
		   "UPDATE vm SET state = ?, pid = ?, start_time = ?, generation = ?,"
		   " claimed_usec = ?, capacity = ?, bandwidth = ?, mbps = ? WHERE id = ?",
		   "siiiiiiii", rm_vm_state_name(vm->state), (gint64)vm->pid,
		   (gint64)vm->start_time_ticks, (gint64)vm->generation, vm->claimed_usec,
		   (gint64)vm->capacity_chunks, (gint64)vm->bandwidth_channels, (gint64)vm->mbps,
		   vm->id);
}

gboolean
rm_ledger_set_target(RmLedger *ledger, gint64 vm, guint channel, guint target_chunks,
		     GError **error)
{
	return run(ledger, error, "UPDATE vm_channel SET target = ? WHERE vm = ? AND channel = ?",
		   "iii", (gint64)target_chunks, vm, ledger->channel_ids[channel]);
}

gboolean
rm_ledger_remove_vm(RmLedger *ledger, gint64 vm, GError **error)
{
	return run(ledger, error, "DELETE FROM vm WHERE id = ?", "i", vm);
}

GPtrArray *
rm_ledger_list_vms(RmLedger *ledger, GError **error)
{
	g_autoptr(GPtrArray) list = g_ptr_array_new_with_free_func((GDestroyNotify)rm_vm_row_free);
	g_autoptr(Query) query =
		query_new(ledger, error,
			  "SELECT id, uuid, name, state, pid, start_time, vcpus, generation,"
			  " claimed_usec, capacity, capacity_min, capacity_max, bandwidth,"
			  " bandwidth_min, bandwidth_max, machine, shared, mbps, mbps_min, mbps_max"
			  " FROM vm ORDER BY id",
			  "");
	gboolean done;

	if (!query)
		return NULL;
	for (;;) {
		RmVmRow *vm;

		if (!query_step(ledger, query, &done, error))
			return NULL;
		if (done)
			return g_steal_pointer(&list);
		vm = g_new0(RmVmRow, 1);
		vm->id = sqlite3_column_int64(query, 0);
		vm->uuid = column_text(query, 1);
		vm->name = column_text(query, 2);
		vm->state = (RmVmState)find_name(vm_states, RM_VM_N,
						 (const char *)sqlite3_column_text(query, 3));
		vm->pid = sqlite3_column_int(query, 4);
		vm->start_time_ticks = (guint64)sqlite3_column_int64(query, 5);
		vm->vcpus = (guint)sqlite3_column_int64(query, 6);
		vm->generation = (guint64)sqlite3_column_int64(query, 7);
		vm->claimed_usec = sqlite3_column_int64(query, 8);
		vm->capacity_chunks = (guint)sqlite3_column_int64(query, 9);
		vm->capacity_min_chunks = (guint)sqlite3_column_int64(query, 10);
		vm->capacity_max_chunks = (guint)sqlite3_column_int64(query, 11);
		vm->bandwidth_channels = (guint)sqlite3_column_int64(query, 12);
		vm->bandwidth_min_channels = (guint)sqlite3_column_int64(query, 13);
		vm->bandwidth_max_channels = (guint)sqlite3_column_int64(query, 14);
		vm->machine = column_text(query, 15);
		vm->shared = sqlite3_column_int(query, 16);
		vm->mbps = (guint)sqlite3_column_int64(query, 17);
		vm->mbps_min = (guint)sqlite3_column_int64(query, 18);
		vm->mbps_max = (guint)sqlite3_column_int64(query, 19);
		g_ptr_array_add(list, vm);
	}
}

/* The schema and sync_channels() see to it that there is one. */
static guint
index_of_channel(RmLedger *ledger, gint64 id)
{
	guint i;

	for (i = 0; i < rm_topology_n_channels(ledger->topology); i++) {
		if (ledger->channel_ids[i] == id)
			return i;
	}
	g_return_val_if_reached(0);
}

GArray *
rm_ledger_vm_channels(RmLedger *ledger, gint64 vm, GError **error)
{
	g_autoptr(GArray) list = g_array_new(FALSE, TRUE, sizeof(RmVmChannel));
	g_autoptr(Query) query =
		query_new(ledger, error,
			  "SELECT channel, cnode, snode, base, window, target FROM vm_channel"
			  " WHERE vm = ? ORDER BY cnode",
			  "i", vm);
	gboolean done;

	if (!query)
		return NULL;
	for (;;) {
		RmVmChannel c;

		if (!query_step(ledger, query, &done, error))
			return NULL;
		if (done)
			return g_steal_pointer(&list);
		c.channel = index_of_channel(ledger, sqlite3_column_int64(query, 0));
		c.cnode = (guint)sqlite3_column_int64(query, 1);
		c.snode = (guint)sqlite3_column_int64(query, 2);
		c.base_chunks = (guint)sqlite3_column_int64(query, 3);
		c.window_chunks = (guint)sqlite3_column_int64(query, 4);
		c.target_chunks = (guint)sqlite3_column_int64(query, 5);
		g_array_append_val(list, c);
	}
}

RmVmRow *
rm_vm_row_copy(const RmVmRow *vm)
{
	RmVmRow *copy = g_memdup2(vm, sizeof(*vm));

	copy->uuid = g_strdup(vm->uuid);
	copy->name = g_strdup(vm->name);
	copy->machine = g_strdup(vm->machine);
	return copy;
}

void
rm_vm_row_free(RmVmRow *vm)
{
	if (!vm)
		return;
	g_free(vm->uuid);
	g_free(vm->name);
	g_free(vm->machine);
	g_free(vm);
}

/* ---- chunks ---- */

gboolean
rm_ledger_grant(RmLedger *ledger, gint64 vm, guint channel, guint n, gboolean base, GArray *granted,
		GError **error)
{
	guint size = rm_topology_channel(ledger->topology, channel)->size_chunks, i;

	for (i = ledger->first_free[channel]; i < size && n; i++) {
		Slot *slot = slot_of(ledger, channel, i);
		RmChunk c = slot->chunk;

		if (c.state != RM_CHUNK_FREE)
			continue;
		if (!run(ledger, error,
			 "UPDATE chunk SET state = 'granted', vm = ?, base = ?, phase = 0"
			 " WHERE channel = ? AND chunk = ?",
			 "iiii", vm, (gint64)base, ledger->channel_ids[channel], (gint64)i))
			return FALSE;
		c.state = RM_CHUNK_GRANTED;
		c.vm = vm;
		c.base = base;
		c.phase = RM_PHASE_RESERVED;
		slot_change(ledger, slot, &c);
		g_array_append_val(granted, c);
		n--;
	}
	ledger->first_free[channel] = i;
	return TRUE;
}

/* The statement just run must have met a chunk. */
static gboolean
check_changed(RmLedger *ledger, guint channel, guint chunk, GError **error)
{
	if (sqlite3_changes(ledger->db) == 1)
		return TRUE;
	rm_error_set(error, RM_ERROR_FAILED,
		     "ledger %s has no chunk %u of channel %s in that state", ledger->path, chunk,
		     rm_topology_channel(ledger->topology, channel)->name);
	return FALSE;
}

gboolean
rm_ledger_set_phase(RmLedger *ledger, guint channel, guint chunk, RmChunkPhase phase,
		    GError **error)
{
	Slot *slot = slot_of(ledger, channel, chunk);
	RmChunk c;

	if (!slot || slot->chunk.state != RM_CHUNK_GRANTED) {
		rm_error_set(error, RM_ERROR_FAILED, "chunk %u of channel %s is not granted", chunk,
			     rm_topology_channel(ledger->topology, channel)->name);
		return FALSE;
	}
	if (slot->chunk.phase == phase)
		return TRUE;
	c = slot->chunk;
	c.phase = phase;
	if (sqlite3_get_autocommit(ledger->db))
		g_array_append_val(ledger->phases, c);
	else if (!write_phase(ledger, &c, error))
		return FALSE;
	slot_change(ledger, slot, &c);
	return TRUE;
}

gboolean
rm_ledger_set_state(RmLedger *ledger, guint channel, guint chunk, RmChunkState state,
		    GError **error)
{
	gboolean ok;
	RmChunk c;

	if (state == RM_CHUNK_FREE)
		ok = run(ledger, error,
			 "UPDATE chunk SET state = 'free', vm = NULL, base = 0, phase = 0"
			 " WHERE channel = ? AND chunk = ?",
			 "ii", ledger->channel_ids[channel], (gint64)chunk);
	else
		ok = run(ledger, error,
			 "UPDATE chunk SET state = ? WHERE channel = ? AND chunk = ?", "sii",
			 chunk_states[state], ledger->channel_ids[channel], (gint64)chunk);
	if (!ok || !check_changed(ledger, channel, chunk, error))
		return FALSE;
	c = slot_of(ledger, channel, chunk)->chunk;
	c.state = state;
	if (state == RM_CHUNK_FREE) {
		c.vm = 0;
		c.base = FALSE;
		c.phase = RM_PHASE_RESERVED;
	}
	slot_change(ledger, slot_of(ledger, channel, chunk), &c);
	return TRUE;
}

gboolean
rm_ledger_quarantine(RmLedger *ledger, guint channel, guint chunk, gint64 vm, GError **error)
{
	gboolean ok;
	RmChunk c;

	if (!vm)
		ok = run(ledger, error,
			 "UPDATE chunk SET state = 'quarantined', vm = NULL, base = 0, phase = 0"
			 " WHERE channel = ? AND chunk = ?",
			 "ii", ledger->channel_ids[channel], (gint64)chunk);
	else
		ok = run(ledger, error,
			 "UPDATE chunk SET state = 'quarantined', vm = ? WHERE channel = ? AND "
			 "chunk = ?",
			 "iii", vm, ledger->channel_ids[channel], (gint64)chunk);
	if (!ok || !check_changed(ledger, channel, chunk, error))
		return FALSE;
	c = slot_of(ledger, channel, chunk)->chunk;
	c.state = RM_CHUNK_QUARANTINED;
	c.vm = vm;
	if (!vm) {
		c.base = FALSE;
		c.phase = RM_PHASE_RESERVED;
	}
	slot_change(ledger, slot_of(ledger, channel, chunk), &c);
	return TRUE;
}

gboolean
rm_ledger_adopt(RmLedger *ledger, guint channel, guint chunk, gint64 vm, gboolean base,
		GError **error)
{
	Slot *slot = slot_of(ledger, channel, chunk);
	RmChunk c;

	if (!slot || slot->chunk.vm ||
	    (slot->chunk.state != RM_CHUNK_RELEASED && slot->chunk.state != RM_CHUNK_QUARANTINED)) {
		rm_error_set(error, RM_ERROR_FAILED,
			     "chunk %u of channel %s cannot be adopted: it is %s", chunk,
			     rm_topology_channel(ledger->topology, channel)->name,
			     slot ? chunk_states[slot->chunk.state] : "beyond the channel");
		return FALSE;
	}
	/*
	 * In the steps that the schema knows; within one transaction nobody sees those between.
	 */
	if ((slot->chunk.state == RM_CHUNK_QUARANTINED &&
	     !rm_ledger_set_state(ledger, channel, chunk, RM_CHUNK_RELEASED, error)) ||
	    !rm_ledger_set_state(ledger, channel, chunk, RM_CHUNK_SCRUBBING, error) ||
	    !rm_ledger_set_state(ledger, channel, chunk, RM_CHUNK_FREE, error) ||
	    !run(ledger, error,
		 "UPDATE chunk SET state = 'granted', vm = ?, base = ?, phase = 2"
		 " WHERE channel = ? AND chunk = ?",
		 "iiii", vm, (gint64)base, ledger->channel_ids[channel], (gint64)chunk))
		return FALSE;
	c = slot->chunk;
	c.state = RM_CHUNK_GRANTED;
	c.vm = vm;
	c.base = base;
	c.phase = RM_PHASE_SENT;
	slot_change(ledger, slot, &c);
	return TRUE;
}

gboolean
rm_ledger_set_base(RmLedger *ledger, guint channel, guint chunk, gboolean base, GError **error)
{
	RmChunk c;

	if (!run(ledger, error,
		 "UPDATE chunk SET base = ? WHERE channel = ? AND chunk = ? AND state = 'granted'",
		 "iii", (gint64)base, ledger->channel_ids[channel], (gint64)chunk) ||
	    !check_changed(ledger, channel, chunk, error))
		return FALSE;
	c = slot_of(ledger, channel, chunk)->chunk;
	c.base = base;
	slot_change(ledger, slot_of(ledger, channel, chunk), &c);
	return TRUE;
}

gboolean
rm_ledger_release_vm(RmLedger *ledger, gint64 vm, GError **error)
{
	guint32 *head = g_hash_table_lookup(ledger->vm_slots, &vm);
	guint32 at;

	if (!run(ledger, error,
		 "UPDATE chunk SET state = 'released' WHERE vm = ?"
		 " AND state IN ('granted', 'quarantined')",
		 "i", vm))
		return FALSE;
	for (at = head ? *head : NO_SLOT; at != NO_SLOT; at = ledger->slots[at].next) {
		RmChunk c = ledger->slots[at].chunk;

		if (c.state != RM_CHUNK_GRANTED && c.state != RM_CHUNK_QUARANTINED)
			continue;
		c.state = RM_CHUNK_RELEASED;
		slot_change(ledger, &ledger->slots[at], &c);
	}
	return TRUE;
}

gboolean
rm_ledger_get_chunk(RmLedger *ledger, guint channel, guint chunk, RmChunk *ret_chunk,
		    GError **error)
{
	const Slot *slot = chunk < G_MAXINT32 ? slot_of(ledger, channel, chunk) : NULL;

	if (!slot) {
		rm_error_set(error, RM_ERROR_NOT_FOUND, "channel %s has no chunk %u",
			     rm_topology_channel(ledger->topology, channel)->name, chunk);
		return FALSE;
	}
	*ret_chunk = slot->chunk;
	return TRUE;
}

static gint
compare_chunks(gconstpointer a, gconstpointer b)
{
	const RmChunk *ca = a, *cb = b;

	if (ca->channel != cb->channel)
		return ca->channel < cb->channel ? -1 : 1;
	return ca->chunk < cb->chunk ? -1 : ca->chunk > cb->chunk;
}

GArray *
rm_ledger_vm_chunks(RmLedger *ledger, gint64 vm)
{
	GArray *chunks = g_array_new(FALSE, FALSE, sizeof(RmChunk));
	const guint32 *head = g_hash_table_lookup(ledger->vm_slots, &vm);
	guint32 at;

	for (at = head ? *head : NO_SLOT; at != NO_SLOT; at = ledger->slots[at].next)
		g_array_append_val(chunks, ledger->slots[at].chunk);
	g_array_sort(chunks, compare_chunks);
	return chunks;
}

void
rm_ledger_vm_counts(const RmLedger *ledger, gint64 vm, guint *granted, guint *all)
{
	const guint32 *head = g_hash_table_lookup(ledger->vm_slots, &vm);
	guint32 at;

	for (at = head ? *head : NO_SLOT; at != NO_SLOT; at = ledger->slots[at].next) {
		const RmChunk *c = &ledger->slots[at].chunk;

		if (granted)
			granted[c->channel] += c->state == RM_CHUNK_GRANTED;
		if (all)
			all[c->channel]++;
	}
}

GArray *
rm_ledger_chunks_in_state(RmLedger *ledger, RmChunkState state, guint max)
{
	GArray *chunks = g_array_new(FALSE, FALSE, sizeof(RmChunk));
	guint channel;

	for (channel = 0; channel < rm_topology_n_channels(ledger->topology); channel++) {
		guint left = ledger->counts[channel].n[state];
		guint32 at = ledger->first_slots[channel];

		for (; left && chunks->len < max; at++) {
			if (ledger->slots[at].chunk.state != state)
				continue;
			g_array_append_val(chunks, ledger->slots[at].chunk);
			left--;
		}
	}
	return chunks;
}

const RmChannelCounts *
rm_ledger_counts(const RmLedger *ledger)
{
	return ledger->counts;
}

const char *
rm_chunk_state_name(RmChunkState state)
{
	return chunk_states[state];
}

/* ---- jobs ---- */

gboolean
rm_ledger_add_job(RmLedger *ledger, RmJob *job, GError **error)
{
	if (!run(ledger, error,
		 "INSERT INTO job (uuid, name, kind, state, progress, message, created_usec)"
		 " VALUES (?, ?, ?, 'running', ?, ?, ?)",
		 "sssdsi", job->uuid, job->name, job->kind, job->progress,
		 job->message ? job->message : "", job->created_usec))
		return FALSE;
	job->id = (guint64)sqlite3_last_insert_rowid(ledger->db);
	return run(ledger, error, "DELETE FROM job WHERE id <= ? AND state <> 'running'", "i",
		   (gint64)job->id - JOBS_MAX);
}

gboolean
rm_ledger_update_job(RmLedger *ledger, const RmJob *job, GError **error)
{
	return run(ledger, error,
		   "UPDATE job SET state = ?, progress = ?, message = ?, finished_usec = ?"
		   " WHERE id = ?",
		   "sdsii", job_states[job->state], job->progress, job->message ? job->message : "",
		   job->finished_usec, (gint64)job->id);
}

static gboolean
read_jobs(RmLedger *ledger, Query *query, GPtrArray *jobs, GError **error)
{
	gboolean done;

	for (;;) {
		RmJob *job;

		if (!query_step(ledger, query, &done, error))
			return FALSE;
		if (done)
			return TRUE;
		job = g_new0(RmJob, 1);
		job->id = (guint64)sqlite3_column_int64(query, 0);
		job->uuid = column_text(query, 1);
		job->name = column_text(query, 2);
		job->kind = column_text(query, 3);
		job->state = (RmJobState)find_name(job_states, RM_JOB_N,
						   (const char *)sqlite3_column_text(query, 4));
		job->progress = sqlite3_column_double(query, 5);
		job->message = column_text(query, 6);
		job->created_usec = sqlite3_column_int64(query, 7);
		job->finished_usec = sqlite3_column_int64(query, 8);
		g_ptr_array_add(jobs, job);
	}
}

#define JOB_COLUMNS                                                                                \
	"SELECT id, uuid, name, kind, state, progress, message, created_usec, finished_usec"       \
	" FROM job "

GPtrArray *
rm_ledger_list_jobs(RmLedger *ledger, GError **error)
{
	g_autoptr(GPtrArray) jobs = g_ptr_array_new_with_free_func((GDestroyNotify)rm_job_free);
	g_autoptr(Query) query = query_new(ledger, error, JOB_COLUMNS "ORDER BY id", "");

	if (!query || !read_jobs(ledger, query, jobs, error))
		return NULL;
	return g_steal_pointer(&jobs);
}

static RmJob *
read_one_job(RmLedger *ledger, Query *query, GError **error)
{
	g_autoptr(GPtrArray) jobs = g_ptr_array_new_with_free_func((GDestroyNotify)rm_job_free);

	if (!read_jobs(ledger, query, jobs, error) || !jobs->len)
		return NULL;
	return g_ptr_array_steal_index(jobs, 0);
}

RmJob *
rm_ledger_get_job(RmLedger *ledger, guint64 id, GError **error)
{
	g_autoptr(Query) query =
		query_new(ledger, error, JOB_COLUMNS "WHERE id = ?", "i", (gint64)id);

	return query ? read_one_job(ledger, query, error) : NULL;
}

RmJob *
rm_ledger_running_job(RmLedger *ledger, const char *uuid, GError **error)
{
	g_autoptr(Query) query = query_new(
		ledger, error, JOB_COLUMNS "WHERE uuid = ? AND state = 'running'", "s", uuid);

	return query ? read_one_job(ledger, query, error) : NULL;
}

void
rm_job_free(RmJob *job)
{
	if (!job)
		return;
	g_free(job->uuid);
	g_free(job->name);
	g_free(job->kind);
	g_free(job->message);
	g_free(job);
}

/* ---- care ---- */

/*
 * SQLite's own copy is consistent whatever is written meanwhile; a name in its place appears only
 * when all of it is on disk.
 */
gboolean
rm_ledger_backup(RmLedger *ledger, const char *path, GError **error)
{
	g_autofree char *temporary = g_strconcat(path, ".new", NULL);
	g_autoptr(Query) query = NULL;
	gboolean done;
	int fd;

	if (unlink(temporary) < 0 && errno != ENOENT) {
		rm_error_set(error, RM_ERROR_FAILED, "cannot remove %s: %s", temporary,
			     g_strerror(errno));
		return FALSE;
	}
	/* VACUUM INTO writes into an empty file too; so it has its mode before it has bytes. */
	fd = open(temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0) {
		rm_error_set(error, RM_ERROR_FAILED, "cannot make %s: %s", temporary,
			     g_strerror(errno));
		return FALSE;
	}
	query = query_new(ledger, error, "VACUUM INTO ?", "s", temporary);
	if (!query || !query_step(ledger, query, &done, error)) {
		close(fd);
		unlink(temporary);
		return FALSE;
	}
	if (fsync(fd) < 0 || rename(temporary, path) < 0) {
		rm_error_set(error, RM_ERROR_FAILED, "cannot write %s: %s", path,
			     g_strerror(errno));
		close(fd);
		unlink(temporary);
		return FALSE;
	}
	close(fd);
	return TRUE;
}

/* One line for each row of @sql. */
static gboolean
add_problems(RmLedger *ledger, GPtrArray *problems, const char *sql, const char *what,
	     GError **error)
{
	g_autoptr(Query) query = query_new(ledger, error, sql, "");
	gboolean done;

	if (!query)
		return FALSE;
	for (;;) {
		if (!query_step(ledger, query, &done, error))
			return FALSE;
		if (done)
			return TRUE;
		g_ptr_array_add(problems,
				g_strdup_printf("%s: %s", what, sqlite3_column_text(query, 0)));
	}
}

/* What is in memory is what is in the file. */
static gboolean
check_slots(RmLedger *ledger, GPtrArray *problems, GError **error)
{
	g_autoptr(Query) query = query_new(
		ledger, error,
		"SELECT channel, chunk, state, coalesce(vm, 0), base, phase FROM chunk", "");
	guint32 n = ledger->first_slots[rm_topology_n_channels(ledger->topology)], seen = 0;
	gboolean done;

	if (!query)
		return FALSE;
	for (;;) {
		guint channel;
		const Slot *slot;

		if (!query_step(ledger, query, &done, error))
			return FALSE;
		if (done)
			break;
		channel = index_of_channel(ledger, sqlite3_column_int64(query, 0));
		slot = slot_of(ledger, channel, (guint)sqlite3_column_int64(query, 1));
		seen++;
		if (slot && sqlite3_column_int64(query, 3) == slot->chunk.vm &&
		    g_str_equal((const char *)sqlite3_column_text(query, 2),
				chunk_states[slot->chunk.state]) &&
		    sqlite3_column_int(query, 4) == slot->chunk.base &&
		    sqlite3_column_int(query, 5) == (int)slot->chunk.phase)
			continue;
		g_ptr_array_add(
			problems,
			g_strdup_printf("chunk %d of %s: the file says %s, rmd "
					"holds another state",
					sqlite3_column_int(query, 1),
					rm_topology_channel(ledger->topology, channel)->name,
					sqlite3_column_text(query, 2)));
	}
	if (seen != n)
		g_ptr_array_add(
			problems,
			g_strdup_printf("the file has %u chunks, the channels have %u", seen, n));
	return TRUE;
}

GPtrArray *
rm_ledger_check(RmLedger *ledger, GError **error)
{
	g_autoptr(GPtrArray) problems = g_ptr_array_new_with_free_func(g_free);

	if (!rm_ledger_flush(ledger, error))
		return NULL;
	if (!add_problems(ledger, problems,
			  "SELECT integrity_check FROM pragma_integrity_check"
			  " WHERE integrity_check <> 'ok'",
			  "file", error) ||
	    !add_problems(ledger, problems,
			  "SELECT \"table\" || ' row ' || coalesce(rowid, '?') FROM "
			  "pragma_foreign_key_check",
			  "reference to nothing", error) ||
	    !add_problems(
		    ledger, problems,
		    "SELECT 'channel ' || c.name || ' chunk ' || k.chunk || ' of ' || v.name"
		    " FROM chunk k JOIN channel c ON c.id = k.channel JOIN vm v ON v.id = k.vm"
		    " WHERE k.state = 'granted' AND NOT EXISTS (SELECT 1 FROM vm_channel x"
		    "  WHERE x.vm = k.vm AND x.channel = k.channel)",
		    "granted on a channel that is none of the domain's", error) ||
	    !add_problems(ledger, problems,
			  "SELECT v.name || ' on ' || c.name || ': ' || count(*) || ' of ' ||"
			  " (x.base + x.window) FROM chunk k JOIN vm v ON v.id = k.vm"
			  " JOIN channel c ON c.id = k.channel"
			  " JOIN vm_channel x ON x.vm = k.vm AND x.channel = k.channel"
			  " WHERE k.state = 'granted' GROUP BY k.vm, k.channel"
			  " HAVING count(*) > x.base + x.window",
			  "more granted than the window holds", error) ||
	    !add_problems(
		    ledger, problems,
		    "SELECT name || ' chunk ' || chunk FROM (SELECT c.name, k.chunk FROM chunk "
		    "k"
		    " JOIN channel c ON c.id = k.channel WHERE k.chunk >= c.size_chunks)",
		    "beyond the channel", error) ||
	    !check_slots(ledger, problems, error))
		return NULL;
	return g_steal_pointer(&problems);
}

/* ---- history ---- */

void
rm_ledger_add_event(RmLedger *ledger, const char *uuid, const char *kind, const char *text)
{
	RmEvent *event = g_new0(RmEvent, 1);

	event->time_usec = g_get_real_time();
	event->uuid = g_strdup(uuid);
	event->kind = g_strdup(kind);
	event->text = g_strdup(text);
	/* One that writes faster than anybody commits loses the oldest. */
	if (ledger->events->len >= EVENTS_MAX)
		g_ptr_array_remove_index(ledger->events, 0);
	g_ptr_array_add(ledger->events, event);
}

gboolean
rm_ledger_flush(RmLedger *ledger, GError **error)
{
	g_autoptr(RmLedgerTx) tx = NULL;

	if (!ledger->events->len && !ledger->phases->len)
		return TRUE;
	tx = rm_ledger_begin(ledger, error);
	return tx && rm_ledger_commit(&tx, error);
}

void
rm_event_free(RmEvent *event)
{
	if (!event)
		return;
	g_free(event->uuid);
	g_free(event->kind);
	g_free(event->text);
	g_free(event);
}

GPtrArray *
rm_ledger_list_events(RmLedger *ledger, const char *uuid, guint max, GError **error)
{
	g_autoptr(GPtrArray) events = g_ptr_array_new_with_free_func((GDestroyNotify)rm_event_free);
	g_autoptr(Query) query = NULL;
	gboolean done;

	if (!rm_ledger_flush(ledger, error))
		return NULL;
	query = query_new(ledger, error,
			  "SELECT id, time_usec, uuid, kind, text FROM"
			  " (SELECT * FROM event WHERE ?1 IS NULL OR uuid = ?1"
			  "  ORDER BY id DESC LIMIT ?2) ORDER BY id",
			  "si", uuid, (gint64)max);
	if (!query)
		return NULL;
	for (;;) {
		RmEvent *event;

		if (!query_step(ledger, query, &done, error))
			return NULL;
		if (done)
			return g_steal_pointer(&events);
		event = g_new0(RmEvent, 1);
		event->id = sqlite3_column_int64(query, 0);
		event->time_usec = sqlite3_column_int64(query, 1);
		event->uuid = column_text(query, 2);
		event->kind = column_text(query, 3);
		event->text = column_text(query, 4);
		g_ptr_array_add(events, event);
	}
}

const char *
rm_vm_state_name(RmVmState state)
{
	return vm_states[state];
}

const char *
rm_job_state_name(RmJobState state)
{
	return job_states[state];
}
