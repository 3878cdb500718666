/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "rm-bus-server.h"

#include <errno.h>
#include <glib/gstdio.h>
#include <grp.h>
#include <pwd.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rm-bus.h"
#include "rm-log.h"
#include "rm-paths.h"
#include "rm-scrubber.h"
#include "rm-vm.h"

/* Members may do all that root may; this user may look. Where they do not exist nobody is. */
#define OPERATORS "ramryder"
#define READER    "rmd-exporter"

typedef enum { ROLE_NONE, ROLE_START, ROLE_READ, ROLE_ALL } Role;

struct RmBusServer {
	RmDaemon *daemon;
	RmManager1 *skeleton;
	GDBusServer *server;
	GDBusAuthObserver *observer;
	gboolean has_qemu_uid;
	uid_t qemu_uid;
	gboolean has_reader_uid;
	uid_t reader_uid;
	gboolean has_group;
	gid_t group;
	char *path;
};

/* ---- options of Resize and PlanResize ---- */

typedef struct {
	gboolean has_capacity;
	guint64 capacity_bytes;
	gboolean has_bandwidth;
	guint32 bandwidth_channels;
	gboolean has_mbps;
	guint32 mbps;
	GVariant *layout; /* a{su} or NULL */
	gboolean dry_run;
	gboolean has_generation;
	guint64 expected_generation;
} Options;

static void
options_clear(Options *o)
{
	g_clear_pointer(&o->layout, g_variant_unref);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Options, options_clear)

static gboolean
read_option(Options *o, const char *key, GVariant *value, GError **error)
{
	const char *type = NULL;

	if (g_str_equal(key, "capacity-bytes")) {
		type = "t";
		o->has_capacity = g_variant_is_of_type(value, G_VARIANT_TYPE_UINT64);
		if (o->has_capacity)
			o->capacity_bytes = g_variant_get_uint64(value);
	} else if (g_str_equal(key, "bandwidth-channels")) {
		type = "u";
		o->has_bandwidth = g_variant_is_of_type(value, G_VARIANT_TYPE_UINT32);
		if (o->has_bandwidth)
			o->bandwidth_channels = g_variant_get_uint32(value);
	} else if (g_str_equal(key, "bandwidth-mbps")) {
		type = "u";
		o->has_mbps = g_variant_is_of_type(value, G_VARIANT_TYPE_UINT32);
		if (o->has_mbps)
			o->mbps = g_variant_get_uint32(value);
	} else if (g_str_equal(key, "layout")) {
		type = "a{su}";
		if (g_variant_is_of_type(value, G_VARIANT_TYPE("a{su}")))
			o->layout = g_variant_ref(value);
	} else if (g_str_equal(key, "dry-run")) {
		type = "b";
		if (g_variant_is_of_type(value, G_VARIANT_TYPE_BOOLEAN))
			o->dry_run = g_variant_get_boolean(value);
	} else if (g_str_equal(key, "expected-generation")) {
		type = "t";
		o->has_generation = g_variant_is_of_type(value, G_VARIANT_TYPE_UINT64);
		if (o->has_generation)
			o->expected_generation = g_variant_get_uint64(value);
	}
	if (!type) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "option %s is unknown; known: capacity-bytes, bandwidth-channels, "
			     "bandwidth-mbps, layout, dry-run, expected-generation",
			     key);
		return FALSE;
	}
	if (!g_variant_is_of_type(value, G_VARIANT_TYPE(type))) {
		rm_error_set(error, RM_ERROR_INVALID, "option %s has type %s, it must have %s", key,
			     g_variant_get_type_string(value), type);
		return FALSE;
	}
	return TRUE;
}

static gboolean
read_options(Options *o, GVariant *options, GError **error)
{
	GVariantIter iter;
	const char *key;
	GVariant *value;

	g_variant_iter_init(&iter, options);
	while (g_variant_iter_next(&iter, "{&sv}", &key, &value)) {
		g_autoptr(GVariant) owned = value;

		if (!read_option(o, key, owned, error))
			return FALSE;
	}
	if (o->layout && (o->has_capacity || o->has_bandwidth || o->has_mbps)) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "layout and capacity-bytes or bandwidth exclude each other");
		return FALSE;
	}
	if (o->has_bandwidth && o->has_mbps) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "bandwidth-channels and bandwidth-mbps exclude each other");
		return FALSE;
	}
	if (!o->layout && !o->has_capacity && !o->has_bandwidth && !o->has_mbps) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "nothing to change: give capacity-bytes, bandwidth-channels, "
			     "bandwidth-mbps or layout");
		return FALSE;
	}
	return TRUE;
}

/* ---- plans ---- */

typedef struct {
	GArray *nodes; /* of RmPlanNode, by cNode */
	guint capacity_chunks;
	guint bandwidth_channels;
	guint mbps;
} Plan;

static void
plan_clear(Plan *p)
{
	g_clear_pointer(&p->nodes, g_array_unref);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Plan, plan_clear)

static gboolean
check_capacity(const RmVmRow *row, guint chunks, GError **error)
{
	g_autofree char *want = NULL;
	g_autofree char *min = NULL;
	g_autofree char *max = NULL;

	if (chunks >= row->capacity_min_chunks && chunks <= row->capacity_max_chunks)
		return TRUE;
	want = rm_size_format(chunks * RM_CHUNK_BYTES);
	min = rm_size_format(row->capacity_min_chunks * RM_CHUNK_BYTES);
	max = rm_size_format(row->capacity_max_chunks * RM_CHUNK_BYTES);
	rm_error_set(error, RM_ERROR_INVALID,
		     "domain %s: a capacity of %s is not within its min of %s and max of %s",
		     row->name, want, min, max);
	return FALSE;
}

