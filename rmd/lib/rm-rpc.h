/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The channel RPC between rmd and QEMU, version 1: cuts a byte stream into lines, reads the
 * messages of QEMU and writes ours. What comes in was written by a process we do not trust: every
 * size is bounded here. Knows no socket, fd or loop.
 *
 * Every message is a JSON object on a line of its own, with "type" and "seq" (1, 2, 3… of a sender
 * on a connection). The fds of a grant travel with the first byte of its line.
 */
#ifndef RM_RPC_H
#define RM_RPC_H

#include <glib.h>

G_BEGIN_DECLS

#define RM_RPC_VERSION  1
#define RM_RPC_LINE_MAX (1024 * 1024)
#define RM_RPC_FDS_MAX  253

typedef enum {
	RM_RPC_HELLO,
	RM_RPC_DONE,
	RM_RPC_ERROR,
	RM_RPC_PROGRESS,
	RM_RPC_RELEASED,
	RM_RPC_STALLED,
	RM_RPC_OTHER, /* a type that a newer QEMU may send; to be ignored */
} RmRpcType;

typedef struct {
	guint chunk;
	gint64 block; /* -1: not mapped into the guest */
} RmRpcChunk;

typedef struct {
	char *channel;
	gboolean base;
	guint64 size_bytes;
	guint64 requested_bytes;
	guint64 plugged_bytes;
	GArray *chunks; /* of RmRpcChunk */
} RmRpcRegion;

/* Only the members of its type are set. */
typedef struct {
	RmRpcType type;
	guint64 seq;
	guint64 id;                             /* done, error */
	char *error_class;                      /* error */
	char *desc;                             /* error */
	guint version;                          /* hello */
	char *uuid;                             /* hello */
	gboolean ready;                         /* hello */
	GPtrArray *regions;                     /* hello, of RmRpcRegion */
	char *channel;                          /* progress, released, stalled */
	gboolean base;                          /* released */
	guint64 requested_bytes, plugged_bytes; /* progress */
	guint64 remaining_bytes, seconds;       /* stalled */
	GArray *chunks;                         /* released, of guint */
} RmRpcMessage;

/* One chunk of a grant; its fd is the one at the same place among the fds of the message. */
typedef struct {
	guint chunk;
	guint64 offset_bytes;
} RmRpcGrant;

/* @line without its line break. RM_ERROR_INVALID: the peer violates the protocol. */
RmRpcMessage *rm_rpc_parse(const char *line, gsize len, GError **error);
void rm_rpc_message_free(RmRpcMessage *message);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmRpcMessage, rm_rpc_message_free)

/* Lines with their line break. At most RM_RPC_FDS_MAX chunks a grant. */
char *rm_rpc_format_grant(guint64 seq, guint64 id, const char *channel, gboolean base,
			  const RmRpcGrant *chunks, guint n);
char *rm_rpc_format_resize(guint64 seq, guint64 id, const char *channel, guint64 requested_bytes,
			   gboolean drain);
char *rm_rpc_format_revoke(guint64 seq, guint64 id, const char *channel, const guint *chunks,
			   guint n);

/* Bytes in, lines out. */
typedef struct {
	GByteArray *bytes;
	gsize taken;   /* from the start */
	gsize scanned; /* up to here there is no line break that was not taken */
} RmRpcBuffer;

void rm_rpc_buffer_init(RmRpcBuffer *buffer);
void rm_rpc_buffer_clear(RmRpcBuffer *buffer);
void rm_rpc_buffer_append(RmRpcBuffer *buffer, const void *data, gsize len);
/*
 * The next line without its break, NUL-terminated; *ret_line is NULL while there is none. Fails
 * when a line is longer than RM_RPC_LINE_MAX.
 */
gboolean rm_rpc_buffer_take(RmRpcBuffer *buffer, char **ret_line, gsize *ret_len, GError **error);

G_END_DECLS

#endif
