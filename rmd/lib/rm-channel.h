/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * One memory channel of the host as the configuration declares it. Owns its fixed properties only:
 * who has its chunks is the ledger's, where its bytes lie is the store's. Includes no bus and no
 * loop.
 */
#ifndef RM_CHANNEL_H
#define RM_CHANNEL_H

#include <glib.h>

#include "rm-size.h"

G_BEGIN_DECLS

/* The longest name of a channel: it is a part of QEMU ids and of file names. */
#define RM_CHANNEL_NAME_MAX 32

typedef enum {
	RM_TIER_DIMM, /* the numbers are those of the CNUM table */
	RM_TIER_CXL,
	RM_TIER_N
} RmTier;

typedef struct {
	char *name;
	char *store; /* name of the store that has its bytes */
	RmTier tier;
	guint socket;
	guint dax;
	guint channel;
	guint size_chunks;
	guint read_mbps;
	guint write_mbps;
	guint latency_ns;
} RmChannel;

const char *rm_tier_name(RmTier tier);
gboolean rm_tier_parse(const char *text, RmTier *ret_tier);

/* A letter, then letters, digits, '-', '_' and '.', at most RM_CHANNEL_NAME_MAX. */
gboolean rm_channel_name_valid(const char *name);

void rm_channel_free(RmChannel *channel);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmChannel, rm_channel_free)

G_END_DECLS

#endif
