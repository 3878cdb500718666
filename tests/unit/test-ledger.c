/* SPDX-License-Identifier: GPL-2.0-or-later */
#include <glib/gstdio.h>
#include <sqlite3.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rm-error.h"
#include "rm-ledger.h"

typedef struct {
	char *dir;
	char *path;
	RmTopology *topology;
	RmLedger *ledger;
} Fixture;

static void
add_channel(RmTopology *topology, const char *name, guint chunks)
{
	RmChannel *c = g_new0(RmChannel, 1);

	c->name = g_strdup(name);
	c->store = g_strdup("lab");
	c->dax = rm_topology_n_channels(topology);
	c->size_chunks = chunks;
	g_assert_true(rm_topology_add(topology, c, NULL));
}

static void
reopen(Fixture *f)
{
	g_autoptr(GError) error = NULL;

	g_clear_pointer(&f->ledger, rm_ledger_free);
	f->ledger = rm_ledger_open(f->path, f->topology, &error);
	g_assert_no_error(error);
}

static void
clean(RmLedger *ledger)
{
	g_autoptr(GArray) dirty = rm_ledger_chunks_in_state(ledger, RM_CHUNK_RELEASED, G_MAXUINT);
	g_autoptr(GError) error = NULL;
	guint i;

	for (i = 0; i < dirty->len; i++) {
		const RmChunk *c = &g_array_index(dirty, RmChunk, i);

		rm_ledger_set_state(ledger, c->channel, c->chunk, RM_CHUNK_SCRUBBING, &error);
		g_assert_no_error(error);
		rm_ledger_set_state(ledger, c->channel, c->chunk, RM_CHUNK_FREE, &error);
		g_assert_no_error(error);
	}
}

static void
set_up(Fixture *f, gconstpointer data)
{
	f->dir = g_dir_make_tmp("rmd-ledger-XXXXXX", NULL);
	f->path = g_build_filename(f->dir, "ledger.db", NULL);
	f->topology = rm_topology_new();
	add_channel(f->topology, "dimm0", 8);
	add_channel(f->topology, "dimm1", 8);
	reopen(f);
}

static void
tear_down(Fixture *f, gconstpointer data)
{
	static const char *const names[] = {"ledger.db", "ledger.db-wal", "ledger.db-shm"};
	guint i;

	rm_ledger_free(f->ledger);
	for (i = 0; i < G_N_ELEMENTS(names); i++) {
		g_autofree char *path = g_build_filename(f->dir, names[i], NULL);

		g_unlink(path);
	}
	g_rmdir(f->dir);
	rm_topology_free(f->topology);
	g_free(f->path);
	g_free(f->dir);
}

static gint64
add_vm(RmLedger *ledger, const char *name)
{
	static const RmVmChannel channels[] = {
		{.channel = 0,
		 .cnode = 0,
		 .snode = 0,
		 .base_chunks = 2,
		 .window_chunks = 6,
		 .target_chunks = 4},
		{.channel = 1,
		 .cnode = 1,
		 .snode = 0,
		 .base_chunks = 0,
		 .window_chunks = 8,
		 .target_chunks = 3},
	};
	RmVmRow vm = {
		.uuid = (char *)name,
		.name = (char *)name,
		.machine = (char *)"q35",
		.vcpus = 2,
		.generation = 1,
		.capacity_chunks = 7,
		.capacity_min_chunks = 2,
		.capacity_max_chunks = 8,
		.bandwidth_channels = 2,
		.bandwidth_min_channels = 1,
		.bandwidth_max_channels = 2,
	};
	g_autoptr(GError) error = NULL;

	rm_ledger_add_vm(ledger, &vm, channels, 2, &error);
	g_assert_no_error(error);
	return vm.id;
}

static guint
grant(RmLedger *ledger, gint64 vm, guint channel, guint n)
{
	g_autoptr(GArray) granted = g_array_new(FALSE, FALSE, sizeof(RmChunk));
	g_autoptr(GError) error = NULL;

	rm_ledger_grant(ledger, vm, channel, n, FALSE, granted, &error);
	g_assert_no_error(error);
	return granted->len;
}

