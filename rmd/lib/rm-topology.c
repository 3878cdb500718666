/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "rm-topology.h"

#include "rm-error.h"

RmTopology *
rm_topology_new(void)
{
	RmTopology *topology = g_new0(RmTopology, 1);

	topology->channels = g_ptr_array_new_with_free_func((GDestroyNotify)rm_channel_free);
	topology->by_name = g_hash_table_new(g_str_hash, g_str_equal);
	return topology;
}

gboolean
rm_topology_add(RmTopology *topology, RmChannel *channel, GError **error)
{
	g_autoptr(RmChannel) owned = channel;
	guint i;

	if (g_hash_table_contains(topology->by_name, channel->name)) {
		rm_error_set(error, RM_ERROR_INVALID, "channel %s is declared twice",
			     channel->name);
		return FALSE;
	}
	for (i = 0; i < topology->channels->len; i++) {
		const RmChannel *other = rm_topology_channel(topology, i);

		/* QEMU's -numa channel refuses a second one as well. */
		if (other->dax == channel->dax && other->channel == channel->channel) {
			rm_error_set(error, RM_ERROR_INVALID,
				     "channel %s: dax=%u channel=%u are those of channel %s",
				     channel->name, channel->dax, channel->channel, other->name);
			return FALSE;
		}
	}
	g_ptr_array_add(topology->channels, g_steal_pointer(&owned));
	g_hash_table_insert(topology->by_name, channel->name,
			    GUINT_TO_POINTER(topology->channels->len));
	return TRUE;
}

guint
rm_topology_n_channels(const RmTopology *topology)
{
	return topology->channels->len;
}

const RmChannel *
rm_topology_channel(const RmTopology *topology, guint index)
{
	g_return_val_if_fail(index < topology->channels->len, NULL);
	return g_ptr_array_index(topology->channels, index);
}

gboolean
rm_topology_find(const RmTopology *topology, const char *name, guint *ret_index)
{
	guint found = GPOINTER_TO_UINT(g_hash_table_lookup(topology->by_name, name));

	if (!found)
		return FALSE;
	if (ret_index)
		*ret_index = found - 1;
	return TRUE;
}

guint64
rm_topology_sockets(const RmTopology *topology)
{
	guint64 sockets = 0;
	guint i;

	for (i = 0; i < topology->channels->len; i++) {
		const RmChannel *channel = rm_topology_channel(topology, i);

		if (channel->tier == RM_TIER_DIMM)
			sockets |= G_GUINT64_CONSTANT(1) << channel->socket;
	}
	return sockets;
}

void
rm_topology_free(RmTopology *topology)
{
	if (!topology)
		return;
	g_hash_table_unref(topology->by_name);
	g_ptr_array_unref(topology->channels);
	g_free(topology);
}