static gboolean
plan_by_hand(RmDaemon *daemon, const RmVm *vm, const RmPlanUse *use, GVariant *layout, Plan *plan,
	     GError **error)
{
	const RmTopology *topology = daemon->config->topology;
	GVariantIter iter;
	const char *name;
	guint32 chunks;
	guint i;

	g_variant_iter_init(&iter, layout);
	while (g_variant_iter_next(&iter, "{&su}", &name, &chunks)) {
		if (!rm_planner_set(topology, use, plan->nodes, rm_vm_row(vm)->shared, name, chunks,
				    error))
			return FALSE;
	}
	plan->capacity_chunks = 0;
	plan->bandwidth_channels = 0;
	for (i = 0; i < plan->nodes->len; i++) {
		const RmPlanNode *node = &g_array_index(plan->nodes, RmPlanNode, i);

		plan->capacity_chunks += node->target_chunks;
		plan->bandwidth_channels += node->target_chunks != 0;
	}
	return check_capacity(rm_vm_row(vm), plan->capacity_chunks, error);
}

static gboolean
plan_even(RmDaemon *daemon, const RmVm *vm, const RmPlanUse *use, const Options *o, Plan *plan,
	  GError **error)
{
	const RmVmRow *row = rm_vm_row(vm);
	RmPlanGoal goal = rm_daemon_goal(row);

	if (o->has_capacity && !rm_size_check_chunks("capacity-bytes", o->capacity_bytes, error))
		return FALSE;
	if (o->has_capacity && o->capacity_bytes / RM_CHUNK_BYTES > G_MAXINT32) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "capacity-bytes: %" G_GUINT64_FORMAT " is more than any domain has",
			     o->capacity_bytes);
		return FALSE;
	}
	plan->capacity_chunks = o->has_capacity ? (guint)(o->capacity_bytes / RM_CHUNK_BYTES)
						: row->capacity_chunks;
	plan->mbps = o->has_mbps ? o->mbps : o->has_bandwidth ? 0 : row->mbps;
	goal.mbps = plan->mbps;
	goal.capacity_chunks = plan->capacity_chunks;
	goal.bandwidth_channels = o->has_bandwidth ? o->bandwidth_channels
				  : plan->mbps     ? 0
						   : row->bandwidth_channels;
	if (o->has_mbps && row->mbps_max && (o->mbps < row->mbps_min || o->mbps > row->mbps_max)) {
		rm_error_set(
			error, RM_ERROR_INVALID,
			"domain %s: a bandwidth of %u MB/s is not within its min of %u and max "
			"of %u",
			row->name, o->mbps, row->mbps_min, row->mbps_max);
		return FALSE;
	}
	if (o->has_capacity && !check_capacity(row, plan->capacity_chunks, error))
		return FALSE;
	if (o->has_bandwidth && (o->bandwidth_channels < row->bandwidth_min_channels ||
				 o->bandwidth_channels > row->bandwidth_max_channels)) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "domain %s: a bandwidth of %u channels is not within its min of %u "
			     "and max of %u",
			     row->name, o->bandwidth_channels, row->bandwidth_min_channels,
			     row->bandwidth_max_channels);
		return FALSE;
	}
	if (!rm_planner_resize(daemon->config->topology, use, plan->nodes, &goal, error)) {
		g_prefix_error(error, "domain %s: ", row->name);
		return FALSE;
	}
	plan->bandwidth_channels = rm_planner_n_used(plan->nodes);
	return TRUE;
}

static gboolean
make_plan(RmDaemon *daemon, RmVm *vm, const Options *o, Plan *plan, GError **error)
{
	const RmVmRow *row = rm_vm_row(vm);
	g_autofree RmPlanUse *use = NULL;

	if (row->state != RM_VM_RUNNING) {
		rm_error_set(error, RM_ERROR_BUSY, "domain %s is %s, not running", row->name,
			     rm_vm_state_name(row->state));
		return FALSE;
	}
	if (o->has_generation && o->expected_generation != row->generation) {
		rm_error_set(error, RM_ERROR_STALE,
			     "domain %s has generation %" G_GUINT64_FORMAT ", %" G_GUINT64_FORMAT
			     " was expected: look at it again",
			     row->name, row->generation, o->expected_generation);
		return FALSE;
	}
	use = rm_daemon_plan_use(daemon, vm);
	plan->nodes = rm_daemon_plan_nodes(vm);
	return o->layout ? plan_by_hand(daemon, vm, use, o->layout, plan, error)
			 : plan_even(daemon, vm, use, o, plan, error);
}

/* ---- methods ---- */

static gboolean
fail(GDBusMethodInvocation *invocation, GError *error)
{
	g_dbus_method_invocation_take_error(invocation, error);
	return G_DBUS_METHOD_INVOCATION_HANDLED;
}

/* Names of the domains with chunks on each channel of the topology. */
static void
channel_users(RmDaemon *daemon, GPtrArray **users)
{
	guint n = rm_topology_n_channels(daemon->config->topology), i;
	g_autofree guint *chunks = g_new(guint, n + 1);
	GHashTableIter iter;
	gpointer vm;

	g_hash_table_iter_init(&iter, daemon->vms);
	while (g_hash_table_iter_next(&iter, NULL, &vm)) {
		memset(chunks, 0, (n + 1) * sizeof(*chunks));
		rm_ledger_vm_counts(daemon->ledger, rm_vm_row(vm)->id, NULL, chunks);
		for (i = 0; i < n; i++) {
			if (chunks[i])
				g_ptr_array_add(users[i], rm_vm_row(vm)->name);
		}
	}
}