/* SQL past the library: what the schema itself refuses. */
static void
assert_refused(Fixture *f, const char *sql)
{
	sqlite3 *db;

	g_assert_cmpint(sqlite3_open(f->path, &db), ==, SQLITE_OK);
	g_assert_cmpint(sqlite3_exec(db, "PRAGMA foreign_keys = ON", NULL, NULL, NULL), ==,
			SQLITE_OK);
	if (sqlite3_exec(db, sql, NULL, NULL, NULL) == SQLITE_OK)
		g_error("not refused: %s", sql);
	sqlite3_close(db);
}

static void
test_new(Fixture *f, gconstpointer data)
{
	const RmChannelCounts *counts = rm_ledger_counts(f->ledger);
	g_autofree char *boot = rm_ledger_boot_id(f->ledger, NULL);

	g_assert_true(rm_ledger_is_new(f->ledger));
	g_assert_cmpuint(rm_ledger_added(f->ledger)->len, ==, 16);
	/* Nothing is clean before it was cleaned. */
	g_assert_cmpuint(counts[0].n[RM_CHUNK_RELEASED], ==, 8);
	g_assert_cmpstr(boot, ==, "");
	reopen(f);
	g_assert_false(rm_ledger_is_new(f->ledger));
	g_assert_cmpuint(rm_ledger_added(f->ledger)->len, ==, 0);
}

static void
test_grant(Fixture *f, gconstpointer data)
{
	g_autoptr(GArray) chunks = NULL;
	gint64 a, b;

	clean(f->ledger);
	a = add_vm(f->ledger, "a");
	b = add_vm(f->ledger, "b");
	g_assert_cmpuint(grant(f->ledger, a, 0, 5), ==, 5);
	g_assert_cmpuint(grant(f->ledger, b, 0, 5), ==, 3); /* what there is */
	g_assert_cmpuint(grant(f->ledger, a, 0, 1), ==, 0);
	chunks = rm_ledger_vm_chunks(f->ledger, b);
	g_assert_cmpuint(chunks->len, ==, 3);
	g_assert_cmpuint(g_array_index(chunks, RmChunk, 0).chunk, ==, 5);
	g_assert_cmpint(g_array_index(chunks, RmChunk, 0).phase, ==, RM_PHASE_RESERVED);
}

static void
test_double_allocation(Fixture *f, gconstpointer data)
{
	gint64 a, b;
	g_autofree char *steal = NULL;

	clean(f->ledger);
	a = add_vm(f->ledger, "a");
	b = add_vm(f->ledger, "b");
	grant(f->ledger, a, 0, 2);
	steal = g_strdup_printf("UPDATE chunk SET vm = %d WHERE chunk = 0", (int)b);
	assert_refused(f, steal);
	assert_refused(f,
		       "INSERT INTO chunk SELECT channel, chunk, state, vm, base, phase FROM chunk"
		       " WHERE chunk = 0");
	assert_refused(f, "UPDATE chunk SET chunk = 7 WHERE chunk = 0");
	assert_refused(f, "UPDATE chunk SET state = 'free', vm = NULL WHERE chunk = 0");
	assert_refused(f, "UPDATE chunk SET state = 'granted' WHERE chunk = 5");
	assert_refused(f, "UPDATE chunk SET state = 'scrubbing' WHERE chunk = 5");
	assert_refused(f, "UPDATE chunk SET vm = NULL WHERE chunk = 0");
	assert_refused(f, "DELETE FROM chunk WHERE chunk = 0");
	assert_refused(f, "DELETE FROM vm");
	assert_refused(f, "INSERT INTO chunk (channel, chunk, state) VALUES (1, 8, 'released')");
	assert_refused(f, "INSERT INTO chunk (channel, chunk, state) VALUES (99, 0, 'released')");
	assert_refused(f, "UPDATE vm_channel SET target = 1 WHERE base = 2");
	assert_refused(f, "UPDATE vm SET state = 'running'"); /* without a pid */
}

