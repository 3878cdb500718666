/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * One connection of the channel RPC: bytes to messages and messages with fds to bytes, never
 * blocking, all buffers bounded. Owns the socket; a violation of the protocol ends it. Knows the
 * messages (rm-rpc) but not what they are about.
 */
#ifndef RM_PEER_H
#define RM_PEER_H

#include <gio/gio.h>
#include <gio/gunixfdlist.h>

#include "rm-rpc.h"

G_BEGIN_DECLS

typedef struct RmPeer RmPeer;

typedef struct {
	/* FALSE with an error: the message is a violation, the connection ends. */
	gboolean (*message)(RmPeer *peer, const RmRpcMessage *message, gpointer data,
			    GError **error);
	/* The connection has ended, @reason is for people. The owner frees the peer here or later.
	 */
	void (*closed)(RmPeer *peer, const char *reason, gpointer data);
} RmPeerFuncs;

/* Takes a reference on @connection. */
RmPeer *rm_peer_new(GSocketConnection *connection, const RmPeerFuncs *funcs, gpointer data);

/* The sequence number that the next message must carry. */
guint64 rm_peer_next_seq(RmPeer *peer);

/* TRUE: the connection was ended because the peer broke the protocol, not because it went away. */
gboolean rm_peer_violated(const RmPeer *peer);

/* Queues @line (taken) with @fds (may be NULL). */
void rm_peer_send(RmPeer *peer, char *line, GUnixFDList *fds);

/* Ends the connection from our side; calls closed() from the main loop. */
void rm_peer_fail(RmPeer *peer, const char *reason);

void rm_peer_free(RmPeer *peer);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmPeer, rm_peer_free)

G_END_DECLS

#endif
