/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "rm-planner.h"

#include <string.h>

#include "rm-error.h"

#define BASE_MIN_CHUNKS ((guint)(RM_GIB / RM_CHUNK_BYTES))

static RmPlanNode *
node_at(GArray *nodes, guint i)
{
	return &g_array_index(nodes, RmPlanNode, i);
}

typedef struct {
	const RmTopology *topology;
	const RmPlanUse *use;
	GArray *nodes;
	const RmPlanGoal *goal;
} Order;

/* What the channel of @node can hold of this domain. */
static guint
node_limit(const Order *order, const RmPlanNode *node)
{
	const RmPlanUse *u = &order->use[node->channel];

	if (u->taken_by || (!order->goal->shared && u->shared_by))
		return 0;
	if (u->closed)
		return MIN(u->held_chunks, node->base_chunks);
	return MIN(u->free_chunks + u->held_chunks, node->base_chunks + node->window_chunks);
}

static guint
channel_mbps(const Order *order, const RmPlanNode *node)
{
	return rm_topology_channel(order->topology, node->channel)->read_mbps;
}

guint
rm_planner_part_mbps(guint mbps, guint n)
{
	return n ? (guint)(((guint64)mbps + n - 1) / n) : 0;
}

void
rm_plan_use_add(RmPlanUse *use, const char *name, gboolean shared, guint mbps)
{
	if (!shared) {
		use->taken_by = name;
		return;
	}
	use->shared_by = name;
	use->shared_mbps += mbps;
}

guint
rm_planner_n_used(const GArray *nodes)
{
	guint i, n = 0;

	for (i = 0; i < nodes->len; i++)
		n += g_array_index(nodes, RmPlanNode, i).target_chunks != 0;
	return n;
}

/*
 * The order in which channels are chosen: those with base memory, those that the domain has, DIMM
 * before CXL; for one that shares those that are shared, the fullest first; by cNode.
 */
static gint
compare_nodes(gconstpointer a, gconstpointer b, gpointer data)
{
	const Order *order = data;
	const guint ia = *(const guint *)a, ib = *(const guint *)b;
	const RmPlanNode *na = node_at(order->nodes, ia), *nb = node_at(order->nodes, ib);
	gint base = !na->base_chunks - !nb->base_chunks;
	gint held = !order->use[na->channel].held_chunks - !order->use[nb->channel].held_chunks;
	gint tier = (gint)rm_topology_channel(order->topology, na->channel)->tier -
		    (gint)rm_topology_channel(order->topology, nb->channel)->tier;

	if (base)
		return base;
	if (held)
		return held;
	if (tier)
		return tier;
	if (order->goal->shared) {
		const RmPlanUse *ua = &order->use[na->channel], *ub = &order->use[nb->channel];
		gint used = !ua->shared_by - !ub->shared_by;
		guint la = node_limit(order, na), lb = node_limit(order, nb);

		if (used)
			return used;
		if (la != lb)
			return la < lb ? -1 : 1;
	}
	return ia < ib ? -1 : ia > ib;
}

static GArray *
sorted_nodes(const Order *order)
{
	GArray *sorted = g_array_new(FALSE, FALSE, sizeof(guint));
	guint i;

	for (i = 0; i < order->nodes->len; i++)
		g_array_append_val(sorted, i);
	g_array_sort_with_data(sorted, compare_nodes, (gpointer)order);
	return sorted;
}

/*
 * Shares of @capacity over @n channels of which the first @n_bases hold at least bases[i]: the even
 * share of those that do not stand out, and how many of them get one more. FALSE: less than the
 * bases.
 */
static gboolean
even_share(const guint *bases, guint n_bases, guint n, guint capacity, guint *ret_share,
	   guint *ret_extra)
{
	guint rest = capacity, even = n, i;
	gboolean again = TRUE;
	g_autofree gboolean *out = g_new0(gboolean, n_bases + 1);

	/* Takes out the bases above the even share of the rest until there is none. */
	while (again) {
		guint limit = even ? rest / even : 0, exact = 0;

		again = FALSE;
		/* A base of one more than the share stays in while there is an extra for it. */
		for (i = 0; i < n_bases; i++)
			exact += !out[i] && bases[i] == limit + 1;
		if (even && exact <= rest % even)
			limit++;
		for (i = 0; i < n_bases; i++) {
			if (out[i] || bases[i] <= limit)
				continue;
			if (bases[i] > rest)
				return FALSE;
			out[i] = TRUE;
			rest -= bases[i];
			even--;
			again = TRUE;
		}
	}
	if (!even) {
		if (rest)
			return FALSE;
		*ret_share = 0;
		*ret_extra = 0;
		return TRUE;
	}
	*ret_share = rest / even;
	*ret_extra = rest % even;
	return TRUE;
}