static void
test_states(Fixture *f, gconstpointer data)
{
	g_autoptr(GError) error = NULL;
	gint64 vm;
	RmChunk c;

	clean(f->ledger);
	vm = add_vm(f->ledger, "a");
	grant(f->ledger, vm, 1, 1);
	g_assert_true(rm_ledger_set_phase(f->ledger, 1, 0, RM_PHASE_SENT, NULL));
	g_assert_true(rm_ledger_set_state(f->ledger, 1, 0, RM_CHUNK_RELEASED, NULL));
	g_assert_true(rm_ledger_get_chunk(f->ledger, 1, 0, &c, NULL));
	g_assert_cmpint(c.vm, ==, vm); /* whose it was */
	g_assert_false(rm_ledger_set_state(f->ledger, 1, 0, RM_CHUNK_FREE, &error));
	g_clear_error(&error);
	g_assert_false(rm_ledger_remove_vm(f->ledger, vm, &error));
	g_clear_error(&error);
	g_assert_true(rm_ledger_set_state(f->ledger, 1, 0, RM_CHUNK_SCRUBBING, NULL));
	g_assert_true(rm_ledger_set_state(f->ledger, 1, 0, RM_CHUNK_FREE, NULL));
	g_assert_true(rm_ledger_get_chunk(f->ledger, 1, 0, &c, NULL));
	g_assert_cmpint(c.vm, ==, 0);
	g_assert_cmpint(c.phase, ==, RM_PHASE_RESERVED);
	g_assert_true(rm_ledger_remove_vm(f->ledger, vm, &error));
	g_assert_no_error(error);
	/* Set aside: until the domain ends, or for good. */
	vm = add_vm(f->ledger, "b");
	g_assert_true(rm_ledger_quarantine(f->ledger, 1, 3, vm, NULL));
	g_assert_true(rm_ledger_quarantine(f->ledger, 1, 4, 0, NULL));
	g_assert_true(rm_ledger_release_vm(f->ledger, vm, NULL));
	g_assert_true(rm_ledger_get_chunk(f->ledger, 1, 3, &c, NULL));
	g_assert_cmpint(c.state, ==, RM_CHUNK_RELEASED);
	g_assert_true(rm_ledger_get_chunk(f->ledger, 1, 4, &c, NULL));
	g_assert_cmpint(c.state, ==, RM_CHUNK_QUARANTINED);
	g_assert_false(rm_ledger_get_chunk(f->ledger, 1, 8, &c, &error));
	g_assert_error(error, RM_ERROR, RM_ERROR_NOT_FOUND);
}

static void
test_rows(Fixture *f, gconstpointer data)
{
	g_autoptr(GPtrArray) vms = NULL;
	g_autoptr(GArray) channels = NULL;
	g_autoptr(RmVmRow) vm = NULL;

	add_vm(f->ledger, "a");
	vms = rm_ledger_list_vms(f->ledger, NULL);
	vm = rm_vm_row_copy(g_ptr_array_index(vms, 0));
	g_assert_cmpstr(vm->name, ==, "a");
	g_assert_cmpstr(vm->machine, ==, "q35");
	g_assert_cmpuint(vm->capacity_max_chunks, ==, 8);
	vm->state = RM_VM_RUNNING;
	vm->pid = 77;
	vm->start_time_ticks = 5;
	vm->generation = 9;
	g_assert_true(rm_ledger_update_vm(f->ledger, vm, NULL));
	g_assert_true(rm_ledger_set_target(f->ledger, vm->id, 1, 8, NULL));
	reopen(f);
	g_ptr_array_unref(vms);
	vms = rm_ledger_list_vms(f->ledger, NULL);
	g_assert_cmpint(((RmVmRow *)g_ptr_array_index(vms, 0))->state, ==, RM_VM_RUNNING);
	g_assert_cmpint(((RmVmRow *)g_ptr_array_index(vms, 0))->pid, ==, 77);
	g_assert_cmpuint(((RmVmRow *)g_ptr_array_index(vms, 0))->generation, ==, 9);
	channels = rm_ledger_vm_channels(f->ledger, vm->id, NULL);
	g_assert_cmpuint(channels->len, ==, 2);
	g_assert_cmpuint(g_array_index(channels, RmVmChannel, 1).target_chunks, ==, 8);
}

static void
test_transaction(Fixture *f, gconstpointer data)
{
	gint64 vm;

	clean(f->ledger);
	vm = add_vm(f->ledger, "a");
	{
		g_autoptr(RmLedgerTx) tx = rm_ledger_begin(f->ledger, NULL);

		g_assert_nonnull(tx);
		g_assert_cmpuint(grant(f->ledger, vm, 0, 3), ==, 3);
	}
	g_assert_cmpuint(grant(f->ledger, vm, 0, 8), ==, 8);
}

