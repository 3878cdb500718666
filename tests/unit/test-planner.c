/* SPDX-License-Identifier: GPL-2.0-or-later */
#include <stdio.h>
#include <string.h>

#include "rm-error.h"
#include "rm-planner.h"

#define N_MAX 16

typedef struct {
	RmTopology *topology;
	RmPlanUse use[N_MAX];
} Host;

static void
host_add(Host *host, const char *name, RmTier tier, guint socket, guint chunks)
{
	RmChannel *c = g_new0(RmChannel, 1);
	guint n = rm_topology_n_channels(host->topology);

	c->name = g_strdup(name);
	c->store = g_strdup("lab");
	c->tier = tier;
	c->socket = socket;
	c->dax = n;
	c->size_chunks = chunks;
	g_assert_true(rm_topology_add(host->topology, c, NULL));
	host->use[n].free_chunks = chunks;
}

static Host *
host_new(guint dimms, guint cxls, guint chunks)
{
	Host *host = g_new0(Host, 1);
	guint i;

	host->topology = rm_topology_new();
	for (i = 0; i < dimms + cxls; i++) {
		g_autofree char *name = g_strdup_printf("%s%u", i < dimms ? "dimm" : "cxl",
							i < dimms ? i : i - dimms);

		host_add(host, name, i < dimms ? RM_TIER_DIMM : RM_TIER_CXL, 0, chunks);
	}
	return host;
}

static void
host_free(Host *host)
{
	rm_topology_free(host->topology);
	g_free(host);
}
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Host, host_free)

static RmPlanRequest
request(guint capacity, guint channels)
{
	RmPlanRequest r = {
		.name = "vm",
		.capacity_chunks = capacity,
		.capacity_min_chunks = 8,
		.capacity_max_chunks = 64,
		.bandwidth_channels = channels,
		.tier_dimm = TRUE,
		.tier_cxl = TRUE,
		.vcpus = 2,
	};

	return r;
}

/* "dimm0=8+2 dimm1=10": base + rest of the channels with chunks, by cNode. */
static char *
describe(const Host *host, const GArray *nodes)
{
	GString *text = g_string_new(NULL);
	guint i;

	for (i = 0; i < nodes->len; i++) {
		const RmPlanNode *n = &g_array_index(nodes, RmPlanNode, i);

		if (!n->target_chunks)
			continue;
		g_string_append_printf(text, "%s%s=", text->len ? " " : "",
				       rm_topology_channel(host->topology, n->channel)->name);
		if (n->base_chunks)
			g_string_append_printf(text, "%u+", n->base_chunks);
		g_string_append_printf(text, "%u", n->target_chunks - n->base_chunks);
	}
	return g_string_free(text, FALSE);
}

static void
assert_place(const Host *host, RmPlanRequest r, const char *expected)
{
	g_autoptr(GError) error = NULL;
	g_autoptr(GArray) nodes = rm_planner_place(host->topology, host->use, &r, &error);
	g_autofree char *text = NULL;

	g_assert_no_error(error);
	text = describe(host, nodes);
	g_assert_cmpstr(text, ==, expected);
}

static void
assert_no_place(const Host *host, RmPlanRequest r, RmError code, const char *message)
{
	g_autoptr(GError) error = NULL;
	g_autoptr(GArray) nodes = rm_planner_place(host->topology, host->use, &r, &error);

	g_assert_null(nodes);
	g_assert_error(error, RM_ERROR, (gint)code);
	if (!strstr(error->message, message))
		g_error("\"%s\" does not say \"%s\"", error->message, message);
}

static void
test_even(void)
{
	g_autoptr(Host) host = host_new(4, 2, 64);

	assert_place(host, request(32, 4), "dimm0=8+0 dimm1=8 dimm2=8 dimm3=8");
	assert_place(host, request(32, 3), "dimm0=8+3 dimm1=11 dimm2=10");
	assert_place(host, request(34, 4), "dimm0=8+1 dimm1=9 dimm2=8 dimm3=8");
	/* The head's base memory takes the one more. */
	assert_place(host, request(30, 4), "dimm0=8+0 dimm1=8 dimm2=7 dimm3=7");
	/* It stands out: the others are even. */
	assert_place(host, request(16, 4), "dimm0=8+0 dimm1=3 dimm2=3 dimm3=2");
	assert_place(host, request(8, 1), "dimm0=8+0");
	/* DIMM before CXL, also where the CXL head has the lower number. */
	assert_place(host, request(50, 5), "dimm0=8+2 cxl0=10 dimm1=10 dimm2=10 dimm3=10");
}

