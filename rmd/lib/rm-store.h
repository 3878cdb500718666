/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Where the bytes of channels lie. A store hands out one fd a chunk, takes a chunk away from
 * whoever still maps it, and makes it clean. It keeps no books: which chunk is whose is the
 * ledger's. All calls may block and may run in any thread, for different chunks at once. Includes
 * no bus and no loop.
 *
 * A chunk's way: prepare (fresh, zero, all its memory there) -> open (as often as needed, for one
 * VM) -> take_back -> scrub -> prepare for the next. Each step may be repeated after a crash.
 */
#ifndef RM_STORE_H
#define RM_STORE_H

#include "rm-config.h"

G_BEGIN_DECLS

typedef struct RmStore RmStore;

typedef struct {
	gboolean (*prepare)(RmStore *store, const char *channel, guint chunk, GError **error);
	int (*open)(RmStore *store, const char *channel, guint chunk, guint64 *ret_offset,
		    GError **error);
	gboolean (*take_back)(RmStore *store, const char *channel, guint chunk, GError **error);
	gboolean (*scrub)(RmStore *store, const char *channel, guint chunk, GError **error);
	gboolean (*in_use)(RmStore *store, const char *channel, guint chunk, gboolean *ret_in_use,
			   GError **error);
	gboolean (*parse_path)(RmStore *store, const char *channel, const char *path,
			       guint *ret_chunk);
	/* Of its file system: an identity, the bytes that are left (G_MAXUINT64: no limit), and the
	 * bytes that this store's chunks have already. */
	gboolean (*room)(RmStore *store, const RmTopology *topology, guint64 *ret_device,
			 guint64 *ret_left_bytes, guint64 *ret_own_bytes, GError **error);
	void (*free)(RmStore *store);
} RmStoreClass;

struct RmStore {
	const RmStoreClass *klass;
	char *name;
	char *path;
};

/* Opens the store that @config declares and makes its folders. */
RmStore *rm_store_open(const RmStoreConfig *config, const RmTopology *topology, GError **error);

/*
 * Gives @chunk fresh memory that reads as zero and that no other process has, all of it allocated:
 * fails with RM_ERROR_NO_SPACE when there is too little, and leaves nothing then.
 */
gboolean rm_store_prepare(RmStore *store, const char *channel, guint chunk, GError **error);

/*
 * An fd (O_CLOEXEC, owned by the caller) that covers this prepared chunk and nothing else, from
 * *ret_offset on; -1 on error.
 */
int rm_store_open_chunk(RmStore *store, const char *channel, guint chunk, guint64 *ret_offset,
			GError **error);

/*
 * Takes the chunk's memory away from every process: afterwards an old mapping gets SIGBUS and an
 * old fd reads nothing that is written later. A chunk that has no memory is taken back already.
 */
gboolean rm_store_take_back(RmStore *store, const char *channel, guint chunk, GError **error);

/* Makes a chunk that was taken back clean: the next to get it reads zeros. */
gboolean rm_store_scrub(RmStore *store, const char *channel, guint chunk, GError **error);

/* Whether the chunk has memory that some process (not we) may still use. */
gboolean rm_store_in_use(RmStore *store, const char *channel, guint chunk, gboolean *ret_in_use,
			 GError **error);

/* Whether @path, as /proc names what a process maps, is that of a chunk of @channel, and of which.
 */
gboolean rm_store_parse_path(RmStore *store, const char *channel, const char *path,
			     guint *ret_chunk);

/*
 * Whether all channels of @topology fit into their stores (@stores, of RmStore), those that share a
 * file system together. The error names the first channel that does not, what it wants and what is
 * left for it.
 */
gboolean rm_store_check_room(GPtrArray *stores, const RmTopology *topology, GError **error);

/* The store named @name of @stores; NULL if there is none. */
RmStore *rm_store_find(GPtrArray *stores, const char *name);

void rm_store_free(RmStore *store);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmStore, rm_store_free)

G_END_DECLS

#endif