/* Killed in a transaction: nothing of it is there; killed after the commit: all of it is. */
static void
test_crash(Fixture *f, gconstpointer data)
{
	gint64 vm;
	int step;

	clean(f->ledger);
	vm = add_vm(f->ledger, "a");
	g_clear_pointer(&f->ledger, rm_ledger_free);
	for (step = 0; step < 2; step++) {
		const RmChannelCounts *counts;
		pid_t pid = fork();
		int status;

		if (pid == 0) {
			g_autoptr(RmLedgerTx) tx = NULL;

			f->ledger = rm_ledger_open(f->path, f->topology, NULL);
			tx = rm_ledger_begin(f->ledger, NULL);
			grant(f->ledger, vm, 0, 3);
			if (step == 1 && !rm_ledger_commit(&tx, NULL))
				_exit(1);
			kill(getpid(), SIGKILL);
		}
		g_assert_cmpint(waitpid(pid, &status, 0), ==, pid);
		g_assert_true(WIFSIGNALED(status));
		reopen(f);
		counts = rm_ledger_counts(f->ledger);
		g_assert_cmpuint(counts[0].n[RM_CHUNK_GRANTED], ==, step == 1 ? 3 : 0);
		g_clear_pointer(&f->ledger, rm_ledger_free);
	}
}

static void
test_jobs(Fixture *f, gconstpointer data)
{
	RmJob job = {.uuid = (char *)"u",
		     .name = (char *)"a",
		     .kind = (char *)"resize",
		     .created_usec = 1};
	RmJob second = job;
	g_autoptr(RmJob) running = NULL;
	g_autoptr(GPtrArray) jobs = NULL;
	g_autoptr(GError) error = NULL;

	g_assert_true(rm_ledger_add_job(f->ledger, &job, NULL));
	g_assert_false(rm_ledger_add_job(f->ledger, &second, &error)); /* one a domain */
	g_clear_error(&error);
	running = rm_ledger_running_job(f->ledger, "u", &error);
	g_assert_no_error(error);
	g_assert_cmpuint(running->id, ==, job.id);
	job.state = RM_JOB_DONE;
	job.progress = 1;
	job.finished_usec = 2;
	g_assert_true(rm_ledger_update_job(f->ledger, &job, NULL));
	g_assert_null(rm_ledger_running_job(f->ledger, "u", &error));
	g_assert_no_error(error);
	g_assert_true(rm_ledger_add_job(f->ledger, &second, NULL));
	jobs = rm_ledger_list_jobs(f->ledger, NULL);
	g_assert_cmpuint(jobs->len, ==, 2);
	g_assert_null(rm_ledger_get_job(f->ledger, 99, &error));
	g_assert_no_error(error);
}

static void
test_boot(Fixture *f, gconstpointer data)
{
	const RmChannelCounts *counts;
	g_autofree char *boot = NULL;
	g_autoptr(GPtrArray) vms = NULL;
	gint64 vm;

	clean(f->ledger);
	vm = add_vm(f->ledger, "a");
	grant(f->ledger, vm, 0, 3);
	rm_ledger_quarantine(f->ledger, 1, 1, 0, NULL);
	g_assert_true(rm_ledger_new_boot(f->ledger, "boot", NULL));
	boot = rm_ledger_boot_id(f->ledger, NULL);
	g_assert_cmpstr(boot, ==, "boot");
	counts = rm_ledger_counts(f->ledger);
	g_assert_cmpuint(counts[0].n[RM_CHUNK_RELEASED], ==, 8);
	g_assert_cmpuint(counts[1].n[RM_CHUNK_RELEASED], ==, 8);
	vms = rm_ledger_list_vms(f->ledger, NULL);
	g_assert_cmpint(((RmVmRow *)g_ptr_array_index(vms, 0))->state, ==, RM_VM_GONE);
}

