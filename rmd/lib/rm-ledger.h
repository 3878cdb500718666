/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The books: which chunk belongs to which domain, what each domain is to have, the jobs that bring
 * it there (the journal) and a bounded history. One SQLite file (WAL, synchronous=FULL); what is
 * returned TRUE is on disk. The schema itself forbids a second owner of a chunk and every change of
 * state that is not listed below, so that a bug in a caller is an error and not a leak.
 *
 * States of a chunk:
 *
 *   free -> granted -> released -> scrubbing -> free
 *     \-----------------> released             the clean mark of another boot is void
 *   scrubbing -> released                      the work on it is begun again
 *   free, released, scrubbing -> quarantined   something is wrong with it; nobody gets it
 *   quarantined -> released                    the domain that caused it is gone
 *
 * A granted chunk has a domain, a free one has none; the others name the one that had it last, and
 * a domain's row stays until no chunk names it. A granted chunk passes through three phases:
 * reserved (in the books only), prepared (its memory is there), sent (QEMU may hold it).
 *
 * The table of chunks is held in memory as well (the only writer is the process that has it open),
 * so that asking costs no query. The file is always written first.
 *
 * Used by one thread. Knows the topology, and nothing of buses, loops, processes or files.
 */
#ifndef RM_LEDGER_H
#define RM_LEDGER_H

#include "rm-topology.h"

G_BEGIN_DECLS

/* The schema that this version writes. */
#define RM_LEDGER_VERSION 2

typedef struct RmLedger RmLedger;

typedef enum {
	RM_CHUNK_FREE,
	RM_CHUNK_GRANTED,
	RM_CHUNK_RELEASED,
	RM_CHUNK_SCRUBBING,
	RM_CHUNK_QUARANTINED,
	RM_CHUNK_N
} RmChunkState;

typedef enum {
	RM_PHASE_RESERVED,
	RM_PHASE_PREPARED,
	RM_PHASE_SENT,
} RmChunkPhase;

typedef struct {
	guint channel; /* index in the topology */
	guint chunk;
	RmChunkState state;
	gint64 vm; /* 0: nobody */
	gboolean base;
	RmChunkPhase phase;
} RmChunk;

/* What may happen on a channel; set by people. */
typedef enum {
	RM_CHANNEL_ONLINE,
	RM_CHANNEL_DRAINING, /* gets nothing new; what is on it is moved away */
	RM_CHANNEL_OFFLINE,  /* nothing at all: not even by hand */
	RM_CHANNEL_N
} RmChannelState;

typedef enum { RM_VM_CLAIMED, RM_VM_RUNNING, RM_VM_GONE, RM_VM_N } RmVmState;

typedef struct {
	gint64 id;
	char *uuid;
	char *name;
	RmVmState state;
	gint pid;                 /* 0 while claimed */
	guint64 start_time_ticks; /* of that process, field 22 of /proc/PID/stat */
	guint vcpus;
	char *machine; /* QEMU's machine type */
	guint64 generation;
	gint64 claimed_usec;
	/* In chunks; all include the base memory. */
	guint capacity_chunks;
	guint capacity_min_chunks;
	guint capacity_max_chunks;
	guint bandwidth_channels;
	guint bandwidth_min_channels;
	guint bandwidth_max_channels;
	gboolean shared; /* may be on channels with others that share */
	/* What it asked for when it asked for MB/s and not for channels; else 0. */
	guint mbps;
	guint mbps_min;
	guint mbps_max;
} RmVmRow;

/* One possible channel of a domain. */
typedef struct {
	guint channel; /* index in the topology */
	guint cnode;
	guint snode;
	guint base_chunks;
	guint window_chunks;
	guint target_chunks; /* including base */
} RmVmChannel;

typedef enum { RM_JOB_RUNNING, RM_JOB_DONE, RM_JOB_FAILED, RM_JOB_CANCELLED, RM_JOB_N } RmJobState;

typedef struct {
	guint64 id;
	char *uuid;
	char *name; /* of the domain */
	char *kind;
	RmJobState state;
	gdouble progress;
	char *message;
	gint64 created_usec;
	gint64 finished_usec;
} RmJob;

