/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Figures of the planner, as JSON on stdout:
 *
 *   rmd_plan time SEED      p99 of a plan for one domain on 2 sockets x 12 DIMM + 8 CXL channels of
 *                           4,096 chunks with 500 domains placed. A plan is all of it: the use of
 *                           every channel added up from the domains, and the placement.
 *   rmd_plan optimum SEED   channels that 200 small hosts use with the planner's placement of a few
 *                           domains (as they come, then compacted as `rmctl compact` does), over
 * the exact optimum of all of them at once, which GLPK finds.
 */
#include <glib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rm-planner.h"

#ifdef HAVE_GLPK
#include <glpk.h>
#endif

#define N_PLACED 500
#define N_PLANS  5000
#define N_CASES  200

typedef struct {
	char *name;
	GArray *nodes;
	RmPlanRequest request;
} Vm;

static void
add_channels(RmTopology *topology, RmTier tier, guint socket, guint n, guint chunks, guint mbps)
{
	guint i;

	for (i = 0; i < n; i++) {
		RmChannel *c = g_new0(RmChannel, 1);

		c->dax = rm_topology_n_channels(topology);
		c->name = g_strdup_printf("c%u", c->dax);
		c->store = g_strdup("lab");
		c->tier = tier;
		c->socket = socket;
		c->size_chunks = chunks;
		c->read_mbps = c->write_mbps = mbps;
		c->latency_ns = tier == RM_TIER_DIMM ? 100 : 250;
		g_assert_true(rm_topology_add(topology, c, NULL));
	}
}

static RmPlanUse *
make_use(const RmTopology *topology, const Vm *vms, guint n_vms)
{
	guint n = rm_topology_n_channels(topology), i, k;
	RmPlanUse *use = g_new0(RmPlanUse, n + 1);

	for (i = 0; i < n; i++)
		use[i].free_chunks = rm_topology_channel(topology, i)->size_chunks;
	for (i = 0; i < n_vms; i++) {
		const Vm *vm = &vms[i];
		guint part = rm_planner_part_mbps(vm->request.mbps, rm_planner_n_used(vm->nodes));

		for (k = 0; k < vm->nodes->len; k++) {
			const RmPlanNode *node = &g_array_index(vm->nodes, RmPlanNode, k);

			if (!node->target_chunks)
				continue;
			use[node->channel].free_chunks -= node->target_chunks;
			rm_plan_use_add(&use[node->channel], vm->name, vm->request.shared, part);
		}
	}
	return use;
}

static gint
compare_doubles(gconstpointer a, gconstpointer b)
{
	gdouble da = *(const gdouble *)a, db = *(const gdouble *)b;

	return da < db ? -1 : da > db;
}

static RmPlanRequest
random_request(GRand *rand, const char *name)
{
	RmPlanRequest r = {
		.name = name,
		.tier_dimm = TRUE,
		.tier_cxl = TRUE,
		.shared = TRUE,
		.vcpus = 4,
	};

	r.capacity_chunks = (guint)g_rand_int_range(rand, 16, 320);
	r.capacity_min_chunks = 8;
	r.capacity_max_chunks = 2 * r.capacity_chunks;
	if (g_rand_boolean(rand))
		r.mbps = (guint)g_rand_int_range(rand, 500, 3000);
	else
		r.bandwidth_channels = (guint)g_rand_int_range(rand, 1, 5);
	return r;
}

static int
bench_time(guint32 seed)
{
	g_autoptr(RmTopology) topology = rm_topology_new();
	g_autoptr(GRand) rand = g_rand_new_with_seed(seed);
	g_autofree Vm *vms = g_new0(Vm, N_PLACED);
	g_autofree gdouble *usec = g_new0(gdouble, N_PLANS);
	g_autofree gdouble *wall = g_new0(gdouble, N_PLANS);
	guint n = 0, i, refused = 0;

	add_channels(topology, RM_TIER_DIMM, 0, 12, 4096, 36000);
	add_channels(topology, RM_TIER_DIMM, 1, 12, 4096, 36000);
	add_channels(topology, RM_TIER_CXL, 0, 8, 4096, 27000);
	for (i = 0; n < N_PLACED; i++) {
		g_autofree RmPlanUse *use = make_use(topology, vms, n);
		Vm *vm = &vms[n];

		g_assert(i < 10 * N_PLACED);
		vm->name = g_strdup_printf("vm%u", n);
		vm->request = random_request(rand, vm->name);
		vm->nodes = rm_planner_place(topology, use, &vm->request, NULL);
		n += vm->nodes != NULL;
	}
	for (i = 0; i < N_PLANS; i++) {
		RmPlanRequest r = random_request(rand, "new");
		g_autofree RmPlanUse *use = NULL;
		g_autoptr(GArray) nodes = NULL;
		gint64 start = g_get_monotonic_time();
		struct timespec a, b;

		/* A plan waits for nothing: its processor time is its time on a machine of its own.
		 */
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
		use = make_use(topology, vms, n);
		nodes = rm_planner_place(topology, use, &r, NULL);
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
		usec[i] = (gdouble)(b.tv_sec - a.tv_sec) * 1e6 +
			  (gdouble)(b.tv_nsec - a.tv_nsec) / 1e3;
		wall[i] = (gdouble)(g_get_monotonic_time() - start);
		refused += !nodes;
	}
	qsort(wall, N_PLANS, sizeof(*wall), compare_doubles);
	qsort(usec, N_PLANS, sizeof(*usec), compare_doubles);
	printf("{\"placed\": %u, \"plans\": %d, \"refused\": %u, \"p50_usec\": %.1f, "
	       "\"p99_usec\": %.1f, \"max_usec\": %.1f, \"wall_p99_usec\": %.1f}\n",
	       n, N_PLANS, refused, usec[N_PLANS / 2], usec[N_PLANS * 99 / 100], usec[N_PLANS - 1],
	       wall[N_PLANS * 99 / 100]);
	return 0;
}

