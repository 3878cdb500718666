/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "rm-peer.h"

#include <gio/gunixfdmessage.h>
#include <string.h>

#include "rm-error.h"

/* Read at most so much before others get their turn. */
#define READ_BYTES_PER_TURN (16 * 1024)
/*
 * So many messages at once, and so many a second after that: a guest that plugs a TiB at once says
 * something of each of its 8,192 chunks, but not faster than it can clear them.
 */
#define MESSAGES_BURST   2000
#define MESSAGES_PER_SEC 1000
/* rmd has one request in flight; more than this is a bug of ours. */
#define QUEUE_MAX 16

typedef struct {
	char *line;
	gsize len;
	gsize sent;
	GUnixFDList *fds; /* until the first byte is sent */
} Outgoing;

struct RmPeer {
	GSocketConnection *connection;
	GSocket *socket;
	GSource *in;
	GSource *out;
	RmRpcBuffer buffer;
	GQueue queue; /* of Outgoing */
	guint64 seq_in;
	guint64 seq_out;
	gdouble allowance; /* messages that may come now */
	gint64 allowance_usec;
	gboolean violated;
	const RmPeerFuncs *funcs;
	gpointer data;
	char *failure;
	guint fail_idle;
};

static void
outgoing_free(Outgoing *o)
{
	g_free(o->line);
	g_clear_object(&o->fds);
	g_free(o);
}

static void
clear_source(GSource **source)
{
	if (*source)
		g_source_destroy(*source);
	g_clear_pointer(source, g_source_unref);
}

static gboolean
on_failed(gpointer data)
{
	RmPeer *peer = data;

	peer->fail_idle = 0;
	peer->funcs->closed(peer, peer->failure, peer->data);
	return G_SOURCE_REMOVE;
}

void
rm_peer_fail(RmPeer *peer, const char *reason)
{
	if (peer->failure)
		return;
	peer->failure = g_strdup(reason);
	clear_source(&peer->in);
	clear_source(&peer->out);
	g_io_stream_close(G_IO_STREAM(peer->connection), NULL, NULL);
	peer->fail_idle = g_idle_add_full(G_PRIORITY_DEFAULT, on_failed, peer, NULL);
}

/* ---- in ---- */

/* A bucket that fills with time: a peer that floods is cut off before it costs others theirs. */
static gboolean
check_rate(RmPeer *peer, GError **error)
{
	gint64 now_usec = g_get_monotonic_time();

	peer->allowance += (gdouble)(now_usec - peer->allowance_usec) * MESSAGES_PER_SEC / 1e6;
	peer->allowance = MIN(peer->allowance, MESSAGES_BURST);
	peer->allowance_usec = now_usec;
	if (peer->allowance >= 1) {
		peer->allowance -= 1;
		return TRUE;
	}
	rm_error_set(error, RM_ERROR_BUSY, "it floods: more than %d messages and then %d a second",
		     MESSAGES_BURST, MESSAGES_PER_SEC);
	return FALSE;
}

static gboolean
handle_line(RmPeer *peer, const char *line, gsize len, GError **error)
{
	g_autoptr(RmRpcMessage) message = NULL;

	if (!check_rate(peer, error))
		return FALSE;
	message = rm_rpc_parse(line, len, error);
	if (!message)
		return FALSE;
	if (message->seq != ++peer->seq_in) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "message number %" G_GUINT64_FORMAT
			     " came as number %" G_GUINT64_FORMAT,
			     message->seq, peer->seq_in);
		return FALSE;
	}
	return peer->funcs->message(peer, message, peer->data, error);
}

static gboolean
handle_lines(RmPeer *peer, GError **error)
{
	while (!peer->failure) {
		g_autofree char *line = NULL;
		gsize len;

		if (!rm_rpc_buffer_take(&peer->buffer, &line, &len, error))
			return FALSE;
		if (!line)
			return TRUE;
		if (!handle_line(peer, line, len, error))
			return FALSE;
	}
	return TRUE;
}

static gboolean
on_readable(GSocket *socket, GIOCondition condition, gpointer data)
{
	RmPeer *peer = data;
	gsize total = 0;

	while (total < READ_BYTES_PER_TURN && !peer->failure) {
		g_autoptr(GError) error = NULL;
		char bytes[16384];
		gssize n = g_socket_receive(socket, bytes, sizeof(bytes), NULL, &error);

		if (n < 0 && g_error_matches(error, G_IO_ERROR, G_IO_ERROR_WOULD_BLOCK))
			break;
		if (n <= 0) {
			rm_peer_fail(peer, n ? error->message : "closed by the peer");
			break;
		}
		total += (gsize)n;
		rm_rpc_buffer_append(&peer->buffer, bytes, (gsize)n);
		if (!handle_lines(peer, &error)) {
			peer->violated = TRUE;
			rm_peer_fail(peer, error->message);
		}
	}
	return peer->failure ? G_SOURCE_REMOVE : G_SOURCE_CONTINUE;
}