static GVariant *
channel_to_variant(const RmChannel *c, RmChannelState state, const RmChannelCounts *counts,
		   GPtrArray *users)
{
	g_auto(GVariantDict) dict = G_VARIANT_DICT_INIT(NULL);
	guint bad = counts->n[RM_CHUNK_QUARANTINED];

	g_variant_dict_insert(&dict, "name", "s", c->name);
	g_variant_dict_insert(&dict, "tier", "s", rm_tier_name(c->tier));
	g_variant_dict_insert(&dict, "socket", "u", c->socket);
	g_variant_dict_insert(&dict, "dax", "u", c->dax);
	g_variant_dict_insert(&dict, "channel", "u", c->channel);
	g_variant_dict_insert(&dict, "size-chunks", "u", c->size_chunks);
	g_variant_dict_insert(&dict, "free-chunks", "u", counts->n[RM_CHUNK_FREE]);
	g_variant_dict_insert(&dict, "granted-chunks", "u", counts->n[RM_CHUNK_GRANTED]);
	g_variant_dict_insert(&dict, "released-chunks", "u", counts->n[RM_CHUNK_RELEASED]);
	g_variant_dict_insert(&dict, "scrubbing-chunks", "u", counts->n[RM_CHUNK_SCRUBBING]);
	g_variant_dict_insert(&dict, "quarantined-chunks", "u", bad);
	g_variant_dict_insert(&dict, "read-mbps", "u", c->read_mbps);
	g_variant_dict_insert(&dict, "write-mbps", "u", c->write_mbps);
	g_variant_dict_insert(&dict, "latency-ns", "u", c->latency_ns);
	g_variant_dict_insert(&dict, "state", "s",
			      bad && state == RM_CHANNEL_ONLINE ? "failed"
								: rm_channel_state_name(state));
	g_variant_dict_insert_value(
		&dict, "vms",
		g_variant_new_strv((const char *const *)users->pdata, (gssize)users->len));
	return g_variant_dict_end(&dict);
}

static gboolean
on_list_channels(RmManager1 *skeleton, GDBusMethodInvocation *invocation, gpointer data)
{
	RmDaemon *daemon = ((RmBusServer *)data)->daemon;
	const RmTopology *topology = daemon->config->topology;
	guint n = rm_topology_n_channels(topology), i;
	const RmChannelCounts *counts = rm_ledger_counts(daemon->ledger);
	g_autoptr(GPtrArray) users =
		g_ptr_array_new_with_free_func((GDestroyNotify)g_ptr_array_unref);
	GVariantBuilder list;

	for (i = 0; i < n; i++)
		g_ptr_array_add(users, g_ptr_array_new());
	channel_users(daemon, (GPtrArray **)users->pdata);
	g_variant_builder_init(&list, G_VARIANT_TYPE("aa{sv}"));
	for (i = 0; i < n; i++)
		g_variant_builder_add_value(
			&list, channel_to_variant(rm_topology_channel(topology, i),
						  rm_ledger_channel_state(daemon->ledger, i),
						  &counts[i], g_ptr_array_index(users, i)));
	rm_manager1_complete_list_channels(skeleton, invocation, g_variant_builder_end(&list));
	return G_DBUS_METHOD_INVOCATION_HANDLED;
}

static gboolean
on_list_domains(RmManager1 *skeleton, GDBusMethodInvocation *invocation, gpointer data)
{
	RmDaemon *daemon = ((RmBusServer *)data)->daemon;
	g_autoptr(GPtrArray) vms = rm_daemon_list_vms(daemon);
	GVariantBuilder list;
	guint i;

	g_variant_builder_init(&list, G_VARIANT_TYPE("aa{sv}"));
	for (i = 0; i < vms->len; i++)
		g_variant_builder_add_value(&list, rm_vm_to_variant(g_ptr_array_index(vms, i)));
	rm_manager1_complete_list_domains(skeleton, invocation, g_variant_builder_end(&list));
	return G_DBUS_METHOD_INVOCATION_HANDLED;
}

static gboolean
on_get_domain(RmManager1 *skeleton, GDBusMethodInvocation *invocation, const char *name,
	      gpointer data)
{
	RmDaemon *daemon = ((RmBusServer *)data)->daemon;
	GError *error = NULL;
	RmVm *vm = rm_daemon_find_vm(daemon, name, &error);

	if (!vm)
		return fail(invocation, error);
	rm_manager1_complete_get_domain(skeleton, invocation, rm_vm_to_variant(vm));
	return G_DBUS_METHOD_INVOCATION_HANDLED;
}

static guint *
plan_targets(const Plan *plan)
{
	guint *targets = g_new0(guint, plan->nodes->len + 1);
	guint i;

	for (i = 0; i < plan->nodes->len; i++)
		targets[i] = g_array_index(plan->nodes, RmPlanNode, i).target_chunks;
	return targets;
}

static gboolean
on_resize(RmManager1 *skeleton, GDBusMethodInvocation *invocation, const char *name,
	  GVariant *arg_options, gpointer data)
{
	RmDaemon *daemon = ((RmBusServer *)data)->daemon;
	g_auto(Options) options = {0};
	g_auto(Plan) plan = {0};
	g_autofree guint *targets = NULL;
	GError *error = NULL;
	guint64 job = 0;
	RmVm *vm;

	if (!read_options(&options, arg_options, &error))
		return fail(invocation, error);
	vm = rm_daemon_find_vm(daemon, name, &error);
	if (!vm || !make_plan(daemon, vm, &options, &plan, &error))
		return fail(invocation, error);
	targets = plan_targets(&plan);
	if (!options.dry_run && !rm_vm_set_target(vm, "resize", targets, plan.capacity_chunks,
						  plan.bandwidth_channels, plan.mbps, &job, &error))
		return fail(invocation, error);
	rm_manager1_complete_resize(skeleton, invocation, job);
	return G_DBUS_METHOD_INVOCATION_HANDLED;
}

