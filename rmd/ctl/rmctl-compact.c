/* SPDX-License-Identifier: GPL-2.0-or-later */
/* rmctl compact: frees whole channels by moving VMs that share. */
#include <stdio.h>

#include "rmctl.h"
#include "rmctl-moves.h"

static gboolean dry_run;

static const GOptionEntry entries[] = {
	RMCTL_TABLE_ENTRIES,
	{"dry-run", 0, 0, G_OPTION_ARG_NONE, &dry_run, "Only show what would be moved", NULL},
	{NULL},
};

static int
run(int argc, char **argv)
{
	g_autofree char *help = rmctl_moves_help();
	g_autoptr(RmManager1) manager = NULL;
	g_autoptr(GVariant) moves = NULL;
	g_autoptr(GVariant) jobs = NULL;
	GError *error = NULL;
	guint freed = 0;

	if (!rmctl_parse(&rmctl_verb_compact, entries, help, 0, 0, &argc, &argv))
		return RMCTL_USAGE;
	if (!rmctl_moves_check(&error))
		return rmctl_fail(error);
	manager = rmctl_connect(&error);
	if (manager == NULL ||
	    !rm_manager1_call_compact_sync(manager, dry_run, &moves, &jobs, &freed, NULL, &error))
		return rmctl_fail(error);
	if (!rmctl_print_options.json)
		fprintf(stderr, "%u channels %s\n", freed,
			dry_run ? "would be freed" : "are being freed");
	return rmctl_moves_print(moves);
}

const RmctlVerb rmctl_verb_compact = {"compact", "", "Move VMs onto fewer channels", run};