/* The configuration changes between two starts. */
static void
test_channels(Fixture *f, gconstpointer data)
{
	g_autoptr(GError) error = NULL;
	g_autoptr(RmTopology) smaller = rm_topology_new();
	g_autoptr(RmTopology) without = rm_topology_new();
	g_autoptr(RmTopology) larger = rm_topology_new();
	g_autoptr(RmLedger) ledger = NULL;
	gint64 vm;

	clean(f->ledger);
	vm = add_vm(f->ledger, "a");
	grant(f->ledger, vm, 1, 3);
	g_clear_pointer(&f->ledger, rm_ledger_free);
	add_channel(smaller, "dimm0", 8);
	add_channel(smaller, "dimm1", 2);
	g_assert_null(rm_ledger_open(f->path, smaller, &error));
	g_assert_error(error, RM_ERROR, RM_ERROR_INVALID);
	g_assert_nonnull(
		strstr(error->message, "channel dimm1 is configured with 2 chunks, but 1"));
	g_clear_error(&error);
	add_channel(without, "dimm0", 8);
	g_assert_null(rm_ledger_open(f->path, without, &error));
	g_assert_nonnull(strstr(error->message, "channel dimm1 is not configured any more"));
	g_assert_nonnull(strstr(error->message, "domain a"));
	g_clear_error(&error);
	/* Other order, larger, one more: nothing is mixed up. */
	add_channel(larger, "new", 4);
	add_channel(larger, "dimm1", 10);
	add_channel(larger, "dimm0", 3);
	ledger = rm_ledger_open(f->path, larger, &error);
	g_assert_no_error(error);
	g_assert_cmpuint(rm_ledger_added(ledger)->len, ==, 6);
	{
		g_autoptr(GArray) chunks = rm_ledger_vm_chunks(ledger, vm);

		g_assert_cmpuint(chunks->len, ==, 3);
		g_assert_cmpuint(g_array_index(chunks, RmChunk, 0).channel, ==, 1);
	}
}

static void
test_versions(Fixture *f, gconstpointer data)
{
	g_autoptr(GError) error = NULL;
	sqlite3 *db;

	g_clear_pointer(&f->ledger, rm_ledger_free);
	g_assert_cmpint(sqlite3_open(f->path, &db), ==, SQLITE_OK);
	sqlite3_exec(db, "PRAGMA user_version = 99", NULL, NULL, NULL);
	sqlite3_close(db);
	g_assert_null(rm_ledger_open(f->path, f->topology, &error));
	g_assert_error(error, RM_ERROR, RM_ERROR_FAILED);
	g_assert_nonnull(strstr(error->message, "has version 99, this rmd knows up to 2"));
	g_clear_error(&error);
	g_assert_true(g_file_set_contents(f->path, "this is no database at all, not even nearly",
					  -1, NULL));
	g_assert_null(rm_ledger_open(f->path, f->topology, &error));
	g_assert_error(error, RM_ERROR, RM_ERROR_DAMAGED);
}

static void
test_events(Fixture *f, gconstpointer data)
{
	g_autoptr(GPtrArray) events = NULL;
	g_autoptr(GPtrArray) one = NULL;
	guint i;

	rm_ledger_add_event(f->ledger, NULL, "boot", "text");
	rm_ledger_add_event(f->ledger, "u", "gone", "last");
	reopen(f); /* an end writes what is left */
	one = rm_ledger_list_events(f->ledger, "u", 10, NULL);
	g_assert_cmpuint(one->len, ==, 1);
	g_assert_cmpstr(((RmEvent *)g_ptr_array_index(one, 0))->text, ==, "last");
	for (i = 0; i < 10100; i++) {
		rm_ledger_add_event(f->ledger, NULL, "flood", "text");
		if (i % 1000 == 0)
			g_assert_true(rm_ledger_flush(f->ledger, NULL));
	}
	events = rm_ledger_list_events(f->ledger, NULL, 20000, NULL);
	g_assert_cmpuint(events->len, ==, 10000);
	g_assert_cmpstr(((RmEvent *)g_ptr_array_index(events, 9999))->kind, ==, "flood");
	/* Never without a bound, also while nobody commits. */
	for (i = 0; i < 10100; i++)
		rm_ledger_add_event(f->ledger, NULL, "second", "text");
	g_ptr_array_unref(events);
	events = rm_ledger_list_events(f->ledger, NULL, 20000, NULL);
	g_assert_cmpuint(events->len, ==, 10000);
	g_assert_cmpstr(((RmEvent *)g_ptr_array_index(events, 0))->kind, ==, "second");
}