static void
test_nodes(void)
{
	g_autoptr(Host) host = host_new(2, 2, 64);
	RmPlanRequest r = request(16, 2);
	g_autoptr(GArray) nodes = rm_planner_place(host->topology, host->use, &r, NULL);
	static const guint channels[] = {0, 2, 1, 3}, snodes[] = {0, 1, 0, 1};
	guint i;

	g_assert_cmpuint(nodes->len, ==, 4);
	for (i = 0; i < 4; i++) {
		const RmPlanNode *n = &g_array_index(nodes, RmPlanNode, i);

		g_assert_cmpuint(n->channel, ==, channels[i]);
		g_assert_cmpuint(n->snode, ==, snodes[i]);
		/* Window: as large as this domain may need, less the base memory. */
		g_assert_cmpuint(n->window_chunks, ==, i == 0 ? 56 : 64);
	}
}

static void
test_base(void)
{
	RmPlanRequest r = request(16, 2);

	g_assert_cmpuint(rm_planner_base_chunks(&r, 1), ==, 8); /* 1 GiB */
	r.capacity_max_chunks = 100;
	r.capacity_min_chunks = 50;
	g_assert_cmpuint(rm_planner_base_chunks(&r, 1), ==, 13); /* an eighth, rounded up */
	r.capacity_min_chunks = 4;
	g_assert_cmpuint(rm_planner_base_chunks(&r, 1), ==, 4); /* it cannot be taken back */
	g_assert_cmpuint(rm_planner_base_chunks(&r, 2), ==, 2);
	r.base_chunks = 3;
	g_assert_cmpuint(rm_planner_base_chunks(&r, 1), ==, 3);
}

static void
test_exclusive(void)
{
	g_autoptr(Host) host = host_new(3, 1, 64);

	host->use[0].taken_by = "other";
	assert_place(host, request(32, 2), "dimm1=8+8 dimm2=16");
	assert_place(host, request(33, 3), "dimm1=8+3 cxl0=11 dimm2=11");
	assert_no_place(
		host, request(32, 4), RM_ERROR_NO_SPACE,
		"4 GiB on 4 channels needs 8 chunks of 128 MiB on each, 3 channels have them "
		"(dimm1 64, cxl0 64, dimm0 of other, dimm2 64); 4 GiB on 3 channels would fit");
}

static void
test_refusals(void)
{
	g_autoptr(Host) host = host_new(2, 1, 16);
	RmPlanRequest r;

	assert_no_place(host, request(40, 2), RM_ERROR_NO_SPACE, "4 GiB on 2 channels would fit");
	assert_no_place(host, request(32, 4), RM_ERROR_NO_SPACE,
			"4 channels are wanted, the placement allows 3");
	assert_no_place(host, request(9, 3), RM_ERROR_INVALID,
			"1152 MiB is too little for 3 channels");
	assert_no_place(host, request(7, 1), RM_ERROR_INVALID, "base memory");
	r = request(16, 2);
	r.tier_dimm = FALSE;
	assert_no_place(host, r, RM_ERROR_INVALID, "base memory");
	r = request(16, 2);
	r.sockets = 4;
	assert_no_place(host, r, RM_ERROR_INVALID, "socket 2");
	r = request(16, 2);
	r.base_chunks = 9;
	assert_no_place(host, r, RM_ERROR_INVALID,
			"base memory of 1152 MiB on 1 heads is more than");
	r = request(17, 1);
	assert_no_place(host, r, RM_ERROR_NO_SPACE, "2 GiB on 1 channels would fit");
}

static void
test_sockets(void)
{
	g_autoptr(Host) host = host_new(2, 0, 32);
	RmPlanRequest r = request(32, 2);

	host_add(host, "far0", RM_TIER_DIMM, 1, 32);
	host_add(host, "far1", RM_TIER_DIMM, 1, 32);
	/* One socket while it fits; the next; both. */
	assert_place(host, r, "dimm0=8+8 dimm1=16");
	host->use[1].taken_by = "other";
	assert_place(host, r, "far0=8+8 far1=16");
	host->use[3].taken_by = "other";
	r.capacity_min_chunks = 16;
	assert_place(host, r, "dimm0=8+8 far0=8+8");
	r.sockets = 3;
	assert_place(host, r, "dimm0=8+8 far0=8+8");
	r.bandwidth_channels = 1;
	assert_no_place(host, r, RM_ERROR_INVALID, "less than the 2 sockets");
}

