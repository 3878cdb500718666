/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "rm-reconcile.h"

/* A domain that runs and agrees; each test changes one thing. */
static const RmDomainFacts good = {
	.same_boot = TRUE,
	.state = RM_VM_RUNNING,
	.process = RM_FACT_YES,
	.same_start = RM_FACT_YES,
	.in_libvirt = RM_FACT_YES,
	.connected = TRUE,
	.at_target = TRUE,
};

static const struct {
	RmReconcileCase expected;
	RmReconcileAction action;
	RmDomainFacts facts;
} domains[] = {
	{RM_CASE_AGREED, RM_ACTION_KEEP, {TRUE, RM_VM_RUNNING, 1, 1, 1, FALSE, TRUE, TRUE}},
	{RM_CASE_BOOT, RM_ACTION_RELEASE, {FALSE, RM_VM_RUNNING, 1, 1, 1, FALSE, TRUE, TRUE}},
	{RM_CASE_BOOT, RM_ACTION_RELEASE, {FALSE, RM_VM_CLAIMED, 2, 2, 2, FALSE, FALSE, FALSE}},
	{RM_CASE_ENDED, RM_ACTION_RELEASE, {TRUE, RM_VM_GONE, 0, 0, 0, FALSE, FALSE, FALSE}},
	{RM_CASE_CLAIM_YOUNG, RM_ACTION_KEEP, {TRUE, RM_VM_CLAIMED, 2, 2, 2, FALSE, FALSE, FALSE}},
	{RM_CASE_CLAIM_OLD, RM_ACTION_RELEASE, {TRUE, RM_VM_CLAIMED, 2, 2, 2, TRUE, FALSE, FALSE}},
	{RM_CASE_PROCESS_GONE,
	 RM_ACTION_RELEASE,
	 {TRUE, RM_VM_RUNNING, 0, 2, 1, FALSE, FALSE, TRUE}},
	{RM_CASE_PID_REUSED, RM_ACTION_RELEASE, {TRUE, RM_VM_RUNNING, 1, 0, 1, FALSE, FALSE, TRUE}},
	{RM_CASE_UNKNOWN_TO_LIBVIRT,
	 RM_ACTION_REPORT,
	 {TRUE, RM_VM_RUNNING, 1, 1, 0, FALSE, TRUE, TRUE}},
	/* Without libvirt there is nothing to say against it. */
	{RM_CASE_AGREED, RM_ACTION_KEEP, {TRUE, RM_VM_RUNNING, 1, 1, 2, FALSE, TRUE, TRUE}},
	{RM_CASE_SILENT, RM_ACTION_KEEP, {TRUE, RM_VM_RUNNING, 1, 1, 1, FALSE, FALSE, FALSE}},
	{RM_CASE_BEHIND,
	 RM_ACTION_ROLL_FORWARD,
	 {TRUE, RM_VM_RUNNING, 1, 1, 1, FALSE, TRUE, FALSE}},
};

static void
test_domains(void)
{
	guint i;

	g_assert_cmpint(rm_reconcile_domain(&good), ==, RM_CASE_AGREED);
	for (i = 0; i < G_N_ELEMENTS(domains); i++) {
		RmReconcileCase c = rm_reconcile_domain(&domains[i].facts);

		if (c != domains[i].expected)
			g_error("row %u: %s", i, rm_reconcile_rule(c)->name);
		g_assert_cmpint(rm_reconcile_rule(c)->action, ==, domains[i].action);
	}
}