/* What would have fitted: the largest capacity on @n channels at most @capacity; 0 if none. */
static guint largest_capacity(const Order *order, GArray *sorted, guint n, guint capacity);

static gboolean
try_resize(const Order *order, GArray *sorted, guint capacity, guint n, guint *targets,
	   guint *ret_short, guint *ret_usable)
{
	g_autofree guint *bases = g_new0(guint, order->nodes->len + 1);
	g_autoptr(GArray) chosen = g_array_new(FALSE, FALSE, sizeof(guint));
	guint n_bases = 0, share, extra, i, pass;

	const guint mbps = order->goal->mbps, part_mbps = rm_planner_part_mbps(mbps, n);
	guint64 sum_mbps = 0;

	*ret_short = 0;
	*ret_usable = 0;
	for (i = 0; i < sorted->len; i++) {
		const RmPlanNode *node = node_at(order->nodes, g_array_index(sorted, guint, i));

		targets[g_array_index(sorted, guint, i)] = 0;
		if (node->base_chunks)
			bases[n_bases++] = node->base_chunks;
	}
	if (n < n_bases || !even_share(bases, n_bases, n, capacity, &share, &extra))
		return FALSE;
	if (n > n_bases && !share)
		return FALSE;
	/* Those that can hold the share; the first n of them. */
	for (i = 0; i < sorted->len; i++) {
		guint index = g_array_index(sorted, guint, i);
		const RmPlanNode *node = node_at(order->nodes, index);
		guint limit = node_limit(order, node);

		if (limit && order->goal->shared && mbps &&
		    order->use[node->channel].shared_mbps + part_mbps > channel_mbps(order, node))
			limit = 0;
		if (limit < MAX(share, node->base_chunks) || !limit) {
			*ret_short = share;
			if (node->base_chunks)
				return FALSE;
			continue;
		}
		(*ret_usable)++;
		if (chosen->len < n) {
			targets[index] = MAX(share, node->base_chunks);
			sum_mbps += channel_mbps(order, node);
			g_array_append_val(chosen, index);
		}
	}
	if (chosen->len < n || sum_mbps < mbps)
		return FALSE;
	/*
	 * One more for `extra` of them: first where the base memory takes it already, then where
	 * the domain has it already, then in order.
	 */
	for (pass = 0; pass < 3 && extra; pass++) {
		for (i = 0; i < chosen->len && extra; i++) {
			guint index = g_array_index(chosen, guint, i);
			const RmPlanNode *node = node_at(order->nodes, index);

			if (pass == 0 && node->base_chunks == share + 1) {
				extra--; /* it has it: targets is its base */
				continue;
			}
			if (pass == 0 || targets[index] != share ||
			    node_limit(order, node) < share + 1)
				continue;
			if (pass == 1 && order->use[node->channel].held_chunks <= share)
				continue;
			targets[index]++;
			extra--;
		}
	}
	if (extra) {
		*ret_short = share + 1;
		return FALSE;
	}
	return TRUE;
}

static guint
largest_capacity(const Order *order, GArray *sorted, guint n, guint capacity)
{
	g_autofree guint *targets = g_new0(guint, order->nodes->len + 1);
	guint low = 0, high = capacity, dummy, usable;

	/* Whatever fits, every smaller capacity above the bases fits as well: bisect. */
	while (low < high) {
		guint mid = low + (high - low + 1) / 2;

		if (try_resize(order, sorted, mid, n, targets, &dummy, &usable))
			low = mid;
		else
			high = mid - 1;
	}
	return try_resize(order, sorted, low, n, targets, &dummy, &usable) ? low : 0;
}

/* The largest number of channels below @n on which @capacity fits; 0 if none. */
static guint
largest_bandwidth(const Order *order, GArray *sorted, guint n, guint capacity)
{
	g_autofree guint *targets = g_new0(guint, order->nodes->len + 1);
	guint dummy, usable;

	for (n = MIN(n, order->nodes->len + 1); n > 1; n--) {
		if (try_resize(order, sorted, capacity, n - 1, targets, &dummy, &usable))
			return n - 1;
	}
	return 0;
}

