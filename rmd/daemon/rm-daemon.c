/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "rm-daemon.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rm-adopt.h"
#include "rm-error.h"
#include "rm-paths.h"
#include "rm-qemu-args.h"
#include "rm-reconcile.h"
#include "rm-scrubber.h"
#include "rm-vm.h"

/* A claim waits at most so long for chunks that are being scrubbed or a domain that is ending. */
#define CLAIM_WAIT_SEC 60

/* Lines of the history wait so long for a transaction that takes them along. */
#define FLUSH_MSEC 500

typedef struct {
	RmDaemon *daemon;
	RmDomainXml *domain;
	GTask *task;
	guint timeout;
} Claim;

static void try_claim(Claim *claim);

/* ---- small things ---- */

void
rm_daemon_ledger_failed(const GError *error)
{
	g_critical("cannot go on without the books: %s", error ? error->message : "unknown reason");
	exit(EXIT_FAILURE);
}

static gboolean
on_flush(gpointer data)
{
	RmDaemon *daemon = data;
	g_autoptr(GError) error = NULL;

	daemon->flush_timeout = 0;
	if (!rm_ledger_flush(daemon->ledger, &error))
		rm_daemon_ledger_failed(error);
	return G_SOURCE_REMOVE;
}

void
rm_daemon_note(RmDaemon *daemon, GLogLevelFlags level, const char *uuid, const char *kind,
	       const char *format, ...)
{
	g_autofree char *text = NULL;
	va_list args;

	va_start(args, format);
	text = g_strdup_vprintf(format, args);
	va_end(args);
	g_log(G_LOG_DOMAIN, level, "%s", text);
	rm_ledger_add_event(daemon->ledger, uuid, kind, text);
	rm_daemon_flush_soon(daemon);
}

void
rm_daemon_flush_soon(RmDaemon *daemon)
{
	if (!daemon->flush_timeout)
		daemon->flush_timeout = g_timeout_add(FLUSH_MSEC, on_flush, daemon);
}

void
rm_daemon_set_events(RmDaemon *daemon, const RmDaemonEvents *events, gpointer data)
{
	daemon->events = events;
	daemon->events_data = data;
}

void
rm_daemon_emit_job(RmDaemon *daemon, const RmJob *job)
{
	if (daemon->events)
		daemon->events->job_changed(job, daemon->events_data);
}

void
rm_daemon_emit_domain(RmDaemon *daemon, const char *uuid)
{
	if (daemon->events)
		daemon->events->domain_changed(uuid, daemon->events_data);
}

void
rm_daemon_emit_channels(RmDaemon *daemon)
{
	if (daemon->events)
		daemon->events->channels_changed(daemon->events_data);
}

RmStore *
rm_daemon_store(RmDaemon *daemon, guint channel)
{
	return rm_store_find(daemon->stores,
			     rm_topology_channel(daemon->config->topology, channel)->store);
}

static RmVm *
find_by_name(RmDaemon *daemon, const char *name)
{
	GHashTableIter iter;
	gpointer vm;

	g_hash_table_iter_init(&iter, daemon->vms);
	while (g_hash_table_iter_next(&iter, NULL, &vm)) {
		if (g_str_equal(rm_vm_row(vm)->name, name))
			return vm;
	}
	return NULL;
}

static RmVm *
find_by_uuid(RmDaemon *daemon, const char *uuid)
{
	g_autofree char *lower = g_ascii_strdown(uuid, -1);

	return g_hash_table_lookup(daemon->vms, lower);
}

RmVm *
rm_daemon_find_vm(RmDaemon *daemon, const char *name_or_uuid, GError **error)
{
	RmVm *vm = find_by_uuid(daemon, name_or_uuid);

	if (!vm)
		vm = find_by_name(daemon, name_or_uuid);
	if (!vm)
		rm_error_set(error, RM_ERROR_NOT_FOUND,
			     "no domain %s has channels here: it does not exist, does not run, or "
			     "its XML has no <rr:memory>",
			     name_or_uuid);
	return vm;
}

/* ---- plans ---- */

/* Marks the channels that @other has, or is to have. */
static void
add_use(RmDaemon *daemon, RmPlanUse *use, RmVm *other)
{
	guint n = rm_topology_n_channels(daemon->config->topology), n_used = 0, part, i;
	const RmVmRow *row = rm_vm_row(other);
	const GArray *channels = rm_vm_channels(other);
	g_autofree guint *chunks = g_new0(guint, n + 1);

	rm_ledger_vm_counts(daemon->ledger, row->id, NULL, chunks);
	for (i = 0; i < channels->len; i++) {
		const RmVmChannel *c = &g_array_index(channels, RmVmChannel, i);

		chunks[c->channel] = MAX(chunks[c->channel], c->target_chunks);
		n_used += c->target_chunks != 0;
	}
	part = rm_planner_part_mbps(row->mbps, n_used);
	for (i = 0; i < n; i++) {
		if (chunks[i])
			rm_plan_use_add(&use[i], row->name, row->shared, part);
	}
}