static gboolean
on_plan_resize(RmManager1 *skeleton, GDBusMethodInvocation *invocation, const char *name,
	       GVariant *arg_options, gpointer data)
{
	RmDaemon *daemon = ((RmBusServer *)data)->daemon;
	g_auto(Options) options = {0};
	g_auto(Plan) plan = {0};
	g_autofree RmPlanUse *use = NULL;
	GVariantBuilder list;
	GError *error = NULL;
	RmVm *vm;
	guint i;

	if (!read_options(&options, arg_options, &error))
		return fail(invocation, error);
	vm = rm_daemon_find_vm(daemon, name, &error);
	if (!vm || !make_plan(daemon, vm, &options, &plan, &error))
		return fail(invocation, error);
	use = rm_daemon_plan_use(daemon, vm);
	g_variant_builder_init(&list, G_VARIANT_TYPE("aa{sv}"));
	for (i = 0; i < plan.nodes->len; i++) {
		const RmPlanNode *node = &g_array_index(plan.nodes, RmPlanNode, i);
		g_auto(GVariantDict) dict = G_VARIANT_DICT_INIT(NULL);

		g_variant_dict_insert(
			&dict, "name", "s",
			rm_topology_channel(daemon->config->topology, node->channel)->name);
		g_variant_dict_insert(&dict, "before", "u", use[node->channel].held_chunks);
		g_variant_dict_insert(&dict, "after", "u", node->target_chunks);
		g_variant_builder_add_value(&list, g_variant_dict_end(&dict));
	}
	rm_manager1_complete_plan_resize(skeleton, invocation, g_variant_builder_end(&list));
	return G_DBUS_METHOD_INVOCATION_HANDLED;
}

/* A running job is fresher in its domain than in the ledger. */
static const RmJob *
freshest(RmDaemon *daemon, const RmJob *job)
{
	RmVm *vm = g_hash_table_lookup(daemon->vms, job->uuid);
	const RmJob *running = vm ? rm_vm_job(vm) : NULL;

	return running && running->id == job->id ? running : job;
}

static gboolean
on_list_jobs(RmManager1 *skeleton, GDBusMethodInvocation *invocation, gpointer data)
{
	RmDaemon *daemon = ((RmBusServer *)data)->daemon;
	GError *error = NULL;
	g_autoptr(GPtrArray) jobs = rm_ledger_list_jobs(daemon->ledger, &error);
	GVariantBuilder list;
	guint i;

	if (!jobs)
		return fail(invocation, error);
	g_variant_builder_init(&list, G_VARIANT_TYPE("aa{sv}"));
	for (i = 0; i < jobs->len; i++)
		g_variant_builder_add_value(
			&list, rm_job_to_variant(freshest(daemon, g_ptr_array_index(jobs, i))));
	rm_manager1_complete_list_jobs(skeleton, invocation, g_variant_builder_end(&list));
	return G_DBUS_METHOD_INVOCATION_HANDLED;
}

static RmJob *
find_job(RmDaemon *daemon, guint64 id, GError **error)
{
	GError *local = NULL;
	RmJob *job = rm_ledger_get_job(daemon->ledger, id, &local);

	if (local)
		g_propagate_error(error, local);
	else if (!job)
		rm_error_set(error, RM_ERROR_NOT_FOUND, "there is no job %" G_GUINT64_FORMAT, id);
	return job;
}

static gboolean
on_get_job(RmManager1 *skeleton, GDBusMethodInvocation *invocation, guint64 id, gpointer data)
{
	RmDaemon *daemon = ((RmBusServer *)data)->daemon;
	GError *error = NULL;
	g_autoptr(RmJob) job = find_job(daemon, id, &error);

	if (!job)
		return fail(invocation, error);
	rm_manager1_complete_get_job(skeleton, invocation,
				     rm_job_to_variant(freshest(daemon, job)));
	return G_DBUS_METHOD_INVOCATION_HANDLED;
}

static gboolean
on_cancel_job(RmManager1 *skeleton, GDBusMethodInvocation *invocation, guint64 id, gpointer data)
{
	RmDaemon *daemon = ((RmBusServer *)data)->daemon;
	GError *error = NULL;
	g_autoptr(RmJob) job = find_job(daemon, id, &error);
	RmVm *vm = job ? g_hash_table_lookup(daemon->vms, job->uuid) : NULL;

	if (!job)
		return fail(invocation, error);
	if (!vm || !rm_vm_job(vm) || rm_vm_job(vm)->id != id) {
		rm_error_set(&error, RM_ERROR_INVALID, "job %" G_GUINT64_FORMAT " is over: %s", id,
			     rm_job_state_name(job->state));
		return fail(invocation, error);
	}
	if (!rm_vm_cancel_job(vm, &error))
		return fail(invocation, error);
	rm_manager1_complete_cancel_job(skeleton, invocation);
	return G_DBUS_METHOD_INVOCATION_HANDLED;
}

static void
on_claim_done(GObject *source, GAsyncResult *result, gpointer data)
{
	GDBusMethodInvocation *invocation = data;
	GError *error = NULL;

	if (g_task_propagate_boolean(G_TASK(result), &error))
		g_dbus_method_invocation_return_value(invocation, NULL);
	else
		fail(invocation, error);
}