typedef struct {
	gint64 id;
	gint64 time_usec;
	char *uuid; /* or NULL */
	char *kind;
	char *text;
} RmEvent;

/* Counts of one channel. */
typedef struct {
	guint n[RM_CHUNK_N]; /* by state */
} RmChannelCounts;

/*
 * Opens (or makes) the file at @path, migrates it to RM_LEDGER_VERSION (the file as it was stays
 * beside it as PATH.vN) and brings its channels in line with @topology, which must live as long.
 * Fails when the file is damaged (RM_ERROR_DAMAGED) or written by a newer version, or when a
 * channel with chunks in use is not declared any more or has become too small.
 */
RmLedger *rm_ledger_open(const char *path, const RmTopology *topology, GError **error);
void rm_ledger_free(RmLedger *ledger);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmLedger, rm_ledger_free)

/* TRUE when rm_ledger_open() made the file: then nothing is known of what lies in the stores. */
gboolean rm_ledger_is_new(const RmLedger *ledger);

/* Chunk rows added by rm_ledger_open() (new file, new or larger channels), as RmChunk. */
const GArray *rm_ledger_added(const RmLedger *ledger);

/*
 * A transaction. All calls below may be used in one or outside; outside each is one by itself.
 * They do not nest. Unless it is committed, the clean-up rolls it back.
 */
typedef RmLedger RmLedgerTx;
RmLedgerTx *rm_ledger_begin(RmLedger *ledger, GError **error);
gboolean rm_ledger_commit(RmLedgerTx **tx, GError **error);
void rm_ledger_tx_rollback(RmLedgerTx *tx);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmLedgerTx, rm_ledger_tx_rollback)

/* The boot id that the clean marks are of; "" in a new file. */
char *rm_ledger_boot_id(RmLedger *ledger, GError **error);
/* Records a new boot: every free chunk becomes released, every domain gone with all it has. */
gboolean rm_ledger_new_boot(RmLedger *ledger, const char *boot_id, GError **error);

/* ---- channels ---- */

gboolean rm_ledger_set_channel_state(RmLedger *ledger, guint channel, RmChannelState state,
				     GError **error);
RmChannelState rm_ledger_channel_state(const RmLedger *ledger, guint channel);
const char *rm_channel_state_name(RmChannelState state);
gboolean rm_channel_state_parse(const char *name, RmChannelState *ret_state);

/* ---- domains ---- */

/* Adds a domain in state claimed with its channels; sets vm->id. */
gboolean rm_ledger_add_vm(RmLedger *ledger, RmVmRow *vm, const RmVmChannel *channels, guint n,
			  GError **error);
/* All of vm but its uuid, name and channels. */
gboolean rm_ledger_update_vm(RmLedger *ledger, const RmVmRow *vm, GError **error);
gboolean rm_ledger_set_target(RmLedger *ledger, gint64 vm, guint channel, guint target_chunks,
			      GError **error);
/* Fails while a chunk names it. */
gboolean rm_ledger_remove_vm(RmLedger *ledger, gint64 vm, GError **error);
/* of RmVmRow, owned; oldest first. */
GPtrArray *rm_ledger_list_vms(RmLedger *ledger, GError **error);
/* of RmVmChannel, by cNode. */
GArray *rm_ledger_vm_channels(RmLedger *ledger, gint64 vm, GError **error);

RmVmRow *rm_vm_row_copy(const RmVmRow *vm);
void rm_vm_row_free(RmVmRow *vm);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmVmRow, rm_vm_row_free)

/* ---- chunks ---- */

/*
 * Grants up to @n free chunks of @channel to @vm in phase reserved, lowest numbers first, and
 * appends them to @granted (RmChunk). Fewer than @n is no error: look at the length.
 */
gboolean rm_ledger_grant(RmLedger *ledger, gint64 vm, guint channel, guint n, gboolean base,
			 GArray *granted, GError **error);
/*
 * How far a granted chunk is. The journal is the grant, which is on disk before this is called; the
 * phase is written with the next transaction or rm_ledger_flush(). After a crash a chunk may thus
 * have a lower phase than it had: QEMU's hello says which it holds before anything is done with it,
 * and one that it does not name is prepared anew, which takes it from whoever has it all the same.
 */