#ifdef HAVE_GLPK

/*
 * The fewest channels for all domains at once. x[v][c]: domain v lies on channel c; y[c]: c is
 * used. A domain of n channels has its share (rounded up, so this never asks for less than the
 * planner did) and its part of the MB/s on each; a domain for itself has its channels alone.
 */
static guint
exact(const RmTopology *topology, const Vm *vms, const guint *n_channels, guint n_vms)
{
	guint n = rm_topology_n_channels(topology), v, c, row = 0;
	glp_prob *p = glp_create_prob();
	glp_iocp parameters;
	guint result = 0;

#define X(v, c) ((int)((v)*n + (c) + 1))
#define Y(c)    ((int)(n_vms * n + (c) + 1))
	glp_set_obj_dir(p, GLP_MIN);
	glp_add_cols(p, (int)(n_vms * n + n));
	for (c = 0; c < n_vms * n + n; c++) {
		glp_set_col_kind(p, (int)c + 1, GLP_BV);
		glp_set_obj_coef(p, (int)c + 1, c < n_vms * n ? 0 : 1);
	}
	for (v = 0; v < n_vms; v++) {
		int index[64];
		double value[64];

		row = (guint)glp_add_rows(p, 1);
		for (c = 0; c < n; c++) {
			index[c + 1] = X(v, c);
			value[c + 1] = 1;
		}
		glp_set_row_bnds(p, (int)row, GLP_FX, n_channels[v], n_channels[v]);
		glp_set_mat_row(p, (int)row, (int)n, index, value);
	}
	for (c = 0; c < n; c++) {
		const RmChannel *channel = rm_topology_channel(topology, c);
		int index[64];
		double chunks[64], mbps[64];
		guint k = 0;

		for (v = 0; v < n_vms; v++) {
			const RmPlanRequest *r = &vms[v].request;

			k++;
			index[k] = X(v, c);
			/* One for itself fills the channel, whatever it needs of it. */
			chunks[k] = r->shared ? r->capacity_chunks / n_channels[v]
					      : channel->size_chunks;
			mbps[k] = r->shared ? rm_planner_part_mbps(r->mbps, n_channels[v])
					    : channel->read_mbps;
		}
		k++;
		index[k] = Y(c);
		chunks[k] = -(double)channel->size_chunks;
		mbps[k] = -(double)channel->read_mbps;
		row = (guint)glp_add_rows(p, 2);
		glp_set_row_bnds(p, (int)row, GLP_UP, 0, 0);
		glp_set_mat_row(p, (int)row, (int)k, index, chunks);
		glp_set_row_bnds(p, (int)row + 1, GLP_UP, 0, 0);
		glp_set_mat_row(p, (int)row + 1, (int)k, index, mbps);
		for (v = 0; v < n_vms; v++) {
			int both[3] = {0, X(v, c), Y(c)};
			double one[3] = {0, 1, -1};

			row = (guint)glp_add_rows(p, 1);
			glp_set_row_bnds(p, (int)row, GLP_UP, 0, 0);
			glp_set_mat_row(p, (int)row, 2, both, one);
		}
	}
	glp_init_iocp(&parameters);
	parameters.presolve = GLP_ON;
	parameters.msg_lev = GLP_MSG_OFF;
	if (glp_intopt(p, &parameters) == 0 && glp_mip_status(p) == GLP_OPT)
		result = (guint)(glp_mip_obj_val(p) + 0.5);
	glp_delete_prob(p);
	return result;
}