static gboolean
on_claim(RmManager1 *skeleton, GDBusMethodInvocation *invocation, const char *xml, gpointer data)
{
	RmDaemon *daemon = ((RmBusServer *)data)->daemon;
	g_autoptr(RmDomainXml) domain = NULL;
	g_autoptr(GTask) task = NULL;
	GError *error = NULL;

	if (!rm_domain_xml_parse(xml, -1, &domain, &error))
		return fail(invocation, error);
	if (!domain) {
		rm_error_set(&error, RM_ERROR_INVALID,
			     "the domain's XML has no <rr:memory>: there is nothing to claim");
		return fail(invocation, error);
	}
	task = g_task_new(NULL, NULL, on_claim_done, invocation);
	rm_daemon_claim(daemon, g_steal_pointer(&domain), task);
	return G_DBUS_METHOD_INVOCATION_HANDLED;
}

static gboolean
on_release(RmManager1 *skeleton, GDBusMethodInvocation *invocation, const char *uuid, gpointer data)
{
	RmDaemon *daemon = ((RmBusServer *)data)->daemon;
	g_autoptr(GTask) task = g_task_new(NULL, NULL, on_claim_done, invocation);

	rm_daemon_release(daemon, uuid, task);
	return G_DBUS_METHOD_INVOCATION_HANDLED;
}

/* A dry run shows what would be moved, else the jobs are begun. */
static gboolean
complete_moves(RmDaemon *daemon, GDBusMethodInvocation *invocation, const GArray *moves,
	       const char *kind, guint freed, gboolean dry_run)
{
	const RmTopology *topology = daemon->config->topology;
	g_autoptr(GArray) jobs = g_array_new(FALSE, FALSE, sizeof(guint64));
	GVariantBuilder list, answer;
	GError *error = NULL;
	guint i, k;

	g_variant_builder_init(&list, G_VARIANT_TYPE("aa{sv}"));
	for (i = 0; i < moves->len; i++) {
		const RmDaemonMove *move = &g_array_index(moves, RmDaemonMove, i);
		const GArray *channels = rm_vm_channels(move->vm);

		for (k = 0; k < channels->len; k++) {
			const RmVmChannel *c = &g_array_index(channels, RmVmChannel, k);
			guint after = g_array_index(move->nodes, RmPlanNode, k).target_chunks;
			g_auto(GVariantDict) dict = G_VARIANT_DICT_INIT(NULL);

			if (after == c->target_chunks)
				continue;
			g_variant_dict_insert(&dict, "vm", "s", rm_vm_row(move->vm)->name);
			g_variant_dict_insert(&dict, "name", "s",
					      rm_topology_channel(topology, c->channel)->name);
			g_variant_dict_insert(&dict, "before", "u", c->target_chunks);
			g_variant_dict_insert(&dict, "after", "u", after);
			g_variant_builder_add_value(&list, g_variant_dict_end(&dict));
		}
	}
	if (!dry_run && !rm_daemon_apply_moves(daemon, moves, kind, jobs, &error)) {
		g_variant_builder_clear(&list);
		return fail(invocation, error);
	}
	g_variant_builder_init(&answer, G_VARIANT_TYPE("(aa{sv}atu)"));
	g_variant_builder_add_value(&answer, g_variant_builder_end(&list));
	g_variant_builder_add_value(&answer,
				    g_variant_new_fixed_array(G_VARIANT_TYPE_UINT64, jobs->data,
							      jobs->len, sizeof(guint64)));
	g_variant_builder_add(&answer, "u", freed);
	g_dbus_method_invocation_return_value(invocation, g_variant_builder_end(&answer));
	return G_DBUS_METHOD_INVOCATION_HANDLED;
}

static gboolean
on_compact(RmManager1 *skeleton, GDBusMethodInvocation *invocation, gboolean dry_run, gpointer data)
{
	RmDaemon *daemon = ((RmBusServer *)data)->daemon;
	guint freed = 0;
	g_autoptr(GArray) moves = rm_daemon_plan_compact(daemon, &freed);

	return complete_moves(daemon, invocation, moves, "compact", freed, dry_run);
}

static gboolean
on_set_channel_state(RmManager1 *skeleton, GDBusMethodInvocation *invocation, const char *name,
		     const char *state_name, gboolean dry_run, gpointer data)
{
	RmDaemon *daemon = ((RmBusServer *)data)->daemon;
	g_autoptr(GArray) moves = g_array_new(FALSE, FALSE, sizeof(RmDaemonMove));
	GError *error = NULL;
	RmChannelState state;
	guint channel;

	if (!rm_topology_find(daemon->config->topology, name, &channel)) {
		rm_error_set(&error, RM_ERROR_NOT_FOUND, "there is no channel %s", name);
		return fail(invocation, error);
	}
	if (!rm_channel_state_parse(state_name, &state)) {
		rm_error_set(&error, RM_ERROR_INVALID,
			     "channel %s cannot be %s; known: online, draining, offline", name,
			     state_name);
		return fail(invocation, error);
	}
	if (state == RM_CHANNEL_DRAINING) {
		g_array_unref(moves);
		moves = rm_daemon_plan_evacuate(daemon, channel, &error);
		if (!moves)
			return fail(invocation, error);
	}
	if (!dry_run && !rm_daemon_set_channel_state(daemon, channel, state, &error))
		return fail(invocation, error);
	return complete_moves(daemon, invocation, moves, "drain", 0, dry_run);
}