/* Chunks that a channel can give at all. */
static guint
usable_chunks(const RmDaemon *daemon, guint channel)
{
	return rm_topology_channel(daemon->config->topology, channel)->size_chunks -
	       rm_ledger_counts(daemon->ledger)[channel].n[RM_CHUNK_QUARANTINED];
}

RmPlanUse *
rm_daemon_plan_use(RmDaemon *daemon, const RmVm *vm)
{
	guint n = rm_topology_n_channels(daemon->config->topology), i;
	RmPlanUse *use = g_new0(RmPlanUse, n + 1);
	g_autofree guint *held = g_new0(guint, n + 1);
	GHashTableIter iter;
	gpointer other;

	if (vm)
		rm_ledger_vm_counts(daemon->ledger, rm_vm_row(vm)->id, held, NULL);
	for (i = 0; i < n; i++) {
		use[i].free_chunks = usable_chunks(daemon, i) -
				     rm_ledger_counts(daemon->ledger)[i].n[RM_CHUNK_GRANTED];
		use[i].held_chunks = held[i];
		use[i].closed = rm_ledger_channel_state(daemon->ledger, i) != RM_CHANNEL_ONLINE;
	}
	g_hash_table_iter_init(&iter, daemon->vms);
	while (g_hash_table_iter_next(&iter, NULL, &other)) {
		/* What a domain that is gone had is free soon. */
		if (other != vm && rm_vm_row(other)->state != RM_VM_GONE)
			add_use(daemon, use, other);
	}
	/* What others that share are still to get is not free. */
	g_hash_table_iter_init(&iter, daemon->vms);
	while (g_hash_table_iter_next(&iter, NULL, &other)) {
		const GArray *channels = rm_vm_channels(other);
		g_autofree guint *granted = NULL;

		if (other == vm || rm_vm_row(other)->state == RM_VM_GONE ||
		    !rm_vm_row(other)->shared)
			continue;
		granted = g_new0(guint, n + 1);
		rm_ledger_vm_counts(daemon->ledger, rm_vm_row(other)->id, granted, NULL);
		for (i = 0; i < channels->len; i++) {
			const RmVmChannel *c = &g_array_index(channels, RmVmChannel, i);
			guint promised = c->target_chunks > granted[c->channel]
						 ? c->target_chunks - granted[c->channel]
						 : 0;

			use[c->channel].free_chunks -= MIN(promised, use[c->channel].free_chunks);
		}
	}
	return use;
}

RmPlanGoal
rm_daemon_goal(const RmVmRow *row)
{
	RmPlanGoal goal = {
		.capacity_chunks = row->capacity_chunks,
		.bandwidth_channels = row->mbps ? 0 : row->bandwidth_channels,
		.mbps = row->mbps,
		.shared = row->shared,
	};

	return goal;
}

GArray *
rm_daemon_plan_nodes(const RmVm *vm)
{
	const GArray *channels = rm_vm_channels(vm);
	GArray *nodes = g_array_new(FALSE, TRUE, sizeof(RmPlanNode));
	guint i;

	for (i = 0; i < channels->len; i++) {
		const RmVmChannel *c = &g_array_index(channels, RmVmChannel, i);
		RmPlanNode node = {c->channel, c->snode, c->base_chunks, c->window_chunks,
				   c->target_chunks};

		g_array_append_val(nodes, node);
	}
	return nodes;
}

/* ---- moving between channels ---- */

static gint
compare_vms(gconstpointer a, gconstpointer b)
{
	gint64 ia = rm_vm_row(*(RmVm *const *)a)->id, ib = rm_vm_row(*(RmVm *const *)b)->id;

	return ia < ib ? -1 : ia > ib;
}

GPtrArray *
rm_daemon_list_vms(RmDaemon *daemon)
{
	GPtrArray *vms = g_ptr_array_new();
	GHashTableIter iter;
	gpointer vm;

	g_hash_table_iter_init(&iter, daemon->vms);
	while (g_hash_table_iter_next(&iter, NULL, &vm))
		g_ptr_array_add(vms, vm);
	g_ptr_array_sort(vms, compare_vms);
	return vms;
}

void
rm_daemon_move_clear(RmDaemonMove *move)
{
	g_array_unref(move->nodes);
}

/* Plans over all running domains by @plan; those that it moved are returned (RmDaemonMove). */
static GArray *
plan_moves(RmDaemon *daemon, gboolean compact, guint channel, guint *ret_freed, GError **error)
{
	const RmTopology *topology = daemon->config->topology;
	g_autoptr(GPtrArray) vms = rm_daemon_list_vms(daemon);
	g_autofree RmPlanVm *plan = g_new0(RmPlanVm, vms->len + 1);
	guint n = rm_topology_n_channels(topology), i;
	g_autofree guint *usable = g_new0(guint, n + 1);
	g_autofree gboolean *closed = g_new0(gboolean, n + 1);
	GArray *moves = g_array_new(FALSE, FALSE, sizeof(RmDaemonMove));
	gboolean ok = TRUE;

	g_array_set_clear_func(moves, (GDestroyNotify)rm_daemon_move_clear);
	for (i = 0; i < n; i++) {
		usable[i] = usable_chunks(daemon, i);
		closed[i] = rm_ledger_channel_state(daemon->ledger, i) != RM_CHANNEL_ONLINE;
	}
	for (i = 0; i < vms->len; i++) {
		plan[i].name = rm_vm_row(vms->pdata[i])->name;
		plan[i].nodes = rm_daemon_plan_nodes(vms->pdata[i]);
		plan[i].goal = rm_daemon_goal(rm_vm_row(vms->pdata[i]));
	}
	if (compact)
		*ret_freed = rm_planner_compact(topology, usable, closed, plan, vms->len);
	else
		ok = rm_planner_evacuate(topology, usable, closed, plan, vms->len, channel, FALSE,
					 error);
	for (i = 0; i < vms->len; i++) {
		RmDaemonMove move = {vms->pdata[i], plan[i].nodes};

		if (ok && plan[i].moved && rm_vm_row(move.vm)->state == RM_VM_RUNNING)
			g_array_append_val(moves, move);
		else
			g_array_unref(plan[i].nodes);
	}
	if (!ok)
		g_clear_pointer(&moves, g_array_unref);
	return moves;
}

