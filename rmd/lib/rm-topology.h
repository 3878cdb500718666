/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * All channels of the host in configuration order, and look-ups in them. An index into this list is
 * how the library names a channel in memory; on disk and on the wire it is the name. Immutable once
 * built. Includes no bus and no loop.
 */
#ifndef RM_TOPOLOGY_H
#define RM_TOPOLOGY_H

#include "rm-channel.h"

G_BEGIN_DECLS

/* Sockets are bits of a guint64 in requests. */
#define RM_SOCKET_MAX 63

typedef struct {
	GPtrArray *channels; /* of RmChannel, owned */
	GHashTable *by_name; /* name -> index + 1 */
} RmTopology;

RmTopology *rm_topology_new(void);

/* Takes @channel. Fails, and frees it, when its name or its (dax, channel) is there already. */
gboolean rm_topology_add(RmTopology *topology, RmChannel *channel, GError **error);

guint rm_topology_n_channels(const RmTopology *topology);
const RmChannel *rm_topology_channel(const RmTopology *topology, guint index);

/* FALSE when there is no channel of that name. */
gboolean rm_topology_find(const RmTopology *topology, const char *name, guint *ret_index);

/* The sockets that have a DIMM channel, as bits. */
guint64 rm_topology_sockets(const RmTopology *topology);

void rm_topology_free(RmTopology *topology);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmTopology, rm_topology_free)

G_END_DECLS

#endif