static gboolean
on_reconcile(RmManager1 *skeleton, GDBusMethodInvocation *invocation, gboolean dry_run,
	     gpointer data)
{
	RmDaemon *daemon = ((RmBusServer *)data)->daemon;

	rm_manager1_complete_reconcile(skeleton, invocation, rm_daemon_reconcile(daemon, dry_run));
	return G_DBUS_METHOD_INVOCATION_HANDLED;
}

static gboolean
on_scrub_progress(RmManager1 *skeleton, GDBusMethodInvocation *invocation, gpointer data)
{
	RmDaemon *daemon = ((RmBusServer *)data)->daemon;
	RmScrubProgress progress = rm_scrubber_progress(daemon->scrubber);
	g_auto(GVariantDict) dict = G_VARIANT_DICT_INIT(NULL);

	g_variant_dict_insert(&dict, "left-chunks", "u", progress.left_chunks);
	g_variant_dict_insert(&dict, "done-chunks", "t", progress.done_chunks);
	g_variant_dict_insert(&dict, "rate-bytes-per-sec", "t", progress.rate_bytes_per_sec);
	g_variant_dict_insert(&dict, "threads", "u", daemon->config->scrub_threads);
	g_variant_dict_insert(&dict, "limit-bytes-per-sec", "t",
			      daemon->config->scrub_bytes_per_sec);
	rm_manager1_complete_get_scrub_progress(skeleton, invocation, g_variant_dict_end(&dict));
	return G_DBUS_METHOD_INVOCATION_HANDLED;
}

static gboolean
on_set_log_level(RmManager1 *skeleton, GDBusMethodInvocation *invocation, const char *level,
		 gpointer data)
{
	GError *error = NULL;

	if (!rm_log_set_level(level, &error))
		return fail(invocation, error);
	rm_manager1_set_log_level(skeleton, rm_log_level());
	rm_manager1_complete_set_log_level(skeleton, invocation);
	return G_DBUS_METHOD_INVOCATION_HANDLED;
}

static gboolean
on_backup(RmManager1 *skeleton, GDBusMethodInvocation *invocation, const char *path, gpointer data)
{
	RmDaemon *daemon = ((RmBusServer *)data)->daemon;
	GError *error = NULL;

	if (!g_path_is_absolute(path)) {
		rm_error_set(&error, RM_ERROR_INVALID, "%s is no absolute path", path);
		return fail(invocation, error);
	}
	if (!rm_ledger_backup(daemon->ledger, path, &error))
		return fail(invocation, error);
	rm_manager1_complete_backup(skeleton, invocation);
	return G_DBUS_METHOD_INVOCATION_HANDLED;
}

static gboolean
on_check(RmManager1 *skeleton, GDBusMethodInvocation *invocation, gpointer data)
{
	RmDaemon *daemon = ((RmBusServer *)data)->daemon;
	GError *error = NULL;
	g_autoptr(GPtrArray) problems = rm_ledger_check(daemon->ledger, &error);

	if (!problems)
		return fail(invocation, error);
	g_ptr_array_add(problems, NULL);
	rm_manager1_complete_check(skeleton, invocation, (const char *const *)problems->pdata);
	return G_DBUS_METHOD_INVOCATION_HANDLED;
}

static gboolean
on_list_events(RmManager1 *skeleton, GDBusMethodInvocation *invocation, const char *uuid, guint max,
	       gpointer data)
{
	RmDaemon *daemon = ((RmBusServer *)data)->daemon;
	GError *error = NULL;
	g_autoptr(GPtrArray) events =
		rm_ledger_list_events(daemon->ledger, *uuid ? uuid : NULL, max, &error);
	GVariantBuilder list;
	guint i;

	if (!events)
		return fail(invocation, error);
	g_variant_builder_init(&list, G_VARIANT_TYPE("aa{sv}"));
	for (i = 0; i < events->len; i++) {
		const RmEvent *e = g_ptr_array_index(events, i);
		g_auto(GVariantDict) dict = G_VARIANT_DICT_INIT(NULL);

		g_variant_dict_insert(&dict, "id", "x", e->id);
		g_variant_dict_insert(&dict, "time-usec", "x", e->time_usec);
		g_variant_dict_insert(&dict, "uuid", "s", e->uuid ? e->uuid : "");
		g_variant_dict_insert(&dict, "kind", "s", e->kind);
		g_variant_dict_insert(&dict, "text", "s", e->text);
		g_variant_builder_add_value(&list, g_variant_dict_end(&dict));
	}
	rm_manager1_complete_list_events(skeleton, invocation, g_variant_builder_end(&list));
	return G_DBUS_METHOD_INVOCATION_HANDLED;
}

static RmProcess *
caller(GDBusMethodInvocation *invocation, GError **error)
{
	GDBusConnection *connection = g_dbus_method_invocation_get_connection(invocation);
	GIOStream *stream = g_dbus_connection_get_stream(connection);

	return rm_process_open_peer(g_socket_connection_get_socket(G_SOCKET_CONNECTION(stream)),
				    error);
}

/* A process is one domain: a QEMU cannot take the claim of another that is about to start. */
static gboolean
check_one_domain(RmDaemon *daemon, const RmVm *vm, const RmProcess *process, GError **error)
{
	GHashTableIter iter;
	gpointer other;

	g_hash_table_iter_init(&iter, daemon->vms);
	while (g_hash_table_iter_next(&iter, NULL, &other)) {
		if (other == vm || !rm_vm_is_process(other, process))
			continue;
		rm_error_set(error, RM_ERROR_BUSY,
			     "process %d is domain %s and cannot start domain %s",
			     rm_process_pid(process), rm_vm_row(other)->name, rm_vm_row(vm)->name);
		return FALSE;
	}
	return TRUE;
}