GArray *
rm_daemon_plan_compact(RmDaemon *daemon, guint *ret_freed)
{
	return plan_moves(daemon, TRUE, 0, ret_freed, NULL);
}

GArray *
rm_daemon_plan_evacuate(RmDaemon *daemon, guint channel, GError **error)
{
	return plan_moves(daemon, FALSE, channel, NULL, error);
}

/* Domains keep their capacity and bandwidth: only where it lies changes. */
gboolean
rm_daemon_apply_moves(RmDaemon *daemon, const GArray *moves, const char *kind, GArray *jobs,
		      GError **error)
{
	guint i, k;

	for (i = 0; i < moves->len; i++) {
		const RmDaemonMove *move = &g_array_index(moves, RmDaemonMove, i);
		const RmVmRow *row = rm_vm_row(move->vm);
		g_autofree guint *targets = g_new0(guint, move->nodes->len + 1);
		guint64 job;

		for (k = 0; k < move->nodes->len; k++)
			targets[k] = g_array_index(move->nodes, RmPlanNode, k).target_chunks;
		if (!rm_vm_set_target(move->vm, kind, targets, row->capacity_chunks,
				      rm_planner_n_used(move->nodes), row->mbps, &job, error))
			return FALSE;
		g_array_append_val(jobs, job);
	}
	return TRUE;
}

static guint
count_base(RmDaemon *daemon, guint channel)
{
	g_autoptr(GPtrArray) vms = rm_daemon_list_vms(daemon);
	guint base = 0, i, k;

	for (i = 0; i < vms->len; i++) {
		g_autoptr(GArray) chunks =
			rm_ledger_vm_chunks(daemon->ledger, rm_vm_row(vms->pdata[i])->id);

		for (k = 0; k < chunks->len; k++) {
			const RmChunk *c = &g_array_index(chunks, RmChunk, k);

			base += c->channel == channel && c->base && c->state == RM_CHUNK_GRANTED;
		}
	}
	return base;
}

gboolean
rm_daemon_set_channel_state(RmDaemon *daemon, guint channel, RmChannelState state, GError **error)
{
	const char *name = rm_topology_channel(daemon->config->topology, channel)->name;
	guint granted = rm_ledger_counts(daemon->ledger)[channel].n[RM_CHUNK_GRANTED];
	guint base = count_base(daemon, channel);

	if (state == RM_CHANNEL_OFFLINE && granted) {
		rm_error_set(error, RM_ERROR_BUSY,
			     "channel %s has %u chunks of domains, %u of them base memory, which "
			     "leaves only by migration: set it draining first, and offline when it "
			     "is empty",
			     name, granted, base);
		return FALSE;
	}
	if (!rm_ledger_set_channel_state(daemon->ledger, channel, state, error))
		return FALSE;
	rm_daemon_note(daemon, G_LOG_LEVEL_INFO, NULL, "channel", "channel %s is %s", name,
		       rm_channel_state_name(state));
	rm_daemon_emit_channels(daemon);
	rm_daemon_settle(daemon);
	return TRUE;
}

/* ---- reconciling ---- */

void
rm_daemon_add_reconcile_line(GVariantBuilder *lines, const char *vm, const char *channel,
			     RmReconcileCase c, guint n_chunks)
{
	const RmReconcileRule *rule = rm_reconcile_rule(c);
	g_auto(GVariantDict) dict = G_VARIANT_DICT_INIT(NULL);

	g_variant_dict_insert(&dict, "vm", "s", vm);
	g_variant_dict_insert(&dict, "channel", "s", channel);
	g_variant_dict_insert(&dict, "chunks", "u", n_chunks);
	g_variant_dict_insert(&dict, "case", "s", rule->name);
	g_variant_dict_insert(&dict, "action", "s", rm_reconcile_action_name(rule->action));
	g_variant_dict_insert(&dict, "when", "s", rule->when);
	g_variant_dict_insert(&dict, "then", "s", rule->then);
	g_variant_builder_add_value(lines, g_variant_dict_end(&dict));
}

