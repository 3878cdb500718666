/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Which channels a domain is to have, and how many chunks of each. Pure: the same topology, use and
 * request give the same plan, and nothing is changed. Knows no ledger, store, bus or loop.
 *
 * Rules:
 * - exclusive: a channel that another domain has or is to have is taken;
 * - shared: such a domain may lie on one channel with others that share. What it reserves in MB/s
 *   is reserved on its channels in equal parts, and a channel never reserves more than it has. With
 *   a bandwidth in channels it reserves nothing: it gets what the others leave;
 * - MB/s: the fewest channels that give it;
 * - a channel that is draining or offline gets nothing; what must stay (base memory) stays;
 * - each DIMM head holds at least its base memory;
 * - the chunk counts of a domain's channels differ by at most one; where a head's base memory is
 *   more than its even share, the head holds exactly that and the others are even;
 * - a domain keeps the channels that it has, DIMMs come before CXL; one that shares goes where
 *   others share already, into the tightest fit, so that whole channels stay free; then the order
 *   of cNodes.
 */
#ifndef RM_PLANNER_H
#define RM_PLANNER_H

#include "rm-topology.h"

G_BEGIN_DECLS

/* How a channel is used, in the order of the topology. */
typedef struct {
	guint free_chunks;     /* free, or dirty and thus free soon */
	guint held_chunks;     /* by the domain that is planned for, including base */
	const char *taken_by;  /* another domain that has it for itself, or NULL */
	const char *shared_by; /* another domain that shares it, or NULL */
	guint shared_mbps;     /* reserved by those */
	gboolean closed;       /* draining or offline */
} RmPlanUse;

/* What a domain is to have. */
typedef struct {
	guint capacity_chunks;
	guint bandwidth_channels; /* 0: as many as mbps needs */
	guint mbps;               /* 0: none asked for */
	gboolean shared;
} RmPlanGoal;

/* What a new domain asks for. Sizes in chunks, including base memory. */
typedef struct {
	const char *name; /* for messages */
	guint capacity_chunks;
	guint capacity_min_chunks;
	guint capacity_max_chunks;
	guint bandwidth_channels; /* 0: by mbps */
	guint mbps;
	gboolean shared;
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

/* New targets for a domain of @nodes (RmPlanNode). On error nothing is changed. */
gboolean rm_planner_resize(const RmTopology *topology, const RmPlanUse *use, GArray *nodes,
			   const RmPlanGoal *goal, GError **error);

/* How many channels the targets of @nodes use. */
guint rm_planner_n_used(const GArray *nodes);

/*
 * Adds another domain's part of one channel to @use: its name (borrowed), whether it shares, and
 * what it reserves there.
 */
void rm_plan_use_add(RmPlanUse *use, const char *name, gboolean shared, guint mbps);

/* What a domain of @n channels reserves on each of them. */
guint rm_planner_part_mbps(guint mbps, guint n);

/* ---- moving what runs ---- */

typedef struct {
	const char *name;
	GArray *nodes; /* of RmPlanNode; their targets are what is and what is to be */
	RmPlanGoal goal;
	gboolean moved; /* set when a target was changed */
} RmPlanVm;

/*
 * Moves all domains off the channel @channel, onto channels that are in use already (@only_used) or
 * any. @usable_chunks: what each channel can hold at all; @closed: by channel. TRUE: all left but
 * base memory. On error nothing is changed.
 */
gboolean rm_planner_evacuate(const RmTopology *topology, const guint *usable_chunks,
			     const gboolean *closed, RmPlanVm *vms, guint n_vms, guint channel,
			     gboolean only_used, GError **error);

/*
 * Frees whole channels by moving domains, those with the least on them first. Returns how many
 * were freed; the targets of @vms say how. No domain gets less of anything.
 */
guint rm_planner_compact(const RmTopology *topology, const guint *usable_chunks,
			 const gboolean *closed, RmPlanVm *vms, guint n_vms);

/*
 * Sets the target of the node on @channel by hand, if it may have that; the rest stays. The caller
 * checks the sum.
 */
gboolean rm_planner_set(const RmTopology *topology, const RmPlanUse *use, GArray *nodes,
			gboolean shared, const char *channel, guint chunks, GError **error);

G_END_DECLS

#endif
