/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * org.ramryder.Manager1 on the private socket RUNTIME/bus: reads arguments, calls the daemon, makes
 * dictionaries, sends signals. By the kernel's credentials root and our own user may call
 * everything, the user that QEMU runs as may call Start, and nobody else gets in. Decides nothing
 * else itself.
 */
#ifndef RM_BUS_SERVER_H
#define RM_BUS_SERVER_H

#include "rm-daemon.h"

G_BEGIN_DECLS

typedef struct RmBusServer RmBusServer;

RmBusServer *rm_bus_server_new(RmDaemon *daemon, GError **error);
void rm_bus_server_free(RmBusServer *server);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmBusServer, rm_bus_server_free)

G_END_DECLS

#endif
