/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The `file` store: one file a chunk, PATH/CHANNEL/NNNNN, mode 0600, on tmpfs or disk. Runs on any
 * machine.
 *
 * Why one file a chunk: a mapping of a part of a file can be grown over the rest of it by mremap,
 * even after its fd is closed; beyond the end of a file of its own it gets SIGBUS. Why a new inode
 * for each owner: a truncated file that is grown again shows its new bytes to everyone who still
 * has the old mapping or fd; an unlinked one keeps what is left of it to itself.
 */
#ifndef RM_STORE_FILE_H
#define RM_STORE_FILE_H

#include "rm-store.h"

G_BEGIN_DECLS

RmStore *rm_store_file_open(const RmStoreConfig *config, const RmTopology *topology,
			    GError **error);

/* PATH/CHANNEL/NNNNN; for tests and messages. */
char *rm_store_file_path(const RmStore *store, const char *channel, guint chunk);

G_END_DECLS

#endif