static char *
describe_use(const Order *order)
{
	g_autoptr(GString) text = g_string_new(NULL);
	guint i;

	for (i = 0; i < order->nodes->len; i++) {
		const RmPlanNode *node = node_at(order->nodes, i);
		const RmPlanUse *u = &order->use[node->channel];

		g_string_append_printf(text, "%s%s", text->len ? ", " : "",
				       rm_topology_channel(order->topology, node->channel)->name);
		if (u->taken_by || (u->shared_by && !order->goal->shared))
			g_string_append_printf(text, " of %s",
					       u->taken_by ? u->taken_by : u->shared_by);
		else if (u->closed)
			g_string_append(text, " closed");
		else
			g_string_append_printf(text, " %u", node_limit(order, node));
	}
	return g_string_free(g_steal_pointer(&text), FALSE);
}

static char *
describe_fit(const Order *order, GArray *sorted, guint capacity, guint n)
{
	guint smaller = n <= order->nodes->len ? largest_capacity(order, sorted, n, capacity) : 0;
	guint fewer = largest_bandwidth(order, sorted, n, capacity);
	g_autofree char *size = rm_size_format(smaller * RM_CHUNK_BYTES);
	g_autofree char *whole = rm_size_format(capacity * RM_CHUNK_BYTES);

	if (smaller && fewer)
		return g_strdup_printf("%s on %u channels or %s on %u would fit", size, n, whole,
				       fewer);
	if (smaller)
		return g_strdup_printf("%s on %u channels would fit", size, n);
	if (fewer)
		return g_strdup_printf("%s on %u channels would fit", whole, fewer);
	return g_strdup("nothing near it would fit");
}

static guint
sum_of_bases(GArray *nodes, guint *ret_n)
{
	guint sum = 0, n = 0, i;

	for (i = 0; i < nodes->len; i++) {
		sum += node_at(nodes, i)->base_chunks;
		n += node_at(nodes, i)->base_chunks != 0;
	}
	*ret_n = n;
	return sum;
}

static gboolean
fail_small(const RmPlanGoal *goal, guint bases, guint n_bases, const char *size, GError **error)
{
	g_autofree char *base = rm_size_format(bases * RM_CHUNK_BYTES);

	rm_error_set(error, RM_ERROR_INVALID,
		     "%s on %u channels is too little: the base memory is %s on %u "
		     "channels and stays",
		     size, goal->bandwidth_channels, base, n_bases);
	return FALSE;
}

/* The most MB/s that @capacity can have on any number of channels, and that number. */
static guint
largest_mbps(const Order *order, GArray *sorted, guint *ret_n)
{
	guint low = 0, high = order->goal->mbps;

	*ret_n = 0;
	while (low < high) {
		guint mid = low + (high - low + 1) / 2, n, dummy, usable;
		g_autofree guint *targets = g_new0(guint, order->nodes->len + 1);
		RmPlanGoal goal = *order->goal;
		Order try = *order;
		gboolean fits = FALSE;

		goal.mbps = mid;
		try.goal = &goal;
		for (n = 1; n <= order->nodes->len && !fits; n++) {
			fits = try_resize(&try, sorted, goal.capacity_chunks, n, targets, &dummy,
					  &usable);
			if (fits)
				*ret_n = n;
		}
		if (fits)
			low = mid;
		else
			high = mid - 1;
	}
	return low;
}

static gboolean
resize_by_mbps(const Order *order, GArray *sorted, guint *targets, const char *size, GError **error)
{
	guint first = MAX(1, order->goal->bandwidth_channels), n, dummy, usable, fit_n;
	guint last = order->goal->bandwidth_channels ? order->goal->bandwidth_channels
						     : order->nodes->len;
	g_autofree char *there = NULL;
	guint fit;

	for (n = first; n <= last; n++) {
		if (try_resize(order, sorted, order->goal->capacity_chunks, n, targets, &dummy,
			       &usable))
			return TRUE;
	}
	fit = largest_mbps(order, sorted, &fit_n);
	there = describe_use(order);
	if (fit)
		rm_error_set(error, RM_ERROR_NO_SPACE,
			     "%s with %u MB/s does not fit on any number of channels (%s); %s with "
			     "%u MB/s on %u channels would fit",
			     size, order->goal->mbps, there, size, fit, fit_n);
	else
		rm_error_set(
			error, RM_ERROR_NO_SPACE,
			"%s with %u MB/s does not fit on any number of channels (%s); nor does "
			"it with less bandwidth",
			size, order->goal->mbps, there);
	return FALSE;
}