/* What is in memory follows a transaction that is given up. */
static void
test_rollback(Fixture *f, gconstpointer data)
{
	const RmChannelCounts *counts = rm_ledger_counts(f->ledger);
	g_autoptr(GPtrArray) problems = NULL;
	g_autoptr(GArray) chunks = NULL;
	g_autoptr(GError) error = NULL;
	gint64 a, b;

	clean(f->ledger);
	a = add_vm(f->ledger, "a");
	b = add_vm(f->ledger, "b");
	g_assert_cmpuint(grant(f->ledger, a, 0, 3), ==, 3);
	{
		g_autoptr(RmLedgerTx) tx = rm_ledger_begin(f->ledger, NULL);

		grant(f->ledger, b, 0, 4);
		grant(f->ledger, b, 1, 8);
		g_assert_true(rm_ledger_release_vm(f->ledger, a, NULL));
		g_assert_true(rm_ledger_set_state(f->ledger, 0, 1, RM_CHUNK_SCRUBBING, NULL));
		g_assert_true(rm_ledger_set_state(f->ledger, 0, 1, RM_CHUNK_FREE, NULL));
		g_assert_true(rm_ledger_quarantine(f->ledger, 0, 7, 0, NULL));
		g_assert_cmpuint(counts[1].n[RM_CHUNK_FREE], ==, 0);
	}
	g_assert_cmpuint(counts[0].n[RM_CHUNK_GRANTED], ==, 3);
	g_assert_cmpuint(counts[0].n[RM_CHUNK_FREE], ==, 5);
	g_assert_cmpuint(counts[1].n[RM_CHUNK_FREE], ==, 8);
	chunks = rm_ledger_vm_chunks(f->ledger, b);
	g_assert_cmpuint(chunks->len, ==, 0);
	g_array_unref(chunks);
	chunks = rm_ledger_vm_chunks(f->ledger, a);
	g_assert_cmpuint(chunks->len, ==, 3);
	problems = rm_ledger_check(f->ledger, &error);
	g_assert_no_error(error);
	g_assert_cmpuint(problems->len, ==, 0);
	/* And the lowest free number is found again. */
	g_assert_cmpuint(grant(f->ledger, b, 1, 8), ==, 8);
}

/* Random operations: the file and what is in memory never differ. */
static void
test_random(Fixture *f, gconstpointer data)
{
	g_autoptr(GRand) rand = g_rand_new_with_seed(5);
	gint64 vms[3];
	guint i, k;

	clean(f->ledger);
	for (i = 0; i < 3; i++) {
		char name[2] = {(char)('a' + i), 0};

		vms[i] = add_vm(f->ledger, name);
	}
	for (i = 0; i < 300; i++) {
		g_autoptr(RmLedgerTx) tx = rm_ledger_begin(f->ledger, NULL);

		for (k = 0; k < 4; k++) {
			guint channel = (guint)g_rand_int_range(rand, 0, 2);
			guint chunk = (guint)g_rand_int_range(rand, 0, 8);
			g_autoptr(GArray) granted = g_array_new(FALSE, FALSE, sizeof(RmChunk));

			if (g_rand_boolean(rand)) /* of what is granted only */
				rm_ledger_set_phase(f->ledger, channel, chunk,
						    (RmChunkPhase)g_rand_int_range(rand, 0, 3),
						    NULL);
			switch (g_rand_int_range(rand, 0, 4)) {
			case 0:
				rm_ledger_grant(f->ledger, vms[g_rand_int_range(rand, 0, 3)],
						channel, (guint)g_rand_int_range(rand, 1, 4), FALSE,
						granted, NULL);
				break;
			case 1: /* most are refused by the schema */
				rm_ledger_set_state(
					f->ledger, channel, chunk,
					(RmChunkState)g_rand_int_range(rand, 0, RM_CHUNK_N), NULL);
				break;
			case 2:
				rm_ledger_release_vm(f->ledger, vms[g_rand_int_range(rand, 0, 3)],
						     NULL);
				break;
			default:
				rm_ledger_quarantine(f->ledger, channel, chunk, 0, NULL);
			}
		}
		if (g_rand_boolean(rand))
			g_assert_true(rm_ledger_commit(&tx, NULL));
		else
			g_clear_pointer(&tx, rm_ledger_tx_rollback);
		rm_ledger_set_phase(f->ledger, (guint)g_rand_int_range(rand, 0, 2),
				    (guint)g_rand_int_range(rand, 0, 8), RM_PHASE_SENT, NULL);
	}
	{
		g_autoptr(GError) error = NULL;
		g_autoptr(GPtrArray) problems = rm_ledger_check(f->ledger, &error);

		g_assert_no_error(error);
		if (problems->len)
			g_error("%s", (char *)g_ptr_array_index(problems, 0));
	}
}

