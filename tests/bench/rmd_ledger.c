/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * rmd_ledger ratio FOLDER        operations of the ledger a second over bare SQLite commits a
 * second of the same size (one row of a table like its chunks, same pragmas), taking turns in one
 * folder. JSON on stdout. rmd_ledger fill CONFIG VMS CHUNKS PID START writes a ledger in which VMS
 * domains run as process PID (with that start time) and have CHUNKS chunks each; prints "UUID
 * CHANNEL:FIRST" lines as the fake hypervisors need them.
 */
#include <glib.h>
#include <glib/gstdio.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rm-config.h"
#include "rm-ledger.h"
#include "rm-paths.h"

#define ROUNDS 600
#define CHUNKS 4096

static void
check(gboolean ok, GError *error)
{
	if (ok)
		return;
	fprintf(stderr, "rmd_ledger: %s\n", error ? error->message : "failed");
	exit(1);
}

static void
sql(sqlite3 *db, const char *text)
{
	if (sqlite3_exec(db, text, NULL, NULL, NULL) == SQLITE_OK)
		return;
	fprintf(stderr, "rmd_ledger: %s: %s\n", text, sqlite3_errmsg(db));
	exit(1);
}

static sqlite3 *
open_bare(const char *path)
{
	sqlite3 *db;
	guint i;

	g_assert(sqlite3_open(path, &db) == SQLITE_OK);
	sql(db, "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
		"CREATE TABLE chunk (channel INTEGER NOT NULL, chunk INTEGER NOT NULL, state TEXT "
		"NOT NULL, vm INTEGER, base INTEGER, phase INTEGER, PRIMARY KEY (channel, chunk)) "
		"STRICT, WITHOUT ROWID;"
		"CREATE INDEX chunk_vm ON chunk (vm) WHERE vm IS NOT NULL; BEGIN");
	for (i = 0; i < CHUNKS; i++) {
		g_autofree char *text =
			g_strdup_printf("INSERT INTO chunk VALUES (1, %u, 'free', NULL, 0, 0)", i);

		sql(db, text);
	}
	sql(db, "COMMIT");
	return db;
}

static gdouble
bare_commit(sqlite3 *db, sqlite3_stmt *statement, guint chunk)
{
	gint64 start = g_get_monotonic_time();

	sql(db, "BEGIN IMMEDIATE");
	sqlite3_bind_int(statement, 1, (int)chunk);
	g_assert(sqlite3_step(statement) == SQLITE_DONE);
	sqlite3_reset(statement);
	sql(db, "COMMIT");
	return (gdouble)(g_get_monotonic_time() - start);
}

static gdouble
ledger_operation(RmLedger *ledger, gint64 vm)
{
	g_autoptr(GArray) granted = g_array_new(FALSE, FALSE, sizeof(RmChunk));
	gint64 start = g_get_monotonic_time();
	g_autoptr(GError) error = NULL;
	g_autoptr(RmLedgerTx) tx = rm_ledger_begin(ledger, &error);

	check(tx && rm_ledger_grant(ledger, vm, 0, 1, FALSE, granted, &error) &&
		      rm_ledger_commit(&tx, &error),
	      error);
	g_assert(granted->len == 1);
	return (gdouble)(g_get_monotonic_time() - start);
}

static RmTopology *
one_channel(void)
{
	RmTopology *topology = rm_topology_new();
	RmChannel *c = g_new0(RmChannel, 1);

	c->name = g_strdup("dimm0");
	c->store = g_strdup("lab");
	c->size_chunks = CHUNKS;
	rm_topology_add(topology, c, NULL);
	return topology;
}

static void
clean(RmLedger *ledger)
{
	g_autoptr(GArray) dirty = rm_ledger_chunks_in_state(ledger, RM_CHUNK_RELEASED, G_MAXUINT);
	g_autoptr(GError) error = NULL;
	g_autoptr(RmLedgerTx) tx = rm_ledger_begin(ledger, &error);
	guint i;

	check(tx != NULL, error);
	for (i = 0; i < dirty->len; i++) {
		const RmChunk *c = &g_array_index(dirty, RmChunk, i);

		check(rm_ledger_set_state(ledger, c->channel, c->chunk, RM_CHUNK_SCRUBBING,
					  &error) &&
			      rm_ledger_set_state(ledger, c->channel, c->chunk, RM_CHUNK_FREE,
						  &error),
		      error);
	}
	check(rm_ledger_commit(&tx, &error), error);
}

static int
compare(const void *a, const void *b)
{
	double da = *(const double *)a, db = *(const double *)b;

	return da < db ? -1 : da > db;
}