gboolean
rm_planner_resize(const RmTopology *topology, const RmPlanUse *use, GArray *nodes,
		  const RmPlanGoal *goal, GError **error)
{
	const Order order = {topology, use, nodes, goal};
	const guint capacity_chunks = goal->capacity_chunks, n_channels = goal->bandwidth_channels;
	g_autoptr(GArray) sorted = sorted_nodes(&order);
	g_autofree guint *targets = g_new0(guint, nodes->len + 1);
	g_autofree char *size = rm_size_format(capacity_chunks * RM_CHUNK_BYTES);
	g_autofree char *fit = NULL;
	g_autofree char *there = NULL;
	guint share, usable, n_bases, bases, i;
	gboolean ok;

	bases = sum_of_bases(nodes, &n_bases);
	if ((n_channels && n_channels < n_bases) || capacity_chunks < bases)
		return fail_small(goal, bases, n_bases, size, error);
	if (n_channels > nodes->len) {
		rm_error_set(error, RM_ERROR_NO_SPACE,
			     "%u channels are wanted, the placement allows %u", n_channels,
			     nodes->len);
		return FALSE;
	}
	if (goal->mbps) {
		if (!resize_by_mbps(&order, sorted, targets, size, error))
			return FALSE;
		ok = TRUE;
	} else {
		ok = try_resize(&order, sorted, capacity_chunks, n_channels, targets, &share,
				&usable);
	}
	if (ok) {
		for (i = 0; i < nodes->len; i++)
			node_at(nodes, i)->target_chunks = targets[i];
		return TRUE;
	}
	fit = describe_fit(&order, sorted, capacity_chunks, n_channels);
	there = describe_use(&order);
	if (!share) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "%s is too little for %u channels: each needs at least one chunk of "
			     "128 MiB beside the base memory; %s",
			     size, n_channels, fit);
		return FALSE;
	}
	rm_error_set(error, RM_ERROR_NO_SPACE,
		     "%s on %u channels needs %u chunks of 128 MiB on each, %u channels have them "
		     "(%s); %s",
		     size, n_channels, share, usable, there, fit);
	return FALSE;
}

gboolean
rm_planner_set(const RmTopology *topology, const RmPlanUse *use, GArray *nodes, gboolean shared,
	       const char *channel, guint chunks, GError **error)
{
	guint i;

	for (i = 0; i < nodes->len; i++) {
		RmPlanNode *node = node_at(nodes, i);
		const RmPlanUse *u = &use[node->channel];

		if (!g_str_equal(rm_topology_channel(topology, node->channel)->name, channel))
			continue;
		if (chunks && (u->taken_by || (u->shared_by && !shared))) {
			rm_error_set(
				error, RM_ERROR_NO_SPACE,
				"channel %s: %u chunks are wanted, but it is taken by domain %s",
				channel, chunks, u->taken_by ? u->taken_by : u->shared_by);
			return FALSE;
		}
		if (u->closed && chunks > u->held_chunks) {
			rm_error_set(error, RM_ERROR_BUSY,
				     "channel %s: %u chunks are wanted, but it is draining or "
				     "offline and gives no more than the %u that the domain has",
				     channel, chunks, u->held_chunks);
			return FALSE;
		}
		if (chunks < node->base_chunks) {
			rm_error_set(error, RM_ERROR_INVALID,
				     "channel %s: %u chunks are less than its base memory of %u, "
				     "which stays",
				     channel, chunks, node->base_chunks);
			return FALSE;
		}
		if (chunks > node->base_chunks + node->window_chunks) {
			rm_error_set(error, RM_ERROR_INVALID,
				     "channel %s: %u chunks are more than this domain can have on "
				     "it, %u",
				     channel, chunks, node->base_chunks + node->window_chunks);
			return FALSE;
		}
		if (chunks > u->free_chunks + u->held_chunks) {
			rm_error_set(error, RM_ERROR_NO_SPACE,
				     "channel %s: %u chunks are wanted, %u are free and %u are the "
				     "domain's",
				     channel, chunks, u->free_chunks, u->held_chunks);
			return FALSE;
		}
		node->target_chunks = chunks;
		return TRUE;
	}
	rm_error_set(error, RM_ERROR_NOT_FOUND,
		     "channel %s does not exist or is not one that this domain may have", channel);
	return FALSE;
}

