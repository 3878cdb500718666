/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "rm-store.h"

#include "rm-error.h"
#include "rm-store-file.h"

/* Room that is left on one file system while the channels are laid into it one after another. */
typedef struct {
	guint64 device;
	guint64 left_bytes;
} Room;

RmStore *
rm_store_open(const RmStoreConfig *config, const RmTopology *topology, GError **error)
{
	/* rm-config knows no other kind. */
	g_return_val_if_fail(g_str_equal(config->kind, "file"), NULL);
	return rm_store_file_open(config, topology, error);
}

gboolean
rm_store_prepare(RmStore *store, const char *channel, guint chunk, GError **error)
{
	return store->klass->prepare(store, channel, chunk, error);
}

int
rm_store_open_chunk(RmStore *store, const char *channel, guint chunk, guint64 *ret_offset,
		    GError **error)
{
	return store->klass->open(store, channel, chunk, ret_offset, error);
}

gboolean
rm_store_take_back(RmStore *store, const char *channel, guint chunk, GError **error)
{
	return store->klass->take_back(store, channel, chunk, error);
}

gboolean
rm_store_scrub(RmStore *store, const char *channel, guint chunk, GError **error)
{
	return store->klass->scrub(store, channel, chunk, error);
}

gboolean
rm_store_in_use(RmStore *store, const char *channel, guint chunk, gboolean *ret_in_use,
		GError **error)
{
	return store->klass->in_use(store, channel, chunk, ret_in_use, error);
}

gboolean
rm_store_parse_path(RmStore *store, const char *channel, const char *path, guint *ret_chunk)
{
	return store->klass->parse_path(store, channel, path, ret_chunk);
}

static Room *
find_room(GArray *rooms, guint64 device)
{
	guint i;

	for (i = 0; i < rooms->len; i++) {
		Room *room = &g_array_index(rooms, Room, i);

		if (room->device == device)
			return room;
	}
	return NULL;
}

/* The room of each store (same index), those on one file system added up into one. */
static gboolean
get_rooms(GPtrArray *stores, const RmTopology *topology, GArray *rooms, guint64 *devices,
	  GError **error)
{
	guint i;

	for (i = 0; i < stores->len; i++) {
		RmStore *store = g_ptr_array_index(stores, i);
		guint64 left_bytes, own_bytes;
		Room *room;

		if (!store->klass->room(store, topology, &devices[i], &left_bytes, &own_bytes,
					error))
			return FALSE;
		room = find_room(rooms, devices[i]);
		if (!room) {
			Room fresh = {devices[i], left_bytes};

			g_array_append_val(rooms, fresh);
			room = find_room(rooms, devices[i]);
		}
		if (room->left_bytes != G_MAXUINT64)
			room->left_bytes += own_bytes;
	}
	return TRUE;
}

gboolean
rm_store_check_room(GPtrArray *stores, const RmTopology *topology, GError **error)
{
	g_autoptr(GArray) rooms = g_array_new(FALSE, FALSE, sizeof(Room));
	g_autofree guint64 *devices = g_new0(guint64, stores->len + 1);
	guint i;

	if (!get_rooms(stores, topology, rooms, devices, error))
		return FALSE;
	for (i = 0; i < rm_topology_n_channels(topology); i++) {
		const RmChannel *channel = rm_topology_channel(topology, i);
		RmStore *store = rm_store_find(stores, channel->store);
		guint64 want_bytes = channel->size_chunks * RM_CHUNK_BYTES;
		Room *room;
		guint index;

		g_ptr_array_find(stores, store, &index);
		room = find_room(rooms, devices[index]);
		if (room->left_bytes == G_MAXUINT64)
			continue;
		if (room->left_bytes < want_bytes) {
			rm_error_set(error, RM_ERROR_NO_SPACE,
				     "store %s has too little room for channel %s: it wants "
				     "%" G_GUINT64_FORMAT " bytes, %" G_GUINT64_FORMAT
				     " are available in %s; make the channel smaller or the file "
				     "system larger",
				     store->name, channel->name, want_bytes, room->left_bytes,
				     store->path);
			return FALSE;
		}
		room->left_bytes -= want_bytes;
	}
	return TRUE;
}

RmStore *
rm_store_find(GPtrArray *stores, const char *name)
{
	guint i;

	for (i = 0; i < stores->len; i++) {
		RmStore *store = g_ptr_array_index(stores, i);

		if (g_str_equal(store->name, name))
			return store;
	}
	return NULL;
}

void
rm_store_free(RmStore *store)
{
	if (store)
		store->klass->free(store);
}
