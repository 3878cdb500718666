/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "rm-client.h"

static char *
config_string(const char *group, const char *key, const char *fallback, GError **error)
{
	const char *path = g_getenv(RM_CLIENT_ENV_CONFIG);
	g_autoptr(GKeyFile) file = g_key_file_new();
	g_autoptr(GError) why = NULL;
	char *value;

	if (path == NULL)
		path = RM_CLIENT_CONFIG;
	if (!g_key_file_load_from_file(file, path, G_KEY_FILE_NONE, &why)) {
		if (g_error_matches(why, G_FILE_ERROR, G_FILE_ERROR_NOENT))
			return g_strdup(fallback);
		rm_error_set(error, RM_ERROR_FAILED, "cannot read %s: %s", path, why->message);
		return NULL;
	}
	value = g_key_file_get_string(file, group, key, NULL);
	if (value != NULL)
		g_strstrip(value);
	return value != NULL && value[0] != '\0' ? value : (g_free(value), g_strdup(fallback));
}

char *
rm_client_bus_path(GError **error)
{
	const char *bus = g_getenv(RM_CLIENT_ENV_BUS);
	g_autofree char *runtime = NULL;

	if (bus != NULL && bus[0] != '\0')
		return g_strdup(bus);
	runtime = config_string("daemon", "runtime-dir", RM_CLIENT_RUNTIME, error);
	return runtime != NULL ? g_build_filename(runtime, "bus", NULL) : NULL;
}

char *
rm_client_emulator(GError **error)
{
	return config_string("qemu", "emulator", RM_CLIENT_EMULATOR, error);
}

/* ---- connecting ---- */

typedef struct {
	GDBusConnection *connection;
	GError *error;
	gboolean done;
} Connecting;

static void
on_connected(GObject *source, GAsyncResult *result, gpointer data)
{
	Connecting *connecting = data;

	connecting->connection =
		g_dbus_connection_new_for_address_finish(result, &connecting->error);
	connecting->done = TRUE;
}

static gboolean
on_connect_timeout(gpointer data)
{
	g_cancellable_cancel(data);
	return G_SOURCE_REMOVE;
}

/*
 * GDBus has no limit of its own for the handshake; somebody who listens on the socket but does not
 * answer must not hold up libvirt.
 */
static GDBusConnection *
connect_bus(const char *bus_path, GError **error)
{
	g_autofree char *escaped = g_dbus_address_escape_value(bus_path);
	g_autofree char *address = g_strconcat("unix:path=", escaped, NULL);
	g_autoptr(GMainContext) context = g_main_context_new();
	g_autoptr(GCancellable) cancellable = g_cancellable_new();
	g_autoptr(GSource) timeout = g_timeout_source_new(RM_CLIENT_CONNECT_MSEC);
	Connecting connecting = {NULL};

	g_source_set_callback(timeout, on_connect_timeout, cancellable, NULL);
	g_source_attach(timeout, context);
	g_main_context_push_thread_default(context);
	g_dbus_connection_new_for_address(address, G_DBUS_CONNECTION_FLAGS_AUTHENTICATION_CLIENT,
					  NULL, cancellable, on_connected, &connecting);
	while (!connecting.done)
		g_main_context_iteration(context, TRUE);
	g_main_context_pop_thread_default(context);
	g_source_destroy(timeout);
	if (connecting.error != NULL)
		g_propagate_error(error, connecting.error);
	return connecting.connection;
}

static void
set_unreachable(const char *bus_path, const GError *why, GError **error)
{
	const char *advice = "is it running? systemctl status rmd";
	g_autofree char *reason = g_strdup(why->message);

	if (g_error_matches(why, G_IO_ERROR, G_IO_ERROR_NOT_FOUND) ||
	    g_error_matches(why, G_IO_ERROR, G_IO_ERROR_CONNECTION_REFUSED)) {
		g_free(reason);
		reason = g_strdup("nobody listens there");
		advice = "start it with: systemctl start rmd";
	} else if (g_error_matches(why, G_IO_ERROR, G_IO_ERROR_PERMISSION_DENIED)) {
		g_free(reason);
		reason = g_strdup("permission denied");
		advice = "only root and rmd's own user may use it";
	} else if (g_error_matches(why, G_IO_ERROR, G_IO_ERROR_CANCELLED)) {
		g_free(reason);
		reason = g_strdup_printf("no answer within %d s", RM_CLIENT_CONNECT_MSEC / 1000);
	} else if (g_error_matches(why, G_IO_ERROR, G_IO_ERROR_FAILED) ||
		   g_error_matches(why, G_IO_ERROR, G_IO_ERROR_CLOSED)) {
		/* GDBus's words for an end during the handshake say nothing to people. */
		g_free(reason);
		reason = g_strdup("the connection was turned away");
		advice = "only root and rmd's own user may use it";
	}
	g_strdelimit(reason, "\r\n", ' ');
	g_set_error(error, G_IO_ERROR, G_IO_ERROR_NOT_CONNECTED,
		    "cannot reach rmd on the socket %s: %s; %s", bus_path, reason, advice);
}

RmManager1 *
rm_client_connect(const char *bus_path, gint call_msec, GError **error)
{
	g_autoptr(GDBusConnection) connection = NULL;
	g_autoptr(GError) why = NULL;
	RmManager1 *manager;

	rm_bus_init();
	connection = connect_bus(bus_path, &why);
	if (connection == NULL) {
		set_unreachable(bus_path, why, error);
		return NULL;
	}
	manager = rm_manager1_proxy_new_sync(connection,
					     G_DBUS_PROXY_FLAGS_DO_NOT_LOAD_PROPERTIES |
						     G_DBUS_PROXY_FLAGS_DO_NOT_AUTO_START,
					     NULL, RM_BUS_PATH, NULL, &why);
	if (manager == NULL) {
		set_unreachable(bus_path, why, error);
		return NULL;
	}
	g_dbus_proxy_set_default_timeout(G_DBUS_PROXY(manager), call_msec);
	return manager;
}

void
rm_client_clean_error(const char *bus_path, GError **error)
{
	if (error == NULL || *error == NULL)
		return;
	if (g_error_matches(*error, G_IO_ERROR, G_IO_ERROR_CLOSED) ||
	    g_error_matches(*error, G_DBUS_ERROR, G_DBUS_ERROR_DISCONNECTED) ||
	    g_error_matches(*error, G_DBUS_ERROR, G_DBUS_ERROR_NO_REPLY)) {
		g_autoptr(GError) why = g_error_new_literal(G_IO_ERROR, G_IO_ERROR_BROKEN_PIPE,
							    "the connection was lost");

		g_clear_error(error);
		set_unreachable(bus_path, why, error);
	} else if (g_error_matches(*error, G_IO_ERROR, G_IO_ERROR_TIMED_OUT) ||
		   g_error_matches(*error, G_DBUS_ERROR, G_DBUS_ERROR_TIMEOUT)) {
		g_clear_error(error);
		rm_error_set(error, RM_ERROR_FAILED,
			     "rmd on %s did not finish the request in time; see its log: "
			     "journalctl -u rmd",
			     bus_path);
	}
	g_dbus_error_strip_remote_error(*error);
	g_strdelimit((*error)->message, "\r\n", ' ');
}

gboolean
rm_client_is_unreachable(const GError *error)
{
	return g_error_matches(error, G_IO_ERROR, G_IO_ERROR_NOT_CONNECTED);
}