static void
assert_resize(Host *host, GArray *nodes, guint capacity, guint channels, const char *expected)
{
	g_autoptr(GError) error = NULL;
	g_autofree char *text = NULL;
	guint i;

	rm_planner_resize(host->topology, host->use, nodes,
			  &(RmPlanGoal){capacity, channels, 0, FALSE}, &error);
	g_assert_no_error(error);
	text = describe(host, nodes);
	g_assert_cmpstr(text, ==, expected);
	for (i = 0; i < nodes->len; i++) {
		const RmPlanNode *n = &g_array_index(nodes, RmPlanNode, i);
		RmPlanUse *u = &host->use[n->channel];

		u->free_chunks = u->free_chunks + u->held_chunks - n->target_chunks;
		u->held_chunks = n->target_chunks;
	}
}

static void
test_resize(void)
{
	g_autoptr(Host) host = host_new(4, 1, 32);
	RmPlanRequest r = request(32, 3);
	g_autoptr(GArray) nodes = rm_planner_place(host->topology, host->use, &r, NULL);
	g_autoptr(GError) error = NULL;

	assert_resize(host, nodes, 32, 3, "dimm0=8+3 dimm1=11 dimm2=10");
	assert_resize(host, nodes, 32, 4, "dimm0=8+0 dimm1=8 dimm2=8 dimm3=8");
	assert_resize(host, nodes, 32, 3, "dimm0=8+3 dimm1=11 dimm2=10");
	/* It keeps what it has, although a DIMM is free again. */
	host->use[1].taken_by = "other";
	host->use[1].held_chunks = 0;
	host->use[3].taken_by = "other";
	assert_resize(host, nodes, 32, 3, "dimm0=8+3 cxl0=10 dimm2=11");
	host->use[1].taken_by = NULL;
	host->use[1].free_chunks = 32;
	assert_resize(host, nodes, 33, 3, "dimm0=8+3 cxl0=11 dimm2=11");
	/* The one more stays where it is. */
	assert_resize(host, nodes, 34, 3, "dimm0=8+4 cxl0=11 dimm2=11");
	/* Nothing changes on error. */
	g_assert_false(rm_planner_resize(host->topology, host->use, nodes,
					 &(RmPlanGoal){64, 5, 0, FALSE}, &error));
	g_assert_error(error, RM_ERROR, RM_ERROR_NO_SPACE);
	assert_resize(host, nodes, 34, 3, "dimm0=8+4 cxl0=11 dimm2=11");
}

/*
 * Random hosts and domains that come, change and go: no channel is ever exceeded or shared, counts
 * are even, and when all are gone the host is as before.
 */
typedef struct {
	GArray *nodes;
	char name[8];
	RmPlanRequest r;
} Vm;

static void
fill_use(Host *host, const Vm *vms, guint n_vms, const Vm *self)
{
	guint n = rm_topology_n_channels(host->topology), i, k;

	for (i = 0; i < n; i++) {
		host->use[i].free_chunks = rm_topology_channel(host->topology, i)->size_chunks;
		host->use[i].held_chunks = 0;
		host->use[i].taken_by = NULL;
	}
	for (k = 0; k < n_vms; k++) {
		for (i = 0; vms[k].nodes && i < vms[k].nodes->len; i++) {
			const RmPlanNode *node = &g_array_index(vms[k].nodes, RmPlanNode, i);
			RmPlanUse *u = &host->use[node->channel];

			if (!node->target_chunks)
				continue;
			g_assert_cmpuint(u->free_chunks, >=, node->target_chunks);
			g_assert_null(u->taken_by);
			u->free_chunks -= node->target_chunks;
			if (&vms[k] == self)
				u->held_chunks = node->target_chunks;
			else
				u->taken_by = vms[k].name;
		}
	}
}

