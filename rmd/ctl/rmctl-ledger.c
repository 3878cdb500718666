/* SPDX-License-Identifier: GPL-2.0-or-later */
/* rmctl ledger: checks and copies the books, and shows their history. */
#include <stdio.h>

#include "rmctl.h"
#include "rmctl-print.h"

#define EVENTS_DEFAULT 100

static const RmctlColumn columns[] = {
	{"TIME", "time-usec", RMCTL_TIME, TRUE, "when"},
	{"KIND", "kind", RMCTL_STRING, TRUE, "what kind of event"},
	{"TEXT", "text", RMCTL_STRING, TRUE, "what happened"},
	{"UUID", "uuid", RMCTL_STRING, FALSE, "UUID of the domain"},
	{"ID", "id", RMCTL_COUNT, FALSE, "number of the event"},
};

static const GOptionEntry entries[] = {RMCTL_TABLE_ENTRIES, {NULL}};

static int
check(RmManager1 *manager)
{
	g_auto(GStrv) problems = NULL;
	GError *error = NULL;
	guint i;

	if (!rm_manager1_call_check_sync(manager, &problems, NULL, &error))
		return rmctl_fail(error);
	for (i = 0; problems[i] != NULL; i++)
		printf("%s\n", problems[i]);
	return i == 0 ? RMCTL_OK : RMCTL_FAILED;
}

static int
backup(RmManager1 *manager, const char *path)
{
	/* rmd has a working folder of its own. */
	g_autofree char *absolute = g_canonicalize_filename(path, NULL);
	GError *error = NULL;

	if (rm_manager1_call_backup_sync(manager, absolute, NULL, &error))
		return RMCTL_OK;
	return rmctl_fail(error);
}

static int
events(RmManager1 *manager)
{
	g_autoptr(GVariant) list = NULL;
	GError *error = NULL;

	if (rm_manager1_call_list_events_sync(manager, "", EVENTS_DEFAULT, &list, NULL, &error) &&
	    rmctl_print_rows("events", columns, G_N_ELEMENTS(columns), list, &error))
		return RMCTL_OK;
	return rmctl_fail(error);
}

static int
run(int argc, char **argv)
{
	g_autofree char *help = rmctl_describe_columns(columns, G_N_ELEMENTS(columns));
	g_autoptr(RmManager1) manager = NULL;
	GError *error = NULL;
	gboolean is_backup;

	if (!rmctl_parse(&rmctl_verb_ledger, entries, help, 1, 2, &argc, &argv))
		return RMCTL_USAGE;
	is_backup = g_str_equal(argv[1], "backup");
	if (!is_backup && !g_str_equal(argv[1], "check") && !g_str_equal(argv[1], "events"))
		return rmctl_usage(&rmctl_verb_ledger, "'%s' is none of check, backup, events",
				   argv[1]);
	if ((argc == 3) != is_backup)
		return rmctl_usage(&rmctl_verb_ledger, "%s %s", argv[1],
				   is_backup ? "needs the name of a file" : "takes no argument");
	if (!rmctl_check_output(columns, G_N_ELEMENTS(columns), &error))
		return rmctl_fail(error);
	manager = rmctl_connect(&error);
	if (manager == NULL)
		return rmctl_fail(error);
	if (is_backup)
		return backup(manager, argv[2]);
	return g_str_equal(argv[1], "check") ? check(manager) : events(manager);
}

const RmctlVerb rmctl_verb_ledger = {"ledger", "check|backup FILE|events",
				     "Check or copy the books, show their history", run};