static void
test_backup(Fixture *f, gconstpointer data)
{
	g_autofree char *path = g_build_filename(f->dir, "copy.db", NULL);
	g_autofree char *nowhere = g_build_filename(f->dir, "no", "copy.db", NULL);
	g_autoptr(RmLedger) copy = NULL;
	g_autoptr(GArray) chunks = NULL;
	g_autoptr(GError) error = NULL;
	GStatBuf st;
	gint64 vm;

	clean(f->ledger);
	vm = add_vm(f->ledger, "a");
	grant(f->ledger, vm, 0, 3);
	g_assert_true(rm_ledger_backup(f->ledger, path, &error));
	g_assert_cmpint(g_stat(path, &st), ==, 0);
	g_assert_cmpint(st.st_mode & 0777, ==, 0600);
	grant(f->ledger, vm, 0, 1);
	copy = rm_ledger_open(path, f->topology, &error);
	g_assert_no_error(error);
	chunks = rm_ledger_vm_chunks(copy, vm);
	g_assert_cmpuint(chunks->len, ==, 3);
	g_clear_pointer(&copy, rm_ledger_free);
	g_assert_true(rm_ledger_backup(f->ledger, path, &error)); /* over the old one */
	g_assert_false(rm_ledger_backup(f->ledger, nowhere, &error));
	g_assert_error(error, RM_ERROR, RM_ERROR_FAILED);
	g_unlink(path);
}

/* What only somebody past rmd can write is found. */
static void
test_check(Fixture *f, gconstpointer data)
{
	g_autoptr(GPtrArray) problems = NULL;
	g_autoptr(GError) error = NULL;
	sqlite3 *db;

	clean(f->ledger);
	grant(f->ledger, add_vm(f->ledger, "a"), 0, 2);
	g_assert_cmpint(sqlite3_open(f->path, &db), ==, SQLITE_OK);
	g_assert_cmpint(sqlite3_exec(db,
				     "UPDATE chunk SET state = 'quarantined' WHERE chunk = 5;"
				     "DELETE FROM vm_channel",
				     NULL, NULL, NULL),
			==, SQLITE_OK);
	sqlite3_close(db);
	problems = rm_ledger_check(f->ledger, &error);
	g_assert_no_error(error);
	/* chunk 5 of both channels, and two grants on no channel of the domain's */
	g_assert_cmpuint(problems->len, ==, 4);
}

/* A file of each older version, with something in every table, becomes one of this version. */
static void
test_migrations(Fixture *f, gconstpointer data)
{
	g_autofree char *sql = NULL;
	g_autofree char *fixture =
		g_test_build_filename(G_TEST_DIST, "data", "ledger-v1.sql", NULL);
	g_autofree char *kept = g_strconcat(f->path, ".v1", NULL);
	g_autoptr(GPtrArray) vms = NULL;
	g_autoptr(GPtrArray) jobs = NULL;
	g_autoptr(GPtrArray) events = NULL;
	g_autoptr(GPtrArray) problems = NULL;
	g_autoptr(GArray) chunks = NULL;
	g_autoptr(GArray) channels = NULL;
	g_autofree char *boot = NULL;
	const RmVmRow *vm;
	sqlite3 *db;

	g_clear_pointer(&f->ledger, rm_ledger_free);
	g_unlink(f->path);
	g_assert_true(g_file_get_contents(fixture, &sql, NULL, NULL));
	g_assert_cmpint(sqlite3_open(f->path, &db), ==, SQLITE_OK);
	if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
		g_error("%s", sqlite3_errmsg(db));
	sqlite3_close(db);
	reopen(f);
	g_assert_false(rm_ledger_is_new(f->ledger));
	g_assert_true(g_file_test(kept, G_FILE_TEST_EXISTS));
	g_unlink(kept);
	vms = rm_ledger_list_vms(f->ledger, NULL);
	g_assert_cmpuint(vms->len, ==, 2);
	vm = g_ptr_array_index(vms, 0);
	g_assert_cmpstr(vm->name, ==, "web");
	g_assert_cmpint(vm->state, ==, RM_VM_RUNNING);
	g_assert_cmpint(vm->pid, ==, 4711);
	g_assert_cmpuint(vm->capacity_chunks, ==, 5);
	g_assert_false(vm->shared);
	g_assert_cmpuint(vm->mbps, ==, 0);
	channels = rm_ledger_vm_channels(f->ledger, vm->id, NULL);
	g_assert_cmpuint(channels->len, ==, 2);
	chunks = rm_ledger_vm_chunks(f->ledger, vm->id);
	g_assert_cmpuint(chunks->len, ==, 5);
	g_assert_true(g_array_index(chunks, RmChunk, 0).base);
	g_assert_cmpint(g_array_index(chunks, RmChunk, 4).phase, ==, RM_PHASE_SENT);
	jobs = rm_ledger_list_jobs(f->ledger, NULL);
	g_assert_cmpuint(jobs->len, ==, 2);
	events = rm_ledger_list_events(f->ledger, NULL, 100, NULL);
	g_assert_cmpuint(events->len, ==, 2);
	boot = rm_ledger_boot_id(f->ledger, NULL);
	g_assert_cmpstr(boot, ==, "7c1e5a52-0000-4000-8000-000000000001");
	g_assert_cmpint(rm_ledger_channel_state(f->ledger, 1), ==, RM_CHANNEL_ONLINE);
	problems = rm_ledger_check(f->ledger, NULL);
	g_assert_cmpuint(problems->len, ==, 0);
}