static void
check_plan(const Vm *vm, guint capacity, guint channels)
{
	guint sum = 0, used = 0, least = G_MAXUINT, most = 0, standing_out = 0, i;

	for (i = 0; i < vm->nodes->len; i++) {
		const RmPlanNode *n = &g_array_index(vm->nodes, RmPlanNode, i);

		g_assert_cmpuint(n->target_chunks, >=, n->base_chunks);
		g_assert_cmpuint(n->target_chunks, <=, n->base_chunks + n->window_chunks);
		sum += n->target_chunks;
		used += n->target_chunks != 0;
		if (!n->target_chunks)
			continue;
		if (n->base_chunks && n->target_chunks == n->base_chunks) {
			standing_out = MAX(standing_out, n->target_chunks);
			continue;
		}
		least = MIN(least, n->target_chunks);
		most = MAX(most, n->target_chunks);
	}
	g_assert_cmpuint(sum, ==, capacity);
	g_assert_cmpuint(used, ==, channels);
	g_assert_cmpuint(most, <=, least == G_MAXUINT ? 0 : least + 1);
	/* A head that holds just its base memory does so since that is at least a share. */
	if (standing_out && least != G_MAXUINT)
		g_assert_cmpuint(standing_out + 1, >=, least);
}

static void
random_step(Host *host, Vm *vms, guint n_vms, Vm *vm)
{
	g_autoptr(GError) error = NULL;
	guint capacity = g_test_rand_int_range(1, 200), channels = g_test_rand_int_range(1, 8);

	fill_use(host, vms, n_vms, vm);
	if (!vm->nodes) {
		vm->r = request(capacity, channels);
		vm->r.capacity_min_chunks = g_test_rand_int_range(1, 30);
		vm->r.capacity_max_chunks = MAX(capacity, 100);
		vm->r.tier_cxl = g_test_rand_int_range(0, 2);
		vm->nodes = rm_planner_place(host->topology, host->use, &vm->r, &error);
		if (vm->nodes)
			check_plan(vm, capacity, channels);
	} else if (g_test_rand_int_range(0, 3) == 0) {
		g_clear_pointer(&vm->nodes, g_array_unref);
		return;
	} else if (rm_planner_resize(host->topology, host->use, vm->nodes,
				     &(RmPlanGoal){capacity, channels, 0, FALSE}, &error)) {
		check_plan(vm, capacity, channels);
	}
	g_assert_true(!error || g_error_matches(error, RM_ERROR, RM_ERROR_NO_SPACE) ||
		      g_error_matches(error, RM_ERROR, RM_ERROR_INVALID));
	fill_use(host, vms, n_vms, NULL);
}

static void
test_random(void)
{
	guint round, i;

	for (round = 0; round < 50; round++) {
		g_autoptr(Host) host =
			host_new(g_test_rand_int_range(1, 8), g_test_rand_int_range(0, 4),
				 g_test_rand_int_range(8, 80));
		Vm vms[4] = {0};

		for (i = 0; i < G_N_ELEMENTS(vms); i++)
			g_snprintf(vms[i].name, sizeof(vms[i].name), "vm%u", i);
		for (i = 0; i < 60; i++)
			random_step(host, vms, G_N_ELEMENTS(vms),
				    &vms[g_test_rand_int_range(0, G_N_ELEMENTS(vms))]);
		for (i = 0; i < G_N_ELEMENTS(vms); i++)
			g_clear_pointer(&vms[i].nodes, g_array_unref);
		fill_use(host, vms, G_N_ELEMENTS(vms), NULL);
		for (i = 0; i < rm_topology_n_channels(host->topology); i++)
			g_assert_cmpuint(host->use[i].free_chunks, ==,
					 rm_topology_channel(host->topology, i)->size_chunks);
	}
}

/* What a refusal says would fit does fit. */
static void
test_what_fits(void)
{
	guint round;

	for (round = 0; round < 300; round++) {
		g_autoptr(Host) host =
			host_new(g_test_rand_int_range(1, 6), 0, g_test_rand_int_range(9, 40));
		RmPlanRequest r =
			request(g_test_rand_int_range(8, 300), g_test_rand_int_range(1, 8));
		g_autoptr(GError) error = NULL;
		g_autoptr(GArray) nodes = NULL;
		const char *fit;
		guint size, on;

		r.capacity_max_chunks = 300;
		r.base_chunks = 8;
		nodes = rm_planner_place(host->topology, host->use, &r, &error);
		fit = error ? strstr(error->message, "); ") : NULL;
		if (!fit || sscanf(fit, "); %u MiB on %u channels", &size, &on) != 2)
			continue;
		r.capacity_chunks = size / 128;
		r.bandwidth_channels = on;
		nodes = rm_planner_place(host->topology, host->use, &r, NULL);
		g_assert_nonnull(nodes);
		r.capacity_chunks++;
		g_assert_null(rm_planner_place(host->topology, host->use, &r, NULL));
	}
}