static gboolean
on_start(RmManager1 *skeleton, GDBusMethodInvocation *invocation, const char *uuid, gpointer data)
{
	RmDaemon *daemon = ((RmBusServer *)data)->daemon;
	g_auto(GStrv) arguments = NULL;
	g_autofree char *socket_path = NULL;
	GError *error = NULL;
	g_autoptr(RmProcess) process = NULL;
	RmVm *vm = rm_daemon_find_vm(daemon, uuid, NULL);

	if (!vm) {
		rm_error_set(&error, RM_ERROR_NOT_FOUND,
			     "domain %s has no claim: the libvirt hook did not run, or its XML has "
			     "no <rr:memory>",
			     uuid);
		return fail(invocation, error);
	}
	process = caller(invocation, &error);
	if (!process || !check_one_domain(daemon, vm, process, &error) ||
	    !rm_vm_start(vm, g_steal_pointer(&process), &arguments, &socket_path, &error))
		return fail(invocation, error);
	rm_manager1_complete_start(skeleton, invocation, (const char *const *)arguments,
				   daemon->config->emulator, socket_path);
	return G_DBUS_METHOD_INVOCATION_HANDLED;
}

/* ---- signals ---- */

static void
job_changed(const RmJob *job, gpointer data)
{
	rm_manager1_emit_job_changed(((RmBusServer *)data)->skeleton, job->id,
				     rm_job_to_variant(job));
}

static void
domain_changed(const char *uuid, gpointer data)
{
	rm_manager1_emit_domain_changed(((RmBusServer *)data)->skeleton, uuid);
}

static void
channels_changed(gpointer data)
{
	rm_manager1_emit_channels_changed(((RmBusServer *)data)->skeleton);
}

/* ---- connections ---- */

static gboolean
on_allow_mechanism(GDBusAuthObserver *observer, const char *mechanism, gpointer data)
{
	return g_str_equal(mechanism, "EXTERNAL");
}

/* A member of the group of operators, by the group database. */
static gboolean
in_group(uid_t uid, gid_t group)
{
	const struct passwd *user = getpwuid(uid);
	gid_t groups[256];
	int n = G_N_ELEMENTS(groups), i;

	if (!user || getgrouplist(user->pw_name, user->pw_gid, groups, &n) < 0)
		return FALSE;
	for (i = 0; i < n; i++) {
		if (groups[i] == group)
			return TRUE;
	}
	return FALSE;
}

static Role
role_of(const RmBusServer *server, uid_t uid)
{
	if (uid == 0 || uid == geteuid())
		return ROLE_ALL;
	if (server->has_group && in_group(uid, server->group))
		return ROLE_ALL;
	if (server->has_reader_uid && uid == server->reader_uid)
		return ROLE_READ;
	/* The shim runs as QEMU's user, and so may any QEMU that was taken over. */
	if (server->has_qemu_uid && uid == server->qemu_uid)
		return ROLE_START;
	return ROLE_NONE;
}

static gboolean
is_reading(const char *method)
{
	return g_str_has_prefix(method, "List") || g_str_has_prefix(method, "Get");
}

static gboolean
on_authorize_method(GDBusInterfaceSkeleton *skeleton, GDBusMethodInvocation *invocation,
		    gpointer data)
{
	GDBusConnection *connection = g_dbus_method_invocation_get_connection(invocation);
	GCredentials *credentials = g_dbus_connection_get_peer_credentials(connection);
	uid_t uid = credentials ? g_credentials_get_unix_user(credentials, NULL) : (uid_t)-1;
	const char *method = g_dbus_method_invocation_get_method_name(invocation);

	Role role = role_of(data, uid);

	if (role == ROLE_ALL || (role == ROLE_READ && is_reading(method)) ||
	    (role == ROLE_START && g_str_equal(method, "Start")))
		return TRUE;
	g_dbus_method_invocation_return_error(
		invocation, G_DBUS_ERROR, G_DBUS_ERROR_ACCESS_DENIED,
		"user %d may not call %s: only root and the group %s may", (int)uid, method,
		OPERATORS);
	return FALSE;
}

static gboolean
on_authorize(GDBusAuthObserver *observer, GIOStream *stream, GCredentials *credentials,
	     gpointer data)
{
	const RmBusServer *server = data;
	uid_t uid = credentials ? g_credentials_get_unix_user(credentials, NULL) : (uid_t)-1;

	if (role_of(server, uid) != ROLE_NONE)
		return TRUE;
	g_warning("a connection of user %d to the bus is refused", (int)uid);
	return FALSE;
}

static void
on_connection_closed(GDBusConnection *connection, gboolean vanished, GError *error, gpointer data)
{
	RmBusServer *server = data;

	if (g_dbus_interface_skeleton_has_connection(G_DBUS_INTERFACE_SKELETON(server->skeleton),
						     connection))
		g_dbus_interface_skeleton_unexport_from_connection(
			G_DBUS_INTERFACE_SKELETON(server->skeleton), connection);
	g_signal_handlers_disconnect_by_data(connection, server);
	g_object_unref(connection);
}

static gboolean
on_new_connection(GDBusServer *dbus, GDBusConnection *connection, gpointer data)
{
	RmBusServer *server = data;
	g_autoptr(GError) error = NULL;

	if (!g_dbus_interface_skeleton_export(G_DBUS_INTERFACE_SKELETON(server->skeleton),
					      connection, RM_BUS_PATH, &error)) {
		g_warning("cannot serve a connection: %s", error->message);
		return FALSE;
	}
	g_signal_connect(connection, "closed", G_CALLBACK(on_connection_closed), server);
	g_object_ref(connection);
	return TRUE;
}