GVariant *
rm_daemon_reconcile(RmDaemon *daemon, gboolean dry_run)
{
	const RmChannelCounts *counts = rm_ledger_counts(daemon->ledger);
	g_autoptr(GPtrArray) vms = rm_daemon_list_vms(daemon);
	GVariantBuilder lines;
	guint i;

	g_variant_builder_init(&lines, G_VARIANT_TYPE("aa{sv}"));
	for (i = 0; i < vms->len; i++)
		rm_vm_reconcile(vms->pdata[i], dry_run, &lines);
	for (i = 0; i < rm_topology_n_channels(daemon->config->topology); i++) {
		const char *name = rm_topology_channel(daemon->config->topology, i)->name;
		guint dirty = counts[i].n[RM_CHUNK_RELEASED] + counts[i].n[RM_CHUNK_SCRUBBING];
		guint bad = counts[i].n[RM_CHUNK_QUARANTINED], k;

		for (k = 0; k < vms->len; k++) {
			g_autoptr(GArray) chunks =
				rm_ledger_vm_chunks(daemon->ledger, rm_vm_row(vms->pdata[k])->id);
			guint j;

			for (j = 0; j < chunks->len; j++) {
				const RmChunk *c = &g_array_index(chunks, RmChunk, j);

				bad -= c->channel == i && c->state == RM_CHUNK_QUARANTINED;
			}
		}
		if (dirty)
			rm_daemon_add_reconcile_line(&lines, "", name, RM_CASE_SCRUB_HALF, dirty);
		if (bad)
			rm_daemon_add_reconcile_line(&lines, "", name, RM_CASE_IN_USE, bad);
	}
	if (!dry_run)
		rm_scrubber_kick(daemon->scrubber);
	return g_variant_builder_end(&lines);
}

/* ---- claims ---- */

static void
claim_free(Claim *claim)
{
	g_clear_handle_id(&claim->timeout, g_source_remove);
	rm_domain_xml_free(claim->domain);
	g_object_unref(claim->task);
	g_free(claim);
}
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Claim, claim_free)

static void
claim_fail(Claim *claim, GError *error)
{
	g_queue_remove(&claim->daemon->claims, claim);
	g_info("claim of domain %s refused: %s", claim->domain->name, error->message);
	g_task_return_error(claim->task, error);
	claim_free(claim);
}

static gboolean
on_claim_wait_over(gpointer data)
{
	Claim *claim = data;
	GError *error = NULL;

	claim->timeout = 0;
	rm_error_set(&error, RM_ERROR_BUSY,
		     "domain %s: the chunks that it needs were not free after %d s; try again",
		     claim->domain->name, CLAIM_WAIT_SEC);
	claim_fail(claim, error);
	return G_SOURCE_REMOVE;
}

static RmPlanRequest
make_request(const RmDomainXml *d)
{
	RmPlanRequest request = {
		.name = d->name,
		.capacity_chunks = (guint)(d->capacity_bytes / RM_CHUNK_BYTES),
		.capacity_min_chunks = (guint)(d->capacity_min_bytes / RM_CHUNK_BYTES),
		.capacity_max_chunks = (guint)(d->capacity_max_bytes / RM_CHUNK_BYTES),
		.bandwidth_channels = d->bandwidth_channels,
		.bandwidth_min_channels = d->bandwidth_channels_min,
		.bandwidth_max_channels = d->bandwidth_channels_max,
		.base_chunks = (guint)(d->base_bytes / RM_CHUNK_BYTES),
		.sockets = d->sockets_auto ? 0 : d->sockets,
		.tier_dimm = d->tier_dimm,
		.tier_cxl = d->tier_cxl,
		.vcpus = d->vcpus,
		.shared = !d->share_exclusive,
	};

	if (d->bandwidth_unit == RM_BANDWIDTH_MBPS) {
		request.mbps = (guint)MIN(d->bandwidth_mbps, G_MAXINT32);
		request.bandwidth_channels = 0;
		request.bandwidth_min_channels = 1;
		request.bandwidth_max_channels = 0;
	}
	return request;
}

/*
 * An older domain of the same UUID or name. TRUE: *ret_wait says whether it is to be waited for.
 */
static gboolean
check_older(RmDaemon *daemon, const RmDomainXml *d, gboolean *ret_wait, GError **error)
{
	RmVm *same = find_by_uuid(daemon, d->uuid);
	RmVm *vm = same ? same : find_by_name(daemon, d->name);

	*ret_wait = vm != NULL;
	if (!vm)
		return TRUE;
	/* A start that came to nothing: libvirt does not begin two of one domain at once. */
	if (same && rm_vm_row(vm)->state == RM_VM_CLAIMED)
		rm_vm_drop(vm, "its claim is replaced by a new one");
	if (same && rm_vm_check_process(vm)) {
		rm_error_set(error, RM_ERROR_BUSY, "domain %s runs already as process %d", d->name,
			     rm_vm_row(vm)->pid);
		return FALSE;
	}
	if (!same && rm_vm_row(vm)->state != RM_VM_GONE) {
		rm_error_set(error, RM_ERROR_BUSY,
			     "domain %s: another domain of this name (%s) has channels", d->name,
			     rm_vm_row(vm)->uuid);
		return FALSE;
	}
	return TRUE;
}