/* ---- sharing, MB/s, closed channels ---- */

static RmPlanRequest
shared_request(const char *name, guint capacity, guint channels, guint mbps)
{
	RmPlanRequest r = request(capacity, channels);

	r.name = name;
	r.shared = TRUE;
	r.mbps = mbps;
	r.base_chunks = 1;
	r.capacity_min_chunks = 1;
	return r;
}

static void
set_mbps(Host *host, guint mbps)
{
	guint i;

	for (i = 0; i < rm_topology_n_channels(host->topology); i++)
		((RmChannel *)rm_topology_channel(host->topology, i))->read_mbps = mbps;
}

static void
test_shared(void)
{
	g_autoptr(Host) host = host_new(4, 0, 64);

	rm_plan_use_add(&host->use[0], "alone", FALSE, 0);
	rm_plan_use_add(&host->use[2], "friend", TRUE, 0);
	host->use[2].free_chunks = 30;
	/* Where another shares already; never where one is for itself. */
	assert_place(host, shared_request("vm", 20, 1, 0), "dimm2=1+19");
	assert_place(host, shared_request("vm", 40, 2, 0), "dimm2=1+19 dimm1=20");
	/* What does not fit there opens another. */
	assert_place(host, shared_request("vm", 40, 1, 0), "dimm1=1+39");
	/* One for itself does not take a shared channel. */
	assert_place(host, request(16, 2), "dimm1=8+0 dimm3=8");
	assert_no_place(host, request(24, 3), RM_ERROR_NO_SPACE, "dimm2 of friend");
}

static void
test_mbps(void)
{
	g_autoptr(Host) host = host_new(4, 2, 64);
	RmPlanRequest r = request(16, 0);

	set_mbps(host, 10000);
	r.mbps = 25000;
	assert_place(host, r, "dimm0=8+0 dimm1=4 dimm2=4"); /* the fewest channels that give it */
	r.mbps = 61000;
	assert_no_place(host, r, RM_ERROR_NO_SPACE,
			"2 GiB with 60000 MB/s on 6 channels would fit");
	/* What those that share have reserved is not given twice. */
	rm_plan_use_add(&host->use[0], "friend", TRUE, 8000);
	assert_place(host, shared_request("vm", 16, 0, 2000), "dimm0=1+15");
	assert_place(host, shared_request("vm", 16, 2, 6000), "dimm1=1+7 dimm2=8");
}

static void
test_closed(void)
{
	g_autoptr(Host) host = host_new(3, 0, 64);

	host->use[0].closed = TRUE;
	assert_place(host, request(16, 2), "dimm1=8+0 dimm2=8");
	assert_no_place(host, request(24, 3), RM_ERROR_NO_SPACE, "dimm0 closed");
}

static guint
sum_on(const RmPlanVm *vms, guint n_vms, guint channel)
{
	guint sum = 0, i, k;

	for (i = 0; i < n_vms; i++) {
		for (k = 0; k < vms[i].nodes->len; k++) {
			const RmPlanNode *n = &g_array_index(vms[i].nodes, RmPlanNode, k);

			sum += n->channel == channel ? n->target_chunks : 0;
		}
	}
	return sum;
}

static guint
capacity_of(const RmPlanVm *vm)
{
	guint sum = 0, k;

	for (k = 0; k < vm->nodes->len; k++)
		sum += g_array_index(vm->nodes, RmPlanNode, k).target_chunks;
	return sum;
}

/*
 * Random hosts of domains that share: moving them never loses capacity, bandwidth or base memory,
 * never overfills a channel, never uses a closed one, and a freed channel is empty.
 */
