/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "rm-fault.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

static char *fault_name;
static gint fault_left;

void
rm_fault_init(void)
{
	const char *text = g_getenv("RMD_FAULT");
	const char *colon = text ? strrchr(text, ':') : NULL;

	if (!colon)
		return;
	fault_name = g_strndup(text, (gsize)(colon - text));
	fault_left = (gint)g_ascii_strtoll(colon + 1, NULL, 10);
}

void
rm_fault_point(const char *name)
{
	if (G_LIKELY(!fault_name))
		return;
	if (!g_str_equal(fault_name, "any") && !g_str_equal(fault_name, name))
		return;
	if (g_atomic_int_dec_and_test(&fault_left))
		kill(getpid(), SIGKILL);
}