static int
ratio(const char *folder)
{
	g_autofree char *path = g_build_filename(folder, "ledger.db", NULL);
	g_autofree char *bare_path = g_build_filename(folder, "bare.db", NULL);
	g_autoptr(RmTopology) topology = one_channel();
	g_autoptr(GError) error = NULL;
	g_autoptr(RmLedger) ledger = rm_ledger_open(path, topology, &error);
	RmVmChannel channel = {.base_chunks = 0, .window_chunks = CHUNKS, .target_chunks = CHUNKS};
	RmVmRow vm = {.uuid = (char *)"11111111-0000-4000-8000-000000000001",
		      .name = (char *)"vm",
		      .machine = (char *)"q35",
		      .vcpus = 1,
		      .generation = 1,
		      .capacity_chunks = CHUNKS,
		      .capacity_max_chunks = CHUNKS,
		      .bandwidth_channels = 1,
		      .bandwidth_max_channels = 1};
	gdouble ledger_sum = 0, bare_sum = 0, times[2][ROUNDS];
	sqlite3 *bare = open_bare(bare_path);
	sqlite3_stmt *statement;
	guint i;

	check(ledger != NULL, error);
	clean(ledger);
	check(rm_ledger_add_vm(ledger, &vm, &channel, 1, &error), error);
	g_assert(
		sqlite3_prepare_v2(bare,
				   "UPDATE chunk SET state = 'granted', vm = 1, base = 0, phase = 0"
				   " WHERE channel = 1 AND chunk = ?",
				   -1, &statement, NULL) == SQLITE_OK);
	for (i = 0; i < ROUNDS; i++) {
		/* Who goes first changes: what the other left to the disk is shared out evenly. */
		if (i % 2)
			times[0][i] = ledger_operation(ledger, vm.id);
		times[1][i] = bare_commit(bare, statement, i);
		if (i % 2 == 0)
			times[0][i] = ledger_operation(ledger, vm.id);
		ledger_sum += times[0][i];
		bare_sum += times[1][i];
	}
	sqlite3_finalize(statement);
	sqlite3_close(bare);
	qsort(times[0], ROUNDS, sizeof(gdouble), compare);
	qsort(times[1], ROUNDS, sizeof(gdouble), compare);
	printf("{\"operations\": %d, \"ledger_per_sec\": %.1f, \"bare_per_sec\": %.1f, "
	       "\"ledger_p50_usec\": %.0f, \"bare_p50_usec\": %.0f, \"ratio\": %.4f}\n",
	       ROUNDS, ROUNDS / ledger_sum * 1e6, ROUNDS / bare_sum * 1e6, times[0][ROUNDS / 2],
	       times[1][ROUNDS / 2], bare_sum / ledger_sum);
	return 0;
}

static void
fill_vm(RmLedger *ledger, const RmTopology *topology, guint index, guint chunks, gint pid,
	guint64 start)
{
	guint n = rm_topology_n_channels(topology), i, k;
	g_autofree char *uuid = g_strdup_printf("22222222-0000-4000-8000-%012u", index);
	g_autofree char *name = g_strdup_printf("vm%u", index);
	RmVmChannel channels[2] = {0};
	RmVmRow vm = {.uuid = uuid,
		      .name = name,
		      .machine = (char *)"q35",
		      .vcpus = 1,
		      .generation = 1,
		      .claimed_usec = 1,
		      .capacity_chunks = chunks,
		      .capacity_min_chunks = 1,
		      .capacity_max_chunks = chunks,
		      .bandwidth_channels = 2,
		      .bandwidth_min_channels = 1,
		      .bandwidth_max_channels = 2,
		      .shared = TRUE};
	g_autoptr(GError) error = NULL;

	for (i = 0; i < 2; i++) {
		channels[i].channel = (index + i) % n;
		channels[i].cnode = i;
		channels[i].base_chunks = i ? 0 : 1;
		channels[i].target_chunks = i ? chunks / 2 : chunks - chunks / 2;
		channels[i].window_chunks = chunks;
	}
	check(rm_ledger_add_vm(ledger, &vm, channels, 2, &error), error);
	printf("%s", uuid);
	for (i = 0; i < 2; i++) {
		g_autoptr(GArray) granted = g_array_new(FALSE, FALSE, sizeof(RmChunk));

		check(rm_ledger_grant(ledger, vm.id, channels[i].channel, channels[i].base_chunks,
				      TRUE, granted, &error) &&
			      rm_ledger_grant(ledger, vm.id, channels[i].channel,
					      channels[i].target_chunks - channels[i].base_chunks,
					      FALSE, granted, &error),
		      error);
		check(granted->len == channels[i].target_chunks, NULL);
		for (k = 0; k < granted->len; k++) {
			const RmChunk *c = &g_array_index(granted, RmChunk, k);

			check(rm_ledger_set_phase(ledger, c->channel, c->chunk, RM_PHASE_SENT,
						  &error),
			      error);
			printf(" %s:%u:%d", rm_topology_channel(topology, c->channel)->name,
			       c->chunk, c->base);
		}
	}
	printf("\n");
	vm.state = RM_VM_RUNNING;
	vm.pid = pid;
	vm.start_time_ticks = start;
	check(rm_ledger_update_vm(ledger, &vm, &error), error);
}

static int
fill(char **argv)
{
	g_autoptr(GError) error = NULL;
	g_autoptr(RmConfig) config = rm_config_load(argv[0], &error);
	g_autofree char *path = NULL;
	g_autofree char *boot = NULL;
	g_autoptr(RmLedger) ledger = NULL;
	g_autoptr(RmLedgerTx) tx = NULL;
	guint n = (guint)atoi(argv[1]), i;

	check(config != NULL, error);
	check(rm_paths_make_dir(config->state_dir, 0700, &error), error);
	path = rm_paths_ledger(config->state_dir);
	ledger = rm_ledger_open(path, config->topology, &error);
	check(ledger != NULL, error);
	check(g_file_get_contents("/proc/sys/kernel/random/boot_id", &boot, NULL, &error), error);
	check(rm_ledger_new_boot(ledger, g_strchomp(boot), &error), error);
	clean(ledger);
	tx = rm_ledger_begin(ledger, &error);
	for (i = 0; i < n; i++)
		fill_vm(ledger, config->topology, i, (guint)atoi(argv[2]), atoi(argv[3]),
			g_ascii_strtoull(argv[4], NULL, 10));
	check(rm_ledger_commit(&tx, &error), error);
	return 0;
}

int
main(int argc, char **argv)
{
	if (argc == 3 && g_str_equal(argv[1], "ratio"))
		return ratio(argv[2]);
	if (argc == 7 && g_str_equal(argv[1], "fill"))
		return fill(argv + 2);
	fprintf(stderr, "usage: rmd_ledger ratio FOLDER | fill CONFIG VMS CHUNKS PID START\n");
	return 2;
}
