/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What to do when the books and the world do not say the same: one table of cases. Pure: the facts
 * go in, a case comes out; whoever asked does what its action says. The same functions decide at
 * the start of rmd, when a QEMU connects and when somebody asks (rmctl reconcile), so what is shown
 * is what is done.
 */
#ifndef RM_RECONCILE_H
#define RM_RECONCILE_H

#include "rm-ledger.h"

G_BEGIN_DECLS

typedef enum {
	RM_ACTION_KEEP,         /* right as it is, or not known yet */
	RM_ACTION_ADOPT,        /* into the books */
	RM_ACTION_RELEASE,      /* take back, scrub, free */
	RM_ACTION_ROLL_FORWARD, /* finish what was begun */
	RM_ACTION_ROLL_BACK,    /* undo what was begun */
	RM_ACTION_QUARANTINE,   /* nobody gets it; report */
	RM_ACTION_REPORT,       /* the books are right; say that somebody says otherwise */
	RM_ACTION_N
} RmReconcileAction;

typedef enum {
	/* domains */
	RM_CASE_BOOT,
	RM_CASE_ENDED,
	RM_CASE_PROCESS_GONE,
	RM_CASE_PID_REUSED,
	RM_CASE_CLAIM_YOUNG,
	RM_CASE_CLAIM_OLD,
	RM_CASE_SILENT,
	RM_CASE_UNKNOWN_TO_LIBVIRT,
	RM_CASE_BEHIND,
	RM_CASE_AGREED,
	RM_CASE_STRANGER,
	/* chunks */
	RM_CASE_HELD,
	RM_CASE_RESERVED,
	RM_CASE_EXCESS,
	RM_CASE_NOT_HELD,
	RM_CASE_HELD_FREE,
	RM_CASE_HELD_DIRTY,
	RM_CASE_HELD_OTHER,
	RM_CASE_SCRUB_HALF,
	RM_CASE_MAPPED,
	RM_CASE_MAPPED_TWICE,
	RM_CASE_IN_USE,
	RM_CASE_N
} RmReconcileCase;

typedef struct {
	const char *name; /* as it is shown */
	RmReconcileAction action;
	const char *when;
	const char *then;
} RmReconcileRule;

/* The table's row of @c. */
const RmReconcileRule *rm_reconcile_rule(RmReconcileCase c);
const char *rm_reconcile_action_name(RmReconcileAction action);

typedef enum { RM_FACT_NO, RM_FACT_YES, RM_FACT_UNKNOWN } RmFact;

/* Of one domain of the ledger. */
typedef struct {
	gboolean same_boot;
	RmVmState state;
	RmFact process;     /* running: there is a process of that number */
	RmFact same_start;  /* and it began when ours did */
	RmFact in_libvirt;  /* libvirt says that it runs this domain as this process */
	gboolean claim_old; /* older than claim-timeout */
	gboolean connected; /* and it has said hello */
	gboolean at_target; /* it has what it is to have */
} RmDomainFacts;

RmReconcileCase rm_reconcile_domain(const RmDomainFacts *facts);

/* Of one chunk, as one domain's QEMU (@vm) sees it. */
typedef struct {
	const RmChunk *chunk; /* of the ledger */
	gint64 vm;
	gboolean base;   /* the region that is asked about */
	RmFact held;     /* what that QEMU said */
	gboolean wanted; /* within the target */
} RmChunkFacts;

RmReconcileCase rm_reconcile_chunk(const RmChunkFacts *facts);

/* Of a chunk that is new in the books (a lost ledger): how many processes of domains map it. */
RmReconcileCase rm_reconcile_added(guint n_domains, gboolean in_use);

G_END_DECLS

#endif