static void
test_moves(void)
{
	g_autoptr(GRand) rand = g_rand_new_with_seed(11);
	guint round, i, c, k, n_freed = 0, n_evacuated = 0;

	for (round = 0; round < 300; round++) {
		g_autoptr(Host) host = host_new(5, 1, 48);
		const guint usable[] = {48, 48, 40, 48, 48, 48};
		gboolean closed[7] = {FALSE};
		RmPlanVm vms[4] = {0};
		guint capacities[4], n_used[4], before = 0, after = 0, freed, n = 0;

		set_mbps(host, 10000);
		host->use[2].free_chunks = 40;
		for (i = 0; i < 4; i++) {
			guint n_channels = (guint)g_rand_int_range(rand, 1, 4);
			guint mbps = g_rand_boolean(rand)
					     ? n_channels * (guint)g_rand_int_range(rand, 1, 6000)
					     : 0;
			RmPlanRequest r = shared_request(
				"vm", n_channels * (guint)g_rand_int_range(rand, 2, 20), n_channels,
				mbps);
			GArray *nodes = rm_planner_place(host->topology, host->use, &r, NULL);

			if (!nodes)
				continue;
			vms[n].name = "vm";
			vms[n].nodes = nodes;
			vms[n].goal = (RmPlanGoal){r.capacity_chunks, n_channels, mbps, TRUE};
			for (k = 0; k < nodes->len; k++) {
				const RmPlanNode *node = &g_array_index(nodes, RmPlanNode, k);

				if (!node->target_chunks)
					continue;
				host->use[node->channel].free_chunks -= node->target_chunks;
				rm_plan_use_add(&host->use[node->channel], "vm", TRUE,
						rm_planner_part_mbps(mbps, n_channels));
			}
			n++;
		}
		for (i = 0; i < n; i++) {
			capacities[i] = capacity_of(&vms[i]);
			n_used[i] = rm_planner_n_used(vms[i].nodes);
			g_assert_cmpuint(capacities[i], ==, vms[i].goal.capacity_chunks);
		}
		for (c = 0; c < 6; c++)
			before += sum_on(vms, n, c) != 0;
		if (round % 2) {
			closed[5] = sum_on(vms, n, 5) == 0;
			freed = rm_planner_compact(host->topology, usable, closed, vms, n);
			for (c = 0; c < 6; c++)
				after += sum_on(vms, n, c) != 0;
			g_assert_cmpuint(before - after, ==, freed);
			g_assert_true(!closed[5] || !sum_on(vms, n, 5));
			n_freed += freed;
		} else if (rm_planner_evacuate(host->topology, usable, closed, vms, n, 3, FALSE,
					       NULL)) {
			guint bases = 0;

			for (i = 0; i < n; i++) {
				for (k = 0; k < vms[i].nodes->len; k++) {
					const RmPlanNode *node =
						&g_array_index(vms[i].nodes, RmPlanNode, k);

					bases += node->channel == 3 ? node->base_chunks : 0;
				}
			}
			g_assert_cmpuint(sum_on(vms, n, 3), ==, bases);
			n_evacuated++;
		}
		for (c = 0; c < 6; c++)
			g_assert_cmpuint(sum_on(vms, n, c), <=, usable[c]);
		for (i = 0; i < n; i++) {
			g_assert_cmpuint(capacity_of(&vms[i]), ==, capacities[i]);
			g_assert_cmpuint(rm_planner_n_used(vms[i].nodes), ==, n_used[i]);
			for (k = 0; k < vms[i].nodes->len; k++) {
				const RmPlanNode *node =
					&g_array_index(vms[i].nodes, RmPlanNode, k);

				g_assert_cmpuint(node->target_chunks, >=, node->base_chunks);
			}
			g_array_unref(vms[i].nodes);
		}
	}
	/* The test would pass on a planner that never moves. */
	g_assert_cmpuint(n_freed, >, 0);
	g_assert_cmpuint(n_evacuated, >, 50);
}

int
main(int argc, char **argv)
{
	g_test_init(&argc, &argv, NULL);
	g_test_add_func("/planner/even", test_even);
	g_test_add_func("/planner/nodes", test_nodes);
	g_test_add_func("/planner/base", test_base);
	g_test_add_func("/planner/exclusive", test_exclusive);
	g_test_add_func("/planner/refusals", test_refusals);
	g_test_add_func("/planner/sockets", test_sockets);
	g_test_add_func("/planner/resize", test_resize);
	g_test_add_func("/planner/random", test_random);
	g_test_add_func("/planner/what-fits", test_what_fits);
	g_test_add_func("/planner/shared", test_shared);
	g_test_add_func("/planner/mbps", test_mbps);
	g_test_add_func("/planner/closed", test_closed);
	g_test_add_func("/planner/moves", test_moves);
	return g_test_run();
}