static guint
count_used(const RmTopology *topology, const Vm *vms, guint n_vms)
{
	g_autofree RmPlanUse *use = make_use(topology, vms, n_vms);
	guint i, used = 0;

	for (i = 0; i < rm_topology_n_channels(topology); i++)
		used += use[i].taken_by || use[i].shared_by;
	return used;
}

/* One case. FALSE: the planner refused a domain, so there is nothing to compare. */
static gboolean
one_case(GRand *rand, gdouble *ret_online, gdouble *ret_compact)
{
	guint n_vms = (guint)g_rand_int_range(rand, 2, 6), n, i, best, online, compacted;
	guint size = (guint)g_rand_int_range(rand, 24, 65);
	g_autoptr(RmTopology) topology = rm_topology_new();
	Vm vms[6] = {0};
	RmPlanVm plan[6] = {0};
	guint n_channels[6] = {0}, usable[16] = {0};
	gboolean closed[16] = {0}, ok = TRUE;

	add_channels(topology, RM_TIER_DIMM, 0, (guint)g_rand_int_range(rand, 4, 9), size, 36000);
	n = rm_topology_n_channels(topology);
	for (i = 0; i < n_vms && ok; i++) {
		RmPlanRequest *r = &vms[i].request;
		g_autofree RmPlanUse *use = make_use(topology, vms, i);

		vms[i].name = g_strdup_printf("vm%u", i);
		r->name = vms[i].name;
		r->tier_dimm = TRUE;
		r->vcpus = 1;
		r->base_chunks = 1;
		r->capacity_min_chunks = 1;
		r->shared = g_rand_int_range(rand, 0, 4) != 0;
		r->bandwidth_channels = (guint)g_rand_int_range(rand, 1, 4);
		/* Whole shares: then the planner and the optimum ask for the same. */
		r->capacity_chunks =
			r->bandwidth_channels * (guint)g_rand_int_range(rand, 4, (gint)size);
		r->capacity_max_chunks = size * 4;
		if (r->shared && g_rand_boolean(rand))
			r->mbps =
				r->bandwidth_channels * (guint)g_rand_int_range(rand, 2000, 24000);
		vms[i].nodes = rm_planner_place(topology, use, r, NULL);
		ok = vms[i].nodes != NULL;
		n_channels[i] = r->bandwidth_channels;
	}
	if (ok) {
		online = count_used(topology, vms, n_vms);
		best = exact(topology, vms, n_channels, n_vms);
		g_assert(best > 0 && best <= online);
		for (i = 0; i < n; i++)
			usable[i] = size;
		for (i = 0; i < n_vms; i++) {
			const RmPlanRequest *r = &vms[i].request;

			plan[i].name = vms[i].name;
			plan[i].nodes = vms[i].nodes;
			plan[i].goal = (RmPlanGoal){r->capacity_chunks, r->bandwidth_channels,
						    r->mbps, r->shared};
		}
		rm_planner_compact(topology, usable, closed, plan, n_vms);
		compacted = count_used(topology, vms, n_vms);
		g_assert(compacted >= best && compacted <= online);
		*ret_online = (gdouble)online / best;
		*ret_compact = (gdouble)compacted / best;
	}
	for (i = 0; i < n_vms; i++) {
		g_free(vms[i].name);
		if (vms[i].nodes)
			g_array_unref(vms[i].nodes);
	}
	return ok;
}

static int
bench_optimum(guint32 seed)
{
	g_autoptr(GRand) rand = g_rand_new_with_seed(seed);
	gdouble online = 0, compacted = 0, worst = 0;
	guint n = 0, refused = 0;

	while (n < N_CASES) {
		gdouble a, b;

		if (!one_case(rand, &a, &b)) {
			refused++;
			continue;
		}
		n++;
		online += a;
		compacted += b;
		worst = MAX(worst, b);
	}
	printf("{\"cases\": %u, \"refused\": %u, \"as_they_come\": %.4f, \"compacted\": %.4f, "
	       "\"worst\": %.4f}\n",
	       n, refused, online / n, compacted / n, worst);
	return 0;
}

#else

static int
bench_optimum(guint32 seed)
{
	fprintf(stderr, "built without GLPK (Debian: libglpk-dev): no optimum to compare with\n");
	return 1;
}

#endif

int
main(int argc, char **argv)
{
	guint32 seed = argc > 2 ? (guint32)g_ascii_strtoull(argv[2], NULL, 10) : 1;

	if (argc > 1 && g_str_equal(argv[1], "time"))
		return bench_time(seed);
	if (argc > 1 && g_str_equal(argv[1], "optimum"))
		return bench_optimum(seed);
	fprintf(stderr, "usage: rmd_plan time|optimum [SEED]\n");
	return 2;
}