/* Whether all of a plan is clean now. */
static gboolean
plan_is_clean(RmDaemon *daemon, const GArray *nodes)
{
	const RmChannelCounts *counts = rm_ledger_counts(daemon->ledger);
	guint i;

	for (i = 0; i < nodes->len; i++) {
		const RmPlanNode *node = &g_array_index(nodes, RmPlanNode, i);

		if (counts[node->channel].n[RM_CHUNK_FREE] < node->target_chunks)
			return FALSE;
	}
	return TRUE;
}

static RmVmRow *
make_row(const RmDomainXml *d, const RmPlanRequest *request, const GArray *nodes)
{
	RmVmRow *row = g_new0(RmVmRow, 1);

	row->shared = request->shared;
	row->mbps = request->mbps;
	if (row->mbps) {
		row->mbps_min = (guint)MIN(d->bandwidth_mbps_min, G_MAXINT32);
		row->mbps_max = d->bandwidth_mbps_max
					? (guint)MIN(d->bandwidth_mbps_max, G_MAXINT32)
					: G_MAXINT32;
	}

	row->uuid = g_ascii_strdown(d->uuid, -1);
	row->name = g_strdup(d->name);
	row->machine = g_strdup(d->machine);
	row->vcpus = d->vcpus;
	row->generation = 1;
	row->claimed_usec = g_get_real_time();
	row->capacity_chunks = request->capacity_chunks;
	row->capacity_min_chunks = request->capacity_min_chunks;
	row->capacity_max_chunks = request->capacity_max_chunks;
	row->bandwidth_channels = rm_planner_n_used(nodes);
	row->bandwidth_min_channels = request->bandwidth_min_channels;
	row->bandwidth_max_channels =
		request->bandwidth_max_channels ? request->bandwidth_max_channels : nodes->len;
	return row;
}

static GArray *
make_channels(const GArray *nodes)
{
	GArray *channels = g_array_new(FALSE, TRUE, sizeof(RmVmChannel));
	guint i;

	for (i = 0; i < nodes->len; i++) {
		const RmPlanNode *node = &g_array_index(nodes, RmPlanNode, i);
		RmVmChannel c = {
			.channel = node->channel,
			.cnode = i,
			.snode = node->snode,
			.base_chunks = node->base_chunks,
			.window_chunks = node->window_chunks,
			.target_chunks = node->target_chunks,
		};

		g_array_append_val(channels, c);
	}
	return channels;
}

static RmJob *
make_job(const RmVmRow *row, const char *kind)
{
	RmJob *job = g_new0(RmJob, 1);

	job->uuid = g_strdup(row->uuid);
	job->name = g_strdup(row->name);
	job->kind = g_strdup(kind);
	job->message = g_strdup("");
	job->created_usec = g_get_real_time();
	return job;
}

/* What Start() will have to say can be said; better no claim than a domain that starts half. */
static gboolean
check_arguments(RmDaemon *daemon, const RmVmRow *row, const GArray *channels, GError **error)
{
	g_autofree char *path = rm_paths_vm_socket(daemon->config->runtime_dir, row->uuid);
	g_auto(GStrv) args =
		rm_qemu_args_build(daemon->config->topology, row, channels, path, error);

	return args != NULL;
}

/* The claim, all in one transaction. */
static gboolean
record_claim(RmDaemon *daemon, RmVmRow *row, const GArray *channels, RmJob *job, GError **error)
{
	g_autoptr(RmLedgerTx) tx = rm_ledger_begin(daemon->ledger, error);
	g_autoptr(GArray) granted = g_array_new(FALSE, FALSE, sizeof(RmChunk));
	guint i, want = 0;

	if (!tx ||
	    !rm_ledger_add_vm(daemon->ledger, row, (const RmVmChannel *)(gpointer)channels->data,
			      channels->len, error))
		return FALSE;
	for (i = 0; i < channels->len; i++) {
		const RmVmChannel *c = &g_array_index(channels, RmVmChannel, i);

		want += c->target_chunks;
		if (!rm_ledger_grant(daemon->ledger, row->id, c->channel, c->base_chunks, TRUE,
				     granted, error) ||
		    !rm_ledger_grant(daemon->ledger, row->id, c->channel,
				     c->target_chunks - c->base_chunks, FALSE, granted, error))
			return FALSE;
	}
	if (granted->len != want) {
		rm_error_set(error, RM_ERROR_NO_SPACE, "%u chunks are wanted, %u are free", want,
			     granted->len);
		return FALSE;
	}
	return rm_ledger_add_job(daemon->ledger, job, error) && rm_ledger_commit(&tx, error);
}

static void
on_claim_prepared(RmVm *vm, const GError *error, gpointer data)
{
	g_autoptr(GTask) task = data;

	if (error) {
		GError *copy = g_error_copy(error);

		g_prefix_error(&copy, "domain %s: ", rm_vm_row(vm)->name);
		g_task_return_error(task, copy);
		rm_vm_drop(vm, error->message);
	} else if (rm_vm_row(vm)->state == RM_VM_GONE) {
		g_task_return_new_error(task, RM_ERROR, RM_ERROR_BUSY,
					"domain %s: the claim was dropped meanwhile",
					rm_vm_row(vm)->name);
	} else {
		g_task_return_boolean(task, TRUE);
	}
}

