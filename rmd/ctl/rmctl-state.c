/* SPDX-License-Identifier: GPL-2.0-or-later */
/* rmctl state CHANNEL STATE: takes a channel out of use, or back. */
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
	guint freed;

	if (!rmctl_parse(&rmctl_verb_state, entries, help, 2, 2, &argc, &argv))
		return RMCTL_USAGE;
	if (!rmctl_moves_check(&error))
		return rmctl_fail(error);
	manager = rmctl_connect(&error);
	if (manager == NULL ||
	    !rm_manager1_call_set_channel_state_sync(manager, argv[1], argv[2], dry_run, &moves,
						     &jobs, &freed, NULL, &error))
		return rmctl_fail(error);
	return rmctl_moves_print(moves);
}

const RmctlVerb rmctl_verb_state = {"state", "CHANNEL online|draining|offline",
				    "Take a channel out of use, or back", run};