/* ---- a new domain ---- */

guint
rm_planner_base_chunks(const RmPlanRequest *request, guint heads)
{
	guint base = request->base_chunks;

	if (!base) {
		base = MAX(BASE_MIN_CHUNKS, (request->capacity_max_chunks + 7) / 8);
		base = MIN(base, request->capacity_min_chunks / MAX(heads, 1));
	}
	return MAX(base, 1);
}

/*
 * The head of a socket (or of the CXL domain): the first channel in configuration order that is not
 * taken and can hold @most of the domain, or else its base memory; for a domain that shares, one
 * that is shared already and then the tightest fit. Where none can, any, and the plan then fails
 * with the message of rm_planner_resize(). FALSE: there is no such channel at all.
 */
static gboolean
find_head(const RmTopology *topology, const RmPlanUse *use, const RmPlanRequest *request,
	  RmTier tier, guint socket, guint base, guint most, guint *ret_channel)
{
	gboolean found = FALSE, fits = FALSE;
	guint64 best = 0;
	guint i;

	for (i = 0; i < rm_topology_n_channels(topology); i++) {
		const RmChannel *channel = rm_topology_channel(topology, i);

		if (channel->tier != tier || (tier == RM_TIER_DIMM && channel->socket != socket))
			continue;
		if (!found)
			*ret_channel = i;
		found = TRUE;
		if (use[i].taken_by || use[i].closed || (use[i].shared_by && !request->shared) ||
		    use[i].free_chunks < base)
			continue;
		if (request->shared) {
			/* Of as many channels as are asked for, or as it needs at least. */
			guint n = request->bandwidth_channels
					  ? request->bandwidth_channels
					  : request->mbps / MAX(channel->read_mbps, 1) + 1;
			guint need = rm_planner_part_mbps(request->mbps, n);
			/* Too full for its part is last, empty before it, tight first. */
			guint64 score = use[i].free_chunks;

			if (!use[i].shared_by)
				score += G_MAXUINT32;
			if (use[i].free_chunks < most ||
			    use[i].shared_mbps + need > channel->read_mbps)
				score += 2 * (guint64)G_MAXUINT32;
			if (fits && score >= best)
				continue;
			best = score;
		} else if (fits) {
			continue;
		}
		fits = TRUE;
		*ret_channel = i;
	}
	return found;
}

static void
add_node(const RmTopology *topology, const RmPlanRequest *request, GArray *nodes, guint channel,
	 guint snode, guint base)
{
	guint size = rm_topology_channel(topology, channel)->size_chunks;
	guint most = MIN(size, request->capacity_max_chunks);
	RmPlanNode node = {
		.channel = channel,
		.snode = snode,
		.base_chunks = base,
		.window_chunks = most > base ? most - base : 1,
	};

	g_array_append_val(nodes, node);
}

/* All possible channels for the sockets of @sockets, heads first. */
static GArray *
possible_nodes(const RmTopology *topology, const RmPlanUse *use, const RmPlanRequest *request,
	       guint64 sockets)
{
	g_autoptr(GArray) nodes = g_array_new(FALSE, TRUE, sizeof(RmPlanNode));
	g_autofree gboolean *done = g_new0(gboolean, rm_topology_n_channels(topology) + 1);
	guint n_heads = 0, heads = 0, base, most, socket, channel, i;

	for (socket = 0; socket <= RM_SOCKET_MAX; socket++)
		heads += (sockets >> socket) & 1;
	base = rm_planner_base_chunks(request, heads);
	most = request->capacity_chunks / MAX(request->bandwidth_channels, 1);
	for (socket = 0; request->tier_dimm && socket <= RM_SOCKET_MAX; socket++) {
		if (!((sockets >> socket) & 1) ||
		    !find_head(topology, use, request, RM_TIER_DIMM, socket, base, MAX(base, most),
			       &channel))
			continue;
		add_node(topology, request, nodes, channel, n_heads++, base);
		done[channel] = TRUE;
	}
	if (request->tier_cxl &&
	    find_head(topology, use, request, RM_TIER_CXL, 0, 1, MAX(1, most), &channel)) {
		add_node(topology, request, nodes, channel, n_heads++, 0);
		done[channel] = TRUE;
	}
	for (i = 0; i < rm_topology_n_channels(topology); i++) {
		const RmChannel *c = rm_topology_channel(topology, i);
		guint head;

		if (done[i] || !(c->tier == RM_TIER_DIMM ? request->tier_dimm : request->tier_cxl))
			continue;
		if (c->tier == RM_TIER_DIMM && !((sockets >> c->socket) & 1))
			continue;
		for (head = 0; head < n_heads; head++) {
			const RmChannel *h =
				rm_topology_channel(topology, node_at(nodes, head)->channel);

			if (h->tier == c->tier &&
			    (c->tier == RM_TIER_CXL || h->socket == c->socket))
				break;
		}
		add_node(topology, request, nodes, i, head, 0);
	}
	return g_steal_pointer(&nodes);
}