gboolean rm_ledger_set_phase(RmLedger *ledger, guint channel, guint chunk, RmChunkPhase phase,
			     GError **error);
/* One step of the diagram above other than free -> granted. */
gboolean rm_ledger_set_state(RmLedger *ledger, guint channel, guint chunk, RmChunkState state,
			     GError **error);
/*
 * Sets a chunk that is granted to nobody aside: until the end of @vm, which says it holds it, or
 * (0) until the next boot.
 */
gboolean rm_ledger_quarantine(RmLedger *ledger, guint channel, guint chunk, gint64 vm,
			      GError **error);
/*
 * A dirty or quarantined chunk of nobody is what @vm has (a lost ledger is made again): granted,
 * phase sent. To be called in a transaction.
 */
gboolean rm_ledger_adopt(RmLedger *ledger, guint channel, guint chunk, gint64 vm, gboolean base,
			 GError **error);
/* Which region of its domain a granted chunk is of; for what was adopted. */
gboolean rm_ledger_set_base(RmLedger *ledger, guint channel, guint chunk, gboolean base,
			    GError **error);
/* All granted and quarantined chunks of @vm become released. */
gboolean rm_ledger_release_vm(RmLedger *ledger, gint64 vm, GError **error);
/* RM_ERROR_NOT_FOUND: the channel has no such chunk. */
gboolean rm_ledger_get_chunk(RmLedger *ledger, guint channel, guint chunk, RmChunk *ret_chunk,
			     GError **error);
/* of RmChunk, by channel and number: all that name @vm. */
GArray *rm_ledger_vm_chunks(RmLedger *ledger, gint64 vm);
/*
 * Counts of @vm's chunks by channel, added to @granted and (in any state) @all, each of
 * rm_topology_n_channels() elements or NULL.
 */
void rm_ledger_vm_counts(const RmLedger *ledger, gint64 vm, guint *granted, guint *all);
/* of RmChunk: up to @max in @state. */
GArray *rm_ledger_chunks_in_state(RmLedger *ledger, RmChunkState state, guint max);
/* rm_topology_n_channels() elements, always as it is now. */
const RmChannelCounts *rm_ledger_counts(const RmLedger *ledger);

const char *rm_chunk_state_name(RmChunkState state);

/* ---- jobs ---- */

/* At most one running job a domain: the schema refuses a second. Sets job->id. */
gboolean rm_ledger_add_job(RmLedger *ledger, RmJob *job, GError **error);
/* State, progress, message and finished_usec. */
gboolean rm_ledger_update_job(RmLedger *ledger, const RmJob *job, GError **error);
GPtrArray *rm_ledger_list_jobs(RmLedger *ledger, GError **error);
/* NULL without an error: there is none. */
RmJob *rm_ledger_get_job(RmLedger *ledger, guint64 id, GError **error);
RmJob *rm_ledger_running_job(RmLedger *ledger, const char *uuid, GError **error);
void rm_job_free(RmJob *job);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmJob, rm_job_free)

/* ---- history ---- */

/*
 * Adds a line to the history, which keeps the newest 10,000. @uuid may be NULL. It is written with
 * the next transaction or rm_ledger_flush(): the history is for people and must not cost a sync of
 * its own.
 */
void rm_ledger_add_event(RmLedger *ledger, const char *uuid, const char *kind, const char *text);
gboolean rm_ledger_flush(RmLedger *ledger, GError **error);

/* of RmEvent, oldest first: the newest @max, of @uuid only or (NULL) of all. */
GPtrArray *rm_ledger_list_events(RmLedger *ledger, const char *uuid, guint max, GError **error);
void rm_event_free(RmEvent *event);

/* ---- care ---- */

/* A consistent copy, mode 0600, which appears at @path only when it is complete and on disk. */
gboolean rm_ledger_backup(RmLedger *ledger, const char *path, GError **error);
/* Problems of the file and of what it says, a line each; empty when there are none. */
GPtrArray *rm_ledger_check(RmLedger *ledger, GError **error);

const char *rm_vm_state_name(RmVmState state);
const char *rm_job_state_name(RmJobState state);

G_END_DECLS

#endif
