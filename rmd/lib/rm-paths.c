/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "rm-paths.h"

#include <errno.h>
#include <gio/gio.h>
#include <string.h>

#include "rm-error.h"

char *
rm_paths_bus(const char *runtime_dir)
{
	return g_build_filename(runtime_dir, "bus", NULL);
}

char *
rm_paths_bus_address(const char *runtime_dir)
{
	g_autofree char *path = rm_paths_bus(runtime_dir);
	g_autofree char *escaped = g_dbus_address_escape_value(path);

	return g_strconcat("unix:path=", escaped, NULL);
}

char *
rm_paths_vm_dir(const char *runtime_dir)
{
	return g_build_filename(runtime_dir, "vm", NULL);
}

char *
rm_paths_vm_socket(const char *runtime_dir, const char *uuid)
{
	g_autofree char *name = g_strconcat(uuid, ".sock", NULL);

	return g_build_filename(runtime_dir, "vm", name, NULL);
}

char *
rm_paths_ledger(const char *state_dir)
{
	return g_build_filename(state_dir, "ledger.db", NULL);
}

char *
rm_paths_lock(const char *state_dir)
{
	return g_build_filename(state_dir, "rmd.lock", NULL);
}

gboolean
rm_paths_make_dir(const char *dir, int mode, GError **error)
{
	if (g_mkdir_with_parents(dir, mode) == 0)
		return TRUE;
	rm_error_set(error, RM_ERROR_FAILED, "cannot make the folder %s: %s", dir,
		     g_strerror(errno));
	return FALSE;
}

gboolean
rm_paths_make(const char *runtime_dir, const char *state_dir, GError **error)
{
	g_autofree char *vm_dir = rm_paths_vm_dir(runtime_dir);

	if (strlen(runtime_dir) > RM_PATHS_RUNTIME_DIR_MAX) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "runtime-dir=%s has %zu bytes; sockets below it need a path of at "
			     "most %d",
			     runtime_dir, strlen(runtime_dir), RM_PATHS_RUNTIME_DIR_MAX);
		return FALSE;
	}
	/* A QEMU that does not run as root reaches its own socket, and lists none. */
	return rm_paths_make_dir(runtime_dir, 0755, error) &&
	       rm_paths_make_dir(vm_dir, 0711, error) && rm_paths_make_dir(state_dir, 0700, error);
}