static const struct {
	RmReconcileCase expected;
	RmReconcileAction action;
	RmChunk chunk;
	RmFact held;
	gboolean wanted;
} chunks[] = {
	{RM_CASE_HELD, RM_ACTION_KEEP, {0, 0, RM_CHUNK_GRANTED, 1, FALSE, 2}, RM_FACT_YES, TRUE},
	/* Sent, whatever was written last: it can have it only from us. */
	{RM_CASE_HELD, RM_ACTION_KEEP, {0, 0, RM_CHUNK_GRANTED, 1, FALSE, 0}, RM_FACT_YES, TRUE},
	{RM_CASE_NOT_HELD,
	 RM_ACTION_RELEASE,
	 {0, 0, RM_CHUNK_GRANTED, 1, FALSE, 2},
	 RM_FACT_NO,
	 TRUE},
	{RM_CASE_HELD,
	 RM_ACTION_KEEP,
	 {0, 0, RM_CHUNK_GRANTED, 1, FALSE, 2},
	 RM_FACT_UNKNOWN,
	 TRUE},
	{RM_CASE_RESERVED,
	 RM_ACTION_ROLL_FORWARD,
	 {0, 0, RM_CHUNK_GRANTED, 1, FALSE, 0},
	 RM_FACT_NO,
	 TRUE},
	{RM_CASE_RESERVED,
	 RM_ACTION_ROLL_FORWARD,
	 {0, 0, RM_CHUNK_GRANTED, 1, FALSE, 1},
	 RM_FACT_NO,
	 TRUE},
	{RM_CASE_EXCESS,
	 RM_ACTION_ROLL_BACK,
	 {0, 0, RM_CHUNK_GRANTED, 1, FALSE, 1},
	 RM_FACT_NO,
	 FALSE},
	{RM_CASE_HELD_FREE,
	 RM_ACTION_QUARANTINE,
	 {0, 0, RM_CHUNK_FREE, 0, FALSE, 0},
	 RM_FACT_YES,
	 FALSE},
	{RM_CASE_HELD_DIRTY,
	 RM_ACTION_REPORT,
	 {0, 0, RM_CHUNK_RELEASED, 1, FALSE, 2},
	 RM_FACT_YES,
	 FALSE},
	{RM_CASE_HELD_DIRTY,
	 RM_ACTION_REPORT,
	 {0, 0, RM_CHUNK_SCRUBBING, 1, FALSE, 2},
	 RM_FACT_YES,
	 FALSE},
	{RM_CASE_HELD_DIRTY,
	 RM_ACTION_REPORT,
	 {0, 0, RM_CHUNK_QUARANTINED, 0, FALSE, 0},
	 RM_FACT_YES,
	 FALSE},
	{RM_CASE_HELD_OTHER,
	 RM_ACTION_REPORT,
	 {0, 0, RM_CHUNK_GRANTED, 2, FALSE, 2},
	 RM_FACT_YES,
	 FALSE},
	/* Its own chunk in the wrong region is another's as well. */
	{RM_CASE_HELD_OTHER,
	 RM_ACTION_REPORT,
	 {0, 0, RM_CHUNK_GRANTED, 1, TRUE, 2},
	 RM_FACT_YES,
	 FALSE},
	{RM_CASE_SCRUB_HALF,
	 RM_ACTION_ROLL_FORWARD,
	 {0, 0, RM_CHUNK_SCRUBBING, 1, FALSE, 2},
	 RM_FACT_NO,
	 FALSE},
};

static void
test_chunks(void)
{
	guint i;

	for (i = 0; i < G_N_ELEMENTS(chunks); i++) {
		const RmChunkFacts facts = {&chunks[i].chunk, 1, FALSE, chunks[i].held,
					    chunks[i].wanted};
		RmReconcileCase c = rm_reconcile_chunk(&facts);

		if (c != chunks[i].expected)
			g_error("row %u: %s", i, rm_reconcile_rule(c)->name);
		g_assert_cmpint(rm_reconcile_rule(c)->action, ==, chunks[i].action);
	}
}

static void
test_added(void)
{
	g_assert_cmpint(rm_reconcile_added(1, TRUE), ==, RM_CASE_MAPPED);
	g_assert_cmpint(rm_reconcile_added(2, TRUE), ==, RM_CASE_MAPPED_TWICE);
	g_assert_cmpint(rm_reconcile_added(0, TRUE), ==, RM_CASE_IN_USE);
	g_assert_cmpint(rm_reconcile_added(0, FALSE), ==, RM_CASE_SCRUB_HALF);
}

/* Every row of the table says something, and nothing is written twice. */
static void
test_table(void)
{
	g_autoptr(GHashTable) names = g_hash_table_new(g_str_hash, g_str_equal);
	guint i;

	for (i = 0; i < RM_CASE_N; i++) {
		const RmReconcileRule *rule = rm_reconcile_rule((RmReconcileCase)i);

		g_assert_nonnull(rule->name);
		g_assert_nonnull(rule->when);
		g_assert_nonnull(rule->then);
		g_assert_nonnull(rm_reconcile_action_name(rule->action));
		g_assert_true(g_hash_table_add(names, (gpointer)rule->name));
	}
}

int
main(int argc, char **argv)
{
	g_test_init(&argc, &argv, NULL);
	g_test_add_func("/reconcile/domains", test_domains);
	g_test_add_func("/reconcile/chunks", test_chunks);
	g_test_add_func("/reconcile/added", test_added);
	g_test_add_func("/reconcile/table", test_table);
	return g_test_run();
}
