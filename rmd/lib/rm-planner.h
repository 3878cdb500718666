/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Which channels a domain is to have, and how many chunks of each. Pure: the same topology, use and
 * request give the same plan, and nothing is changed. Knows no ledger, store, bus or loop.
 *
 * Rules:
 * - exclusive: a channel that another domain has or is to have is taken;
 * - each DIMM head holds at least its base memory;
 * - the chunk counts of a domain's channels differ by at most one; where a head's base memory is
 *   more than its even share, the head holds exactly that and the others are even;
 * - a domain keeps the channels that it has, DIMMs come before CXL, then the order of cNodes.
 */
#ifndef RM_PLANNER_H
#define RM_PLANNER_H

#include "rm-topology.h"

G_BEGIN_DECLS

/* How a channel is used, in the order of the topology. */
typedef struct {
	guint free_chunks;    /* free, or dirty and thus free soon */
	guint held_chunks;    /* by the domain that is planned for, including base */
	const char *taken_by; /* another domain, or NULL */
} RmPlanUse;

/* What a new domain asks for. Sizes in chunks, including base memory. */
typedef struct {
	const char *name; /* for messages */
	guint capacity_chunks;
	guint capacity_min_chunks;
	guint capacity_max_chunks;
	guint bandwidth_channels;
	guint bandwidth_min_channels;
	guint bandwidth_max_channels; /* 0: all possible channels */
	guint base_chunks;            /* of each DIMM head; 0: by the rule */
	guint64 sockets;              /* bits; 0: the first single socket that fits, else all */
	gboolean tier_dimm;
	gboolean tier_cxl;
	guint vcpus;
} RmPlanRequest;

/* One possible channel of a domain; its index in the placement is its cNode. */
typedef struct {
	guint channel; /* index in the topology */
	guint snode;   /* cNode of its head */
	guint base_chunks;
	guint window_chunks;
	guint target_chunks; /* including base */
} RmPlanNode;

/*
 * The base memory of one head in chunks: MAX(1 GiB, max / 8) in whole chunks, but never more than
 * capacity_min / heads, since it cannot be taken back.
 */
guint rm_planner_base_chunks(const RmPlanRequest *request, guint heads);

/*
 * All possible channels of a new domain as RmPlanNode, heads first, with their targets.
 * RM_ERROR_NO_SPACE says what would have fitted.
 */
GArray *rm_planner_place(const RmTopology *topology, const RmPlanUse *use,
			 const RmPlanRequest *request, GError **error);

/*
 * New targets for a domain of @nodes (RmPlanNode): @capacity_chunks on @n_channels channels. On
 * error nothing is changed.
 */
gboolean rm_planner_resize(const RmTopology *topology, const RmPlanUse *use, GArray *nodes,
			   guint capacity_chunks, guint n_channels, GError **error);

/*
 * Sets the target of the node on @channel by hand, if it may have that; the rest stays. The caller
 * checks the sum.
 */
gboolean rm_planner_set(const RmTopology *topology, const RmPlanUse *use, GArray *nodes,
			const char *channel, guint chunks, GError **error);

G_END_DECLS

#endif