/* Places and records the claim and has its memory prepared. Takes the claim's task. */
static gboolean
begin_claim(Claim *claim, GArray *nodes, GError **error)
{
	RmDaemon *daemon = claim->daemon;
	RmPlanRequest request = make_request(claim->domain);
	g_autoptr(RmVmRow) row = make_row(claim->domain, &request, nodes);
	g_autoptr(GArray) channels = make_channels(nodes);
	g_autoptr(RmJob) job = make_job(row, "start");
	RmVm *vm;

	if (!check_arguments(daemon, row, channels, error) ||
	    !record_claim(daemon, row, channels, job, error))
		return FALSE;
	rm_daemon_note(daemon, G_LOG_LEVEL_INFO, row->uuid, "claim",
		       "domain %s: claimed %u chunks on %u channels", row->name,
		       row->capacity_chunks, row->bandwidth_channels);
	rm_daemon_emit_job(daemon, job);
	vm = rm_vm_new(daemon, g_steal_pointer(&row), g_steal_pointer(&channels),
		       g_steal_pointer(&job));
	g_hash_table_insert(daemon->vms, g_strdup(rm_vm_row(vm)->uuid), vm);
	rm_vm_prepare(vm, on_claim_prepared, g_object_ref(claim->task));
	rm_daemon_emit_domain(daemon, rm_vm_row(vm)->uuid);
	rm_daemon_emit_channels(daemon);
	return TRUE;
}

static void
try_claim(Claim *claim)
{
	RmDaemon *daemon = claim->daemon;
	RmPlanRequest request = make_request(claim->domain);
	g_autofree RmPlanUse *use = NULL;
	g_autoptr(GArray) nodes = NULL;
	GError *error = NULL;
	gboolean wait;

	if (!check_older(daemon, claim->domain, &wait, &error)) {
		claim_fail(claim, error);
		return;
	}
	if (wait)
		return;
	use = rm_daemon_plan_use(daemon, NULL);
	nodes = rm_planner_place(daemon->config->topology, use, &request, &error);
	if (!nodes) {
		claim_fail(claim, error);
		return;
	}
	if (!plan_is_clean(daemon, nodes))
		return;
	if (!begin_claim(claim, nodes, &error)) {
		claim_fail(claim, error);
		return;
	}
	g_queue_remove(&daemon->claims, claim);
	claim_free(claim);
}

void
rm_daemon_claim(RmDaemon *daemon, RmDomainXml *domain, GTask *task)
{
	Claim *claim = g_new0(Claim, 1);

	claim->daemon = daemon;
	claim->domain = domain;
	claim->task = g_object_ref(task);
	claim->timeout = g_timeout_add_seconds(CLAIM_WAIT_SEC, on_claim_wait_over, claim);
	g_queue_push_tail(&daemon->claims, claim);
	try_claim(claim);
}

/* ---- releases ---- */

/* Claims of that domain that still wait. */
static void
cancel_claims(RmDaemon *daemon, const char *uuid)
{
	GList *l, *next;

	for (l = daemon->claims.head; l; l = next) {
		Claim *claim = l->data;
		GError *error = NULL;

		next = l->next;
		if (g_ascii_strcasecmp(claim->domain->uuid, uuid) != 0)
			continue;
		rm_error_set(&error, RM_ERROR_BUSY, "domain %s was released while it waited",
			     claim->domain->name);
		claim_fail(claim, error);
	}
}

void
rm_daemon_release(RmDaemon *daemon, const char *uuid, GTask *task)
{
	RmVm *vm = find_by_uuid(daemon, uuid);

	cancel_claims(daemon, uuid);
	if (!vm) {
		g_task_return_boolean(task, TRUE);
		return;
	}
	g_object_set_data_full(G_OBJECT(task), "uuid", g_strdup(rm_vm_row(vm)->uuid), g_free);
	g_queue_push_tail(&daemon->releases, g_object_ref(task));
	if (rm_vm_row(vm)->state == RM_VM_CLAIMED)
		rm_vm_drop(vm, "released before it was started");
}

/* Answers those whose domain is no more. */
static void
settle_releases(RmDaemon *daemon)
{
	GList *l, *next;

	for (l = daemon->releases.head; l; l = next) {
		g_autoptr(GTask) task = NULL;
		const char *uuid = g_object_get_data(l->data, "uuid");

		next = l->next;
		if (g_hash_table_contains(daemon->vms, uuid))
			continue;
		task = l->data;
		g_queue_delete_link(&daemon->releases, l);
		g_task_return_boolean(task, TRUE);
	}
}

/* Removes a domain that is gone once no chunk names it. */
static gboolean
try_remove(RmDaemon *daemon, RmVm *vm)
{
	g_autoptr(GError) error = NULL;
	g_autoptr(GArray) chunks = NULL;

	if (rm_vm_row(vm)->state != RM_VM_GONE)
		return FALSE;
	chunks = rm_ledger_vm_chunks(daemon->ledger, rm_vm_row(vm)->id);
	if (chunks->len)
		return FALSE;
	if (!rm_ledger_remove_vm(daemon->ledger, rm_vm_row(vm)->id, &error))
		rm_daemon_ledger_failed(error);
	return TRUE;
}