/* ---- out ---- */

static gboolean flush(RmPeer *peer);

static gboolean
on_writable(GSocket *socket, GIOCondition condition, gpointer data)
{
	RmPeer *peer = data;

	if (flush(peer))
		return G_SOURCE_CONTINUE;
	g_clear_pointer(&peer->out, g_source_unref);
	return G_SOURCE_REMOVE;
}

static gssize
send_some(RmPeer *peer, Outgoing *o, GError **error)
{
	GOutputVector vector = {o->line + o->sent, o->len - o->sent};
	GSocketControlMessage *message = NULL;
	gssize n;

	if (o->fds)
		message = g_unix_fd_message_new_with_fd_list(o->fds);
	n = g_socket_send_message(peer->socket, NULL, &vector, 1, message ? &message : NULL,
				  message ? 1 : 0, 0, NULL, error);
	g_clear_object(&message);
	return n;
}

/* TRUE: there is more to write and the socket is full. */
static gboolean
flush(RmPeer *peer)
{
	Outgoing *o;

	while (!peer->failure && (o = g_queue_peek_head(&peer->queue))) {
		g_autoptr(GError) error = NULL;
		gssize n = send_some(peer, o, &error);

		if (n < 0 && g_error_matches(error, G_IO_ERROR, G_IO_ERROR_WOULD_BLOCK))
			return TRUE;
		if (n < 0) {
			rm_peer_fail(peer, error->message);
			return FALSE;
		}
		g_clear_object(&o->fds);
		o->sent += (gsize)n;
		if (o->sent == o->len)
			outgoing_free(g_queue_pop_head(&peer->queue));
	}
	return FALSE;
}

gboolean
rm_peer_violated(const RmPeer *peer)
{
	return peer->violated;
}

guint64
rm_peer_next_seq(RmPeer *peer)
{
	return ++peer->seq_out;
}

void
rm_peer_send(RmPeer *peer, char *line, GUnixFDList *fds)
{
	Outgoing *o = g_new0(Outgoing, 1);

	o->line = line;
	o->len = strlen(line);
	o->fds = fds ? g_object_ref(fds) : NULL;
	g_queue_push_tail(&peer->queue, o);
	if (g_queue_get_length(&peer->queue) > QUEUE_MAX) {
		peer->violated = TRUE;
		rm_peer_fail(peer, "it does not read what it is sent");
		return;
	}
	if (peer->out || !flush(peer))
		return;
	peer->out = g_socket_create_source(peer->socket, G_IO_OUT, NULL);
	g_source_set_callback(peer->out, G_SOURCE_FUNC(on_writable), peer, NULL);
	g_source_attach(peer->out, NULL);
}

RmPeer *
rm_peer_new(GSocketConnection *connection, const RmPeerFuncs *funcs, gpointer data)
{
	RmPeer *peer = g_new0(RmPeer, 1);

	peer->connection = g_object_ref(connection);
	peer->socket = g_socket_connection_get_socket(connection);
	peer->funcs = funcs;
	peer->data = data;
	rm_rpc_buffer_init(&peer->buffer);
	peer->allowance = MESSAGES_BURST;
	peer->allowance_usec = g_get_monotonic_time();
	g_queue_init(&peer->queue);
	g_socket_set_blocking(peer->socket, FALSE);
	peer->in = g_socket_create_source(peer->socket, G_IO_IN, NULL);
	g_source_set_callback(peer->in, G_SOURCE_FUNC(on_readable), peer, NULL);
	g_source_attach(peer->in, NULL);
	return peer;
}

void
rm_peer_free(RmPeer *peer)
{
	if (!peer)
		return;
	clear_source(&peer->in);
	clear_source(&peer->out);
	g_clear_handle_id(&peer->fail_idle, g_source_remove);
	g_queue_clear_full(&peer->queue, (GDestroyNotify)outgoing_free);
	rm_rpc_buffer_clear(&peer->buffer);
	g_io_stream_close(G_IO_STREAM(peer->connection), NULL, NULL);
	g_object_unref(peer->connection);
	g_free(peer->failure);
	g_free(peer);
}
