/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Names of the files of a running rmd below its two folders, and making those folders. Owns no
 * content of any of them; includes no bus and no loop.
 */
#ifndef RM_PATHS_H
#define RM_PATHS_H

#include <glib.h>

G_BEGIN_DECLS

/* The longest path of a UNIX socket is 107 bytes; a VM's socket is runtime_dir + this many. */
#define RM_PATHS_RUNTIME_DIR_MAX 62

char *rm_paths_bus(const char *runtime_dir);
char *rm_paths_bus_address(const char *runtime_dir); /* for GDBus, escaped */
char *rm_paths_vm_dir(const char *runtime_dir);
char *rm_paths_vm_socket(const char *runtime_dir, const char *uuid);
char *rm_paths_ledger(const char *state_dir);
char *rm_paths_lock(const char *state_dir);

/* mkdir -p with @mode for what is new. */
gboolean rm_paths_make_dir(const char *dir, int mode, GError **error);

/* runtime_dir, its vm/ and state_dir. Also refuses a runtime_dir too long for sockets. */
gboolean rm_paths_make(const char *runtime_dir, const char *state_dir, GError **error);

G_END_DECLS

#endif