static gboolean
on_settle(gpointer data)
{
	RmDaemon *daemon = data;
	GList *l, *next;
	GHashTableIter iter;
	gpointer vm;

	daemon->settle_idle = 0;
	g_hash_table_iter_init(&iter, daemon->vms);
	while (g_hash_table_iter_next(&iter, NULL, &vm)) {
		if (try_remove(daemon, vm)) {
			g_autofree char *uuid = g_strdup(rm_vm_row(vm)->uuid);

			g_hash_table_iter_remove(&iter);
			rm_daemon_emit_domain(daemon, uuid);
		} else {
			rm_vm_kick(vm);
		}
	}
	settle_releases(daemon);
	for (l = daemon->claims.head; l; l = next) {
		next = l->next;
		try_claim(l->data);
	}
	return G_SOURCE_REMOVE;
}

void
rm_daemon_settle(RmDaemon *daemon)
{
	if (!daemon->settle_idle)
		daemon->settle_idle = g_idle_add(on_settle, daemon);
}

/* ---- start and end ---- */

static gboolean
open_stores(RmDaemon *daemon, GError **error)
{
	const RmConfig *config = daemon->config;
	guint i;

	for (i = 0; i < config->stores->len; i++) {
		RmStore *store = rm_store_open(g_ptr_array_index(config->stores, i),
					       config->topology, error);

		if (!store)
			return FALSE;
		g_ptr_array_add(daemon->stores, store);
	}
	return rm_store_check_room(daemon->stores, config->topology, error);
}

/*
 * Chunks that are new in the books may be somebody's all the same (a lost ledger): those that a
 * process still has are set aside, the others are taken back and scrubbed as any dirty chunk.
 */
static gboolean
check_added(RmDaemon *daemon, GError **error)
{
	const GArray *added = rm_ledger_added(daemon->ledger);
	guint i, n = 0;

	for (i = 0; i < added->len; i++) {
		const RmChunk *c = &g_array_index(added, RmChunk, i);
		const char *name = rm_topology_channel(daemon->config->topology, c->channel)->name;
		gboolean in_use;
		RmChunk now;

		if (!rm_store_in_use(rm_daemon_store(daemon, c->channel), name, c->chunk, &in_use,
				     error))
			return FALSE;
		if (rm_ledger_get_chunk(daemon->ledger, c->channel, c->chunk, &now, NULL) && now.vm)
			continue; /* adopted */
		if (rm_reconcile_rule(rm_reconcile_added(0, in_use))->action !=
		    RM_ACTION_QUARANTINE)
			continue;
		n++;
		if (!rm_ledger_quarantine(daemon->ledger, c->channel, c->chunk, 0, error))
			return FALSE;
	}
	if (n)
		rm_daemon_note(daemon, G_LOG_LEVEL_WARNING, NULL, "quarantine",
			       "%u chunks are in use by processes that the ledger does not know; "
			       "nobody gets them before the next boot of this host",
			       n);
	return TRUE;
}

static gboolean
check_boot(RmDaemon *daemon, GError **error)
{
	g_autofree char *then = rm_ledger_boot_id(daemon->ledger, error);
	g_autofree char *now = NULL;

	if (!then || !g_file_get_contents("/proc/sys/kernel/random/boot_id", &now, NULL, error))
		return FALSE;
	g_strchomp(now);
	if (g_str_equal(then, now))
		return TRUE;
	if (*then)
		rm_daemon_note(daemon, G_LOG_LEVEL_INFO, NULL, "boot",
			       "the host was booted: no domain of before runs, no chunk is clean");
	return rm_ledger_new_boot(daemon->ledger, now, error);
}

/* What an earlier rmd had begun to scrub is begun again. */
static gboolean
restart_scrubbing(RmDaemon *daemon, GError **error)
{
	g_autoptr(GArray) chunks =
		rm_ledger_chunks_in_state(daemon->ledger, RM_CHUNK_SCRUBBING, G_MAXUINT);
	g_autoptr(RmLedgerTx) tx = NULL;
	guint i;

	tx = rm_ledger_begin(daemon->ledger, error);
	for (i = 0; tx && i < chunks->len; i++) {
		const RmChunk *c = &g_array_index(chunks, RmChunk, i);

		if (!rm_ledger_set_state(daemon->ledger, c->channel, c->chunk, RM_CHUNK_RELEASED,
					 error))
			return FALSE;
	}
	return tx && rm_ledger_commit(&tx, error);
}

/* Jobs of domains that the ledger has no more (a crash between the two). */
static gboolean
fail_orphan_jobs(RmDaemon *daemon, GError **error)
{
	g_autoptr(GPtrArray) jobs = rm_ledger_list_jobs(daemon->ledger, error);
	guint i;

	for (i = 0; jobs && i < jobs->len; i++) {
		RmJob *job = g_ptr_array_index(jobs, i);

		if (job->state != RM_JOB_RUNNING || g_hash_table_contains(daemon->vms, job->uuid))
			continue;
		job->state = RM_JOB_FAILED;
		job->finished_usec = g_get_real_time();
		g_free(job->message);
		job->message = g_strdup("the domain is gone");
		if (!rm_ledger_update_job(daemon->ledger, job, error))
			return FALSE;
	}
	return jobs != NULL;
}