static GArray *
place_on(const RmTopology *topology, const RmPlanUse *use, const RmPlanRequest *request,
	 guint64 sockets, GError **error)
{
	g_autoptr(GArray) nodes = possible_nodes(topology, use, request, sockets);
	const RmPlanGoal goal = {request->capacity_chunks, request->bandwidth_channels,
				 request->mbps, request->shared};
	guint n_bases, bases = sum_of_bases(nodes, &n_bases);

	if (bases > request->capacity_min_chunks) {
		g_autofree char *base = rm_size_format(bases * RM_CHUNK_BYTES);
		g_autofree char *min =
			rm_size_format(request->capacity_min_chunks * RM_CHUNK_BYTES);

		rm_error_set(error, RM_ERROR_INVALID,
			     "domain %s: its base memory of %s on %u heads is more than its least "
			     "capacity of %s, and cannot be taken back; lower base or raise min",
			     request->name, base, n_bases, min);
		return NULL;
	}
	if (request->bandwidth_channels && request->bandwidth_channels < n_bases) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "domain %s: bandwidth of %u channels is less than the %u sockets that "
			     "its placement names, each of which needs base memory",
			     request->name, request->bandwidth_channels, n_bases);
		return NULL;
	}
	if (!rm_planner_resize(topology, use, nodes, &goal, error)) {
		g_prefix_error(error, "domain %s: ", request->name);
		return NULL;
	}
	return g_steal_pointer(&nodes);
}

static gboolean
check_request(const RmTopology *topology, const RmPlanRequest *request, GError **error)
{
	guint64 unknown = request->sockets & ~rm_topology_sockets(topology);

	if (!request->tier_dimm) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "domain %s: tiers=\"cxl\" has no place for base memory, which lies on "
			     "DIMM channels; use tiers=\"dimm cxl\"",
			     request->name);
		return FALSE;
	}
	if (unknown) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "domain %s: sockets names socket %d, which has no DIMM channel here",
			     request->name, g_bit_nth_lsf((gulong)unknown, -1));
		return FALSE;
	}
	return TRUE;
}

GArray *
rm_planner_place(const RmTopology *topology, const RmPlanUse *use, const RmPlanRequest *request,
		 GError **error)
{
	guint64 sockets = rm_topology_sockets(topology);
	guint socket;

	if (!check_request(topology, request, error))
		return NULL;
	if (request->sockets)
		return place_on(topology, use, request, request->sockets, error);
	for (socket = 0; socket <= RM_SOCKET_MAX; socket++) {
		guint64 one = G_GUINT64_CONSTANT(1) << socket;
		g_autoptr(GError) local = NULL;
		GArray *nodes;

		if (!(sockets & one))
			continue;
		nodes = place_on(topology, use, request, one, &local);
		if (nodes)
			return nodes;
		/* On a host of one socket this is the reason to tell. */
		if (sockets == one) {
			g_propagate_error(error, g_steal_pointer(&local));
			return NULL;
		}
	}
	return place_on(topology, use, request, sockets, error);
}

/* ---- moving what runs ---- */

/* The use of all channels as @vms have it, for the one at @self. */
static RmPlanUse *
use_of(const RmTopology *topology, const guint *usable_chunks, const gboolean *closed,
       const RmPlanVm *vms, guint n_vms, guint self)
{
	guint n = rm_topology_n_channels(topology), i, k;
	RmPlanUse *use = g_new0(RmPlanUse, n + 1);

	for (i = 0; i < n; i++) {
		use[i].free_chunks = usable_chunks[i];
		use[i].closed = closed[i];
	}
	for (i = 0; i < n_vms; i++) {
		guint part =
			rm_planner_part_mbps(vms[i].goal.mbps, rm_planner_n_used(vms[i].nodes));

		for (k = 0; k < vms[i].nodes->len; k++) {
			const RmPlanNode *node = node_at(vms[i].nodes, k);
			RmPlanUse *u = &use[node->channel];

			if (!node->target_chunks)
				continue;
			u->free_chunks -= MIN(u->free_chunks, node->target_chunks);
			if (i == self)
				u->held_chunks = node->target_chunks;
			else
				rm_plan_use_add(u, vms[i].name, vms[i].goal.shared, part);
		}
	}
	return use;
}

