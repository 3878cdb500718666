/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The way from a program to rmd, for rmctl, the shim and the hook: where the socket is, a
 * connection that cannot hang, and errors in words. Owns no state; reads two keys of rmd.conf and
 * judges nothing else in it.
 */
#ifndef RM_CLIENT_H
#define RM_CLIENT_H

#include <gio/gio.h>

#include "rm-bus.h"

G_BEGIN_DECLS

#define RM_CLIENT_CONFIG   "/etc/rmd/rmd.conf"
#define RM_CLIENT_RUNTIME  "/run/rmd"
#define RM_CLIENT_EMULATOR "/usr/libexec/ramryder/qemu-system-x86_64"

/* Environment: another configuration file, another socket. */
#define RM_CLIENT_ENV_CONFIG "RMD_CONFIG"
#define RM_CLIENT_ENV_BUS    "RMD_BUS"

/* How long rmd may take to accept us; a call has its own limit. */
#define RM_CLIENT_CONNECT_MSEC 5000

/*
 * The socket of rmd: RMD_BUS, else [daemon] runtime-dir of the configuration, else the default.
 * NULL and RM_ERROR_FAILED if there is a configuration that cannot be read.
 */
char *rm_client_bus_path(GError **error);

/* [qemu] emulator of the configuration, else the default. Fails as rm_client_bus_path() does. */
char *rm_client_emulator(GError **error);

/*
 * A proxy for the manager behind @bus_path, whose calls time out after @call_msec. Fails with
 * G_IO_ERROR_NOT_CONNECTED and one line that names the socket and says what to do.
 */
RmManager1 *rm_client_connect(const char *bus_path, gint call_msec, GError **error);

/*
 * Makes what a call of @manager failed with fit to be printed: without GDBus's prefix, on one line.
 * A lost connection becomes G_IO_ERROR_NOT_CONNECTED, a call that took too long RM_ERROR_FAILED.
 */
void rm_client_clean_error(const char *bus_path, GError **error);

/* rmd cannot be reached (as opposed to: it said no). */
gboolean rm_client_is_unreachable(const GError *error);

G_END_DECLS

#endif