static gboolean
load_vms(RmDaemon *daemon, GError **error)
{
	g_autoptr(GPtrArray) rows = rm_ledger_list_vms(daemon->ledger, error);
	guint i;

	for (i = 0; rows && i < rows->len; i++) {
		const RmVmRow *row = g_ptr_array_index(rows, i);
		GArray *channels = rm_ledger_vm_channels(daemon->ledger, row->id, error);
		g_autoptr(GError) local = NULL;
		RmJob *job;
		RmVm *vm;

		if (!channels)
			return FALSE;
		job = rm_ledger_running_job(daemon->ledger, row->uuid, &local);
		if (local) {
			g_propagate_error(error, g_steal_pointer(&local));
			g_array_unref(channels);
			return FALSE;
		}
		vm = rm_vm_new(daemon, rm_vm_row_copy(row), channels, job);
		g_hash_table_insert(daemon->vms, g_strdup(rm_vm_row(vm)->uuid), vm);
	}
	return rows != NULL;
}

/*
 * Damaged books are no books: they are set aside for people, and what runs tells what there is to
 * know, as when they are lost.
 */
static RmLedger *
open_ledger(const char *path, const RmTopology *topology, GError **error)
{
	static const char *const suffixes[] = {"", "-wal", "-shm"};
	g_autoptr(GError) local = NULL;
	RmLedger *ledger = rm_ledger_open(path, topology, &local);
	gint64 now_sec = g_get_real_time() / G_USEC_PER_SEC;
	guint i;

	if (ledger || !g_error_matches(local, RM_ERROR, RM_ERROR_DAMAGED)) {
		if (!ledger)
			g_propagate_error(error, g_steal_pointer(&local));
		return ledger;
	}
	g_critical("%s; it is set aside as %s.damaged-%" G_GINT64_FORMAT
		   " and made again from what runs",
		   local->message, path, now_sec);
	for (i = 0; i < G_N_ELEMENTS(suffixes); i++) {
		g_autofree char *from = g_strconcat(path, suffixes[i], NULL);
		g_autofree char *to = g_strdup_printf("%s.damaged-%" G_GINT64_FORMAT "%s", path,
						      now_sec, suffixes[i]);

		if (rename(from, to) < 0 && errno != ENOENT) {
			rm_error_set(error, RM_ERROR_FAILED, "cannot rename %s: %s", from,
				     g_strerror(errno));
			return NULL;
		}
	}
	return rm_ledger_open(path, topology, error);
}

static gboolean
adopt(RmDaemon *daemon, GError **error)
{
	guint n = 0;

	return !rm_ledger_is_new(daemon->ledger) || rm_adopt_running(daemon, &n, error);
}

RmDaemon *
rm_daemon_new(const RmConfig *config, GError **error)
{
	g_autoptr(RmDaemon) daemon = g_new0(RmDaemon, 1);
	g_autofree char *path = rm_paths_ledger(config->state_dir);
	GHashTableIter iter;
	gpointer vm;

	daemon->config = config;
	daemon->stores = g_ptr_array_new_with_free_func((GDestroyNotify)rm_store_free);
	daemon->vms =
		g_hash_table_new_full(g_str_hash, g_str_equal, g_free, (GDestroyNotify)rm_vm_free);
	g_queue_init(&daemon->claims);
	g_queue_init(&daemon->releases);
	daemon->scrubber = rm_scrubber_new(daemon);
	if (!open_stores(daemon, error))
		return NULL;
	daemon->ledger = open_ledger(path, config->topology, error);
	if (!daemon->ledger || !check_boot(daemon, error) || !adopt(daemon, error) ||
	    !check_added(daemon, error) || !restart_scrubbing(daemon, error) ||
	    !load_vms(daemon, error) || !fail_orphan_jobs(daemon, error))
		return NULL;
	g_hash_table_iter_init(&iter, daemon->vms);
	while (g_hash_table_iter_next(&iter, NULL, &vm))
		rm_vm_resume(vm);
	rm_scrubber_kick(daemon->scrubber);
	rm_daemon_settle(daemon);
	return g_steal_pointer(&daemon);
}

void
rm_daemon_free(RmDaemon *daemon)
{
	if (!daemon)
		return;
	daemon->events = NULL;
	rm_scrubber_free(daemon->scrubber);
	g_clear_handle_id(&daemon->settle_idle, g_source_remove);
	while (!g_queue_is_empty(&daemon->claims)) {
		GError *error = NULL;

		rm_error_set(&error, RM_ERROR_FAILED, "rmd is ending");
		claim_fail(g_queue_peek_head(&daemon->claims), error);
	}
	g_queue_clear_full(&daemon->releases, g_object_unref);
	g_hash_table_unref(daemon->vms);
	g_clear_handle_id(&daemon->settle_idle, g_source_remove);
	g_clear_handle_id(&daemon->flush_timeout, g_source_remove);
	g_ptr_array_unref(daemon->stores);
	rm_ledger_free(daemon->ledger);
	g_free(daemon);
}
