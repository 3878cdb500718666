/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "rmctl-moves.h"

#include "rmctl.h"

static const RmctlColumn columns[] = {
	{"VM", "vm", RMCTL_STRING, TRUE, "name of the domain"},
	{"CHANNEL", "name", RMCTL_STRING, TRUE, "name of the channel"},
	{"BEFORE", "before", RMCTL_CHUNKS, TRUE, "what it has there"},
	{"AFTER", "after", RMCTL_CHUNKS, TRUE, "what it will have there"},
};

char *
rmctl_moves_help(void)
{
	return rmctl_describe_columns(columns, G_N_ELEMENTS(columns));
}

gboolean
rmctl_moves_check(GError **error)
{
	return rmctl_check_output(columns, G_N_ELEMENTS(columns), error);
}

int
rmctl_moves_print(GVariant *moves)
{
	GError *error = NULL;

	if (rmctl_print_rows("moves", columns, G_N_ELEMENTS(columns), moves, &error))
		return RMCTL_OK;
	return rmctl_fail(error);
}
