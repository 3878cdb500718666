/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "rm-bus.h"

void
rm_bus_init(void)
{
	static gsize done;
	guint i;

	if (!g_once_init_enter(&done))
		return;
	for (i = 0; i < RM_ERROR_N; i++) {
		g_autofree char *name =
			g_strconcat(RM_BUS_ERROR_PREFIX, rm_error_name((RmError)i), NULL);

		g_dbus_error_register_error(RM_ERROR, (gint)i, name);
	}
	g_once_init_leave(&done, 1);
}