static void
connect_methods(RmBusServer *server)
{
	const struct {
		const char *signal;
		GCallback handler;
	} methods[] = {
		{"handle-list-channels", G_CALLBACK(on_list_channels)},
		{"handle-list-domains", G_CALLBACK(on_list_domains)},
		{"handle-get-domain", G_CALLBACK(on_get_domain)},
		{"handle-resize", G_CALLBACK(on_resize)},
		{"handle-plan-resize", G_CALLBACK(on_plan_resize)},
		{"handle-list-jobs", G_CALLBACK(on_list_jobs)},
		{"handle-get-job", G_CALLBACK(on_get_job)},
		{"handle-cancel-job", G_CALLBACK(on_cancel_job)},
		{"handle-claim", G_CALLBACK(on_claim)},
		{"handle-release", G_CALLBACK(on_release)},
		{"handle-start", G_CALLBACK(on_start)},
		{"handle-compact", G_CALLBACK(on_compact)},
		{"handle-set-channel-state", G_CALLBACK(on_set_channel_state)},
		{"handle-reconcile", G_CALLBACK(on_reconcile)},
		{"handle-get-scrub-progress", G_CALLBACK(on_scrub_progress)},
		{"handle-set-log-level", G_CALLBACK(on_set_log_level)},
		{"handle-backup", G_CALLBACK(on_backup)},
		{"handle-check", G_CALLBACK(on_check)},
		{"handle-list-events", G_CALLBACK(on_list_events)},
	};
	guint i;

	for (i = 0; i < G_N_ELEMENTS(methods); i++)
		g_signal_connect(server->skeleton, methods[i].signal, methods[i].handler, server);
}

RmBusServer *
rm_bus_server_new(RmDaemon *daemon, GError **error)
{
	static const RmDaemonEvents events = {
		.job_changed = job_changed,
		.domain_changed = domain_changed,
		.channels_changed = channels_changed,
	};
	g_autoptr(RmBusServer) server = g_new0(RmBusServer, 1);
	g_autofree char *address = rm_paths_bus_address(daemon->config->runtime_dir);
	g_autofree char *guid = g_dbus_generate_guid();
	const struct passwd *user;
	const struct group *group;

	rm_bus_init();
	server->daemon = daemon;
	server->path = rm_paths_bus(daemon->config->runtime_dir);
	user = daemon->config->qemu_user ? getpwnam(daemon->config->qemu_user) : NULL;
	if (user) {
		server->has_qemu_uid = TRUE;
		server->qemu_uid = user->pw_uid;
	}
	user = getpwnam(READER);
	if (user) {
		server->has_reader_uid = TRUE;
		server->reader_uid = user->pw_uid;
	}
	group = getgrnam(OPERATORS);
	if (group) {
		server->has_group = TRUE;
		server->group = group->gr_gid;
	}
	server->skeleton = rm_manager1_skeleton_new();
	rm_manager1_set_version(server->skeleton, RM_VERSION);
	rm_manager1_set_log_level(server->skeleton, rm_log_level());
	connect_methods(server);
	server->observer = g_dbus_auth_observer_new();
	g_signal_connect(server->observer, "allow-mechanism", G_CALLBACK(on_allow_mechanism), NULL);
	g_signal_connect(server->observer, "authorize-authenticated-peer", G_CALLBACK(on_authorize),
			 server);
	g_signal_connect(server->skeleton, "g-authorize-method", G_CALLBACK(on_authorize_method),
			 server);
	/* The lock on the state folder says that no other rmd listens there. */
	if (g_unlink(server->path) < 0 && errno != ENOENT) {
		rm_error_set(error, RM_ERROR_FAILED, "cannot remove %s: %s", server->path,
			     g_strerror(errno));
		return NULL;
	}
	server->server = g_dbus_server_new_sync(address, G_DBUS_SERVER_FLAGS_NONE, guid,
						server->observer, NULL, error);
	if (!server->server) {
		g_prefix_error(error, "cannot listen on %s: ", server->path);
		return NULL;
	}
	if ((server->has_qemu_uid || server->has_reader_uid || server->has_group) &&
	    chmod(server->path, 0666) < 0) {
		rm_error_set(error, RM_ERROR_FAILED, "cannot change the mode of %s: %s",
			     server->path, g_strerror(errno));
		return NULL;
	}
	g_signal_connect(server->server, "new-connection", G_CALLBACK(on_new_connection), server);
	g_dbus_server_start(server->server);
	rm_daemon_set_events(daemon, &events, server);
	return g_steal_pointer(&server);
}

void
rm_bus_server_free(RmBusServer *server)
{
	if (!server)
		return;
	if (server->server) {
		rm_daemon_set_events(server->daemon, NULL, NULL);
		g_dbus_server_stop(server->server);
		g_object_unref(server->server);
		g_unlink(server->path);
	}
	if (server->skeleton) {
		GDBusInterfaceSkeleton *skeleton = G_DBUS_INTERFACE_SKELETON(server->skeleton);
		GList *connections = g_dbus_interface_skeleton_get_connections(skeleton);
		GList *l;

		for (l = connections; l; l = l->next) {
			g_signal_handlers_disconnect_by_data(l->data, server);
			g_dbus_connection_close_sync(l->data, NULL, NULL);
			g_object_unref(l->data); /* ours since on_new_connection() */
		}
		g_list_free_full(connections, g_object_unref);
		if (g_dbus_interface_skeleton_get_connection(skeleton))
			g_dbus_interface_skeleton_unexport(skeleton);
	}
	g_clear_object(&server->skeleton);
	g_clear_object(&server->observer);
	g_free(server->path);
	g_free(server);
}