static void
test_channel_states(Fixture *f, gconstpointer data)
{
	gint64 vm;

	clean(f->ledger);
	vm = add_vm(f->ledger, "a");
	g_assert_true(rm_ledger_set_channel_state(f->ledger, 1, RM_CHANNEL_OFFLINE, NULL));
	assert_refused(f, "UPDATE chunk SET state = 'granted', vm = 1 WHERE chunk = 3 AND channel ="
			  " (SELECT id FROM channel WHERE name = 'dimm1')");
	g_assert_cmpuint(grant(f->ledger, vm, 0, 1), ==, 1);
	reopen(f);
	g_assert_cmpint(rm_ledger_channel_state(f->ledger, 1), ==, RM_CHANNEL_OFFLINE);
	g_assert_true(rm_ledger_set_channel_state(f->ledger, 1, RM_CHANNEL_ONLINE, NULL));
	g_assert_cmpuint(grant(f->ledger, vm, 1, 1), ==, 1);
}

/* A lost ledger: chunks that a process still has become its domain's again. */
static void
test_adopt(Fixture *f, gconstpointer data)
{
	g_autoptr(GError) error = NULL;
	gint64 vm = add_vm(f->ledger, "a");
	gint64 other = add_vm(f->ledger, "b");
	RmChunk c;

	g_assert_true(rm_ledger_quarantine(f->ledger, 0, 1, 0, NULL));
	g_assert_true(rm_ledger_adopt(f->ledger, 0, 0, vm, TRUE, &error));
	g_assert_true(rm_ledger_adopt(f->ledger, 0, 1, vm, FALSE, &error));
	g_assert_no_error(error);
	g_assert_true(rm_ledger_get_chunk(f->ledger, 0, 1, &c, NULL));
	g_assert_cmpint(c.state, ==, RM_CHUNK_GRANTED);
	g_assert_cmpint(c.phase, ==, RM_PHASE_SENT);
	g_assert_cmpint(c.vm, ==, vm);
	g_assert_false(rm_ledger_adopt(f->ledger, 0, 1, other, FALSE, &error));
	g_assert_error(error, RM_ERROR, RM_ERROR_FAILED);
}

int
main(int argc, char **argv)
{
	g_test_init(&argc, &argv, NULL);
#define ADD(name, func) g_test_add("/ledger/" name, Fixture, NULL, set_up, func, tear_down)
	ADD("new", test_new);
	ADD("grant", test_grant);
	ADD("double-allocation", test_double_allocation);
	ADD("states", test_states);
	ADD("rows", test_rows);
	ADD("transaction", test_transaction);
	ADD("crash", test_crash);
	ADD("jobs", test_jobs);
	ADD("boot", test_boot);
	ADD("channels", test_channels);
	ADD("versions", test_versions);
	ADD("events", test_events);
	ADD("rollback", test_rollback);
	ADD("random", test_random);
	ADD("backup", test_backup);
	ADD("check", test_check);
	ADD("migrations", test_migrations);
	ADD("channel-states", test_channel_states);
	ADD("adopt", test_adopt);
	return g_test_run();
}