static guint
target_on(const RmPlanVm *vm, guint channel, guint *ret_base)
{
	guint k;

	for (k = 0; k < vm->nodes->len; k++) {
		const RmPlanNode *node = node_at(vm->nodes, k);

		if (node->channel != channel)
			continue;
		*ret_base = node->base_chunks;
		return node->target_chunks;
	}
	*ret_base = 0;
	return 0;
}

static GArray *
copy_nodes(const GArray *nodes)
{
	GArray *copy = g_array_sized_new(FALSE, TRUE, sizeof(RmPlanNode), nodes->len);

	return g_array_append_vals(copy, nodes->data, nodes->len);
}

gboolean
rm_planner_evacuate(const RmTopology *topology, const guint *usable_chunks, const gboolean *closed,
		    RmPlanVm *vms, guint n_vms, guint channel, gboolean only_used, GError **error)
{
	guint n = rm_topology_n_channels(topology), i;
	g_autofree gboolean *shut = g_new0(gboolean, n + 1);
	g_autofree RmPlanVm *plan = g_new0(RmPlanVm, n_vms + 1);
	g_autoptr(GPtrArray) owned = g_ptr_array_new_with_free_func((GDestroyNotify)g_array_unref);
	gboolean ok = TRUE;
	guint base;

	memcpy(shut, closed, n * sizeof(*closed));
	if (n_vms)
		memcpy(plan, vms, n_vms * sizeof(*vms));
	for (i = 0; only_used && i < n; i++) {
		guint k, sum = 0;

		for (k = 0; k < n_vms; k++)
			sum += target_on(&vms[k], i, &base);
		shut[i] |= !sum;
	}
	shut[channel] = TRUE;
	for (i = 0; i < n_vms && ok; i++) {
		guint before = target_on(&plan[i], channel, &base);
		g_autofree RmPlanUse *use = NULL;
		GArray *nodes;

		if (!before || before == base)
			continue;
		nodes = copy_nodes(plan[i].nodes);
		g_ptr_array_add(owned, nodes);
		use = use_of(topology, usable_chunks, shut, plan, n_vms, i);
		ok = rm_planner_resize(topology, use, nodes, &plan[i].goal, error);
		if (!ok)
			g_prefix_error(error, "domain %s cannot leave channel %s%s: ", plan[i].name,
				       rm_topology_channel(topology, channel)->name,
				       base ? " (its base memory is there and leaves only by "
					      "migration of the domain)"
					    : "");
		plan[i].nodes = nodes;
		plan[i].moved = TRUE;
	}
	for (i = 0; i < n_vms && ok; i++) {
		if (plan[i].nodes == vms[i].nodes)
			continue;
		g_array_set_size(vms[i].nodes, 0);
		g_array_append_vals(vms[i].nodes, plan[i].nodes->data, plan[i].nodes->len);
		vms[i].moved = TRUE;
	}
	return ok;
}

guint
rm_planner_compact(const RmTopology *topology, const guint *usable_chunks, const gboolean *closed,
		   RmPlanVm *vms, guint n_vms)
{
	guint n = rm_topology_n_channels(topology), freed = 0, round;
	g_autofree gboolean *tried = g_new0(gboolean, n + 1);

	for (round = 0; round < n; round++) {
		guint best = n, least = G_MAXUINT, i, k;

		for (i = 0; i < n; i++) {
			gboolean any_base = FALSE;
			guint sum = 0, base;

			for (k = 0; k < n_vms; k++) {
				guint chunks = target_on(&vms[k], i, &base);

				sum += chunks;
				any_base |= base && chunks;
			}
			if (!tried[i] && sum && !any_base && sum < least) {
				least = sum;
				best = i;
			}
		}
		if (best == n)
			break;
		tried[best] = TRUE;
		freed += rm_planner_evacuate(topology, usable_chunks, closed, vms, n_vms, best,
					     TRUE, NULL);
	}
	return freed;
}
