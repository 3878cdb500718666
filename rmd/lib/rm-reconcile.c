/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "rm-reconcile.h"

static const RmReconcileRule rules[RM_CASE_N] = {
	/* domains */
	[RM_CASE_BOOT] = {"boot", RM_ACTION_RELEASE, "the host was booted since",
			  "the domain is gone, and no chunk of the host is clean"},
	[RM_CASE_ENDED] = {"ended", RM_ACTION_RELEASE, "it had ended, chunks of it are left",
			   "all that it has is taken back"},
	[RM_CASE_PROCESS_GONE] = {"process-gone", RM_ACTION_RELEASE, "its process is gone",
				  "all that it has is taken back"},
	[RM_CASE_PID_REUSED] = {"pid-reused", RM_ACTION_RELEASE,
				"its process number belongs to a younger process",
				"all that it has is taken back; that process is nothing to us"},
	[RM_CASE_CLAIM_YOUNG] = {"claim-young", RM_ACTION_KEEP,
				 "it has a claim, and no process has come for it yet",
				 "it is waited for until claim-timeout"},
	[RM_CASE_CLAIM_OLD] = {"claim-old", RM_ACTION_RELEASE,
			       "it has a claim that is older than claim-timeout",
			       "the claim is dropped"},
	[RM_CASE_SILENT] = {"silent", RM_ACTION_KEEP, "its process lives and is not connected",
			    "nothing: that a connection ended says nothing of the domain"},
	[RM_CASE_UNKNOWN_TO_LIBVIRT] =
		{"unknown-to-libvirt", RM_ACTION_REPORT,
		 "its process lives, but libvirt runs the domain as another or not at all",
		 "it keeps what it has: memory that a process uses is not taken"},
	[RM_CASE_BEHIND] = {"behind", RM_ACTION_ROLL_FORWARD, "it has not yet what it is to have",
			    "the growth or shrink goes on"},
	[RM_CASE_AGREED] = {"agreed", RM_ACTION_KEEP, "it has what it is to have", "nothing"},
	[RM_CASE_STRANGER] = {"stranger", RM_ACTION_ADOPT,
			      "the books are lost, and a QEMU of this rmd maps chunks",
			      "it becomes a domain of the books again, with what it maps"},
	/* chunks */
	[RM_CASE_HELD] = {"held", RM_ACTION_KEEP, "granted to the domain that holds it", "nothing"},
	[RM_CASE_RESERVED] = {"reserved", RM_ACTION_ROLL_FORWARD,
			      "granted, but not held, and it is to have it",
			      "prepared anew and granted"},
	[RM_CASE_EXCESS] = {"excess", RM_ACTION_ROLL_BACK,
			    "granted, but not held, and more than it is to have", "released"},
	[RM_CASE_NOT_HELD] = {"not-held", RM_ACTION_RELEASE,
			      "was sent, and QEMU says that it has it not", "released"},
	[RM_CASE_HELD_FREE] = {"held-free", RM_ACTION_QUARANTINE,
			       "free in the books, and a QEMU says that it holds it",
			       "nobody gets it before that domain has ended"},
	[RM_CASE_HELD_DIRTY] = {"held-dirty", RM_ACTION_REPORT,
				"being taken back, and a QEMU says that it holds it",
				"it is taken from it as from everybody"},
	[RM_CASE_HELD_OTHER] = {"held-other", RM_ACTION_REPORT,
				"granted otherwise, and a QEMU says that it holds it",
				"it stays with its owner; who says so too often is cut off"},
	[RM_CASE_SCRUB_HALF] = {"scrub-half", RM_ACTION_ROLL_FORWARD,
				"an earlier rmd had begun to scrub it", "scrubbed from the start"},
	[RM_CASE_MAPPED] = {"mapped", RM_ACTION_ADOPT,
			    "the books are lost, and one domain's process has it",
			    "granted to that domain"},
	[RM_CASE_MAPPED_TWICE] = {"mapped-twice", RM_ACTION_QUARANTINE,
				  "the books are lost, and several domains' processes have it",
				  "nobody gets it before the next boot"},
	[RM_CASE_IN_USE] = {"in-use", RM_ACTION_QUARANTINE,
			    "the books are lost, and a process that is no domain's has it",
			    "nobody gets it before the next boot"},
};

static const char *const action_names[RM_ACTION_N] = {
	[RM_ACTION_KEEP] = "keep",           [RM_ACTION_ADOPT] = "adopt",
	[RM_ACTION_RELEASE] = "release",     [RM_ACTION_ROLL_FORWARD] = "roll-forward",
	[RM_ACTION_ROLL_BACK] = "roll-back", [RM_ACTION_QUARANTINE] = "quarantine",
	[RM_ACTION_REPORT] = "report",
};

const RmReconcileRule *
rm_reconcile_rule(RmReconcileCase c)
{
	g_return_val_if_fail((guint)c < RM_CASE_N, NULL);
	return &rules[c];
}

const char *
rm_reconcile_action_name(RmReconcileAction action)
{
	g_return_val_if_fail((guint)action < RM_ACTION_N, NULL);
	return action_names[action];
}

RmReconcileCase
rm_reconcile_domain(const RmDomainFacts *f)
{
	if (!f->same_boot)
		return RM_CASE_BOOT;
	if (f->state == RM_VM_GONE)
		return RM_CASE_ENDED;
	if (f->state == RM_VM_CLAIMED)
		return f->claim_old ? RM_CASE_CLAIM_OLD : RM_CASE_CLAIM_YOUNG;
	if (f->process == RM_FACT_NO)
		return RM_CASE_PROCESS_GONE;
	if (f->same_start == RM_FACT_NO)
		return RM_CASE_PID_REUSED;
	if (f->in_libvirt == RM_FACT_NO)
		return RM_CASE_UNKNOWN_TO_LIBVIRT;
	if (!f->connected)
		return RM_CASE_SILENT;
	return f->at_target ? RM_CASE_AGREED : RM_CASE_BEHIND;
}

RmReconcileCase
rm_reconcile_chunk(const RmChunkFacts *f)
{
	const RmChunk *c = f->chunk;
	gboolean ours = c->state == RM_CHUNK_GRANTED && c->vm == f->vm && c->base == f->base;

	if (f->held == RM_FACT_YES) {
		if (ours)
			return RM_CASE_HELD;
		if (c->state == RM_CHUNK_FREE)
			return RM_CASE_HELD_FREE;
		return c->state == RM_CHUNK_GRANTED ? RM_CASE_HELD_OTHER : RM_CASE_HELD_DIRTY;
	}
	if (c->state == RM_CHUNK_SCRUBBING)
		return RM_CASE_SCRUB_HALF;
	/* What it has not said is as it is in the books. */
	if (!ours || f->held == RM_FACT_UNKNOWN)
		return RM_CASE_HELD;
	if (c->phase == RM_PHASE_SENT)
		return RM_CASE_NOT_HELD;
	return f->wanted ? RM_CASE_RESERVED : RM_CASE_EXCESS;
}

RmReconcileCase
rm_reconcile_added(guint n_domains, gboolean in_use)
{
	if (n_domains > 1)
		return RM_CASE_MAPPED_TWICE;
	if (n_domains == 1)
		return RM_CASE_MAPPED;
	return in_use ? RM_CASE_IN_USE : RM_CASE_SCRUB_HALF;
}
