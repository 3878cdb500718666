/* SPDX-License-Identifier: GPL-2.0-or-later */
/* rmctl reconcile: what the books say against what runs, and what is done about each difference. */
#include "rmctl.h"
#include "rmctl-print.h"

static const RmctlColumn columns[] = {
	{"VM", "vm", RMCTL_STRING, TRUE, "name of the domain; empty: of nobody"},
	{"CHANNEL", "channel", RMCTL_STRING, TRUE, "channel; empty: the whole domain"},
	{"CHUNKS", "chunks", RMCTL_COUNT, TRUE, "how many chunks it is about"},
	{"CASE", "case", RMCTL_STRING, TRUE, "row of the table in rmd(8)"},
	{"ACTION", "action", RMCTL_STRING, TRUE, "what is done"},
	{"WHEN", "when", RMCTL_STRING, TRUE, "the case in words"},
	{"THEN", "then", RMCTL_STRING, FALSE, "the action in words"},
};

static gboolean dry_run;

static const GOptionEntry entries[] = {
	RMCTL_TABLE_ENTRIES,
	{"dry-run", 0, 0, G_OPTION_ARG_NONE, &dry_run, "Only show it", NULL},
	{NULL},
};

static int
run(int argc, char **argv)
{
	g_autofree char *help = rmctl_describe_columns(columns, G_N_ELEMENTS(columns));
	g_autoptr(RmManager1) manager = NULL;
	g_autoptr(GVariant) lines = NULL;
	GError *error = NULL;

	if (!rmctl_parse(&rmctl_verb_reconcile, entries, help, 0, 0, &argc, &argv))
		return RMCTL_USAGE;
	if (!rmctl_check_output(columns, G_N_ELEMENTS(columns), &error))
		return rmctl_fail(error);
	manager = rmctl_connect(&error);
	if (manager == NULL ||
	    !rm_manager1_call_reconcile_sync(manager, dry_run, &lines, NULL, &error) ||
	    !rmctl_print_rows("lines", columns, G_N_ELEMENTS(columns), lines, &error))
		return rmctl_fail(error);
	return RMCTL_OK;
}

const RmctlVerb rmctl_verb_reconcile = {"reconcile", "", "Compare the books with what runs", run};
