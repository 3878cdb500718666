/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The arguments that the shim adds to libvirt's own so that QEMU gets its memory from us: base
 * memory, the channels, their windows and devices. Owns the ids, the addresses and the order on the
 * command line; all of it is a function of what the domain was placed on, so that a restart of the
 * domain with the same placement gives the guest the same machine.
 */
#ifndef RM_QEMU_ARGS_H
#define RM_QEMU_ARGS_H

#include "rm-ledger.h"

G_BEGIN_DECLS

/* Stands in the arguments for the number of the connected socket. */
#define RM_QEMU_ARGS_FD "@FD@"

/*
 * @channels are all possible channels of @vm (RmVmChannel) by cNode. Fails for a machine or a
 * number of channels that cannot be done. Free with g_strfreev().
 */
char **rm_qemu_args_build(const RmTopology *topology, const RmVmRow *vm, const GArray *channels,
			  const char *socket_path, GError **error);

G_END_DECLS

#endif
