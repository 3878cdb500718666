/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * rmd, the resource manager of memory channels: options, log, lock, the main loop. All else is in
 * rm-daemon and rm-bus-server.
 */
#include <errno.h>
#include <fcntl.h>
#include <gio/gio.h>
#include <gio/gunixsocketaddress.h>
#include <glib-unix.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rm-bus-server.h"
#include "rm-daemon.h"
#include "rm-error.h"
#include "rm-fault.h"
#include "rm-paths.h"

static GLogLevelFlags log_level = G_LOG_LEVEL_INFO;

static const struct {
	const char *name;
	GLogLevelFlags level;
} log_levels[] = {
	{"error", G_LOG_LEVEL_CRITICAL},
	{"warning", G_LOG_LEVEL_WARNING},
	{"info", G_LOG_LEVEL_INFO},
	{"debug", G_LOG_LEVEL_DEBUG},
};

static gboolean
set_log_level(const char *name, GError **error)
{
	guint i;

	for (i = 0; i < G_N_ELEMENTS(log_levels); i++) {
		if (g_str_equal(log_levels[i].name, name)) {
			log_level = log_levels[i].level;
			return TRUE;
		}
	}
	rm_error_set(error, RM_ERROR_INVALID,
		     "--log-level=%s is unknown; known: error, warning, info, debug", name);
	return FALSE;
}

/* One line a message on stderr, with the level as journald reads it when it is at the other end. */
static GLogWriterOutput
write_log(GLogLevelFlags level, const GLogField *fields, gsize n, gpointer data)
{
	const char *message = "", *name = "info";
	int priority = 6;
	gsize i;

	level &= G_LOG_LEVEL_MASK;
	if (level > log_level && !(level & G_LOG_LEVEL_ERROR))
		return G_LOG_WRITER_HANDLED;
	for (i = 0; i < n; i++) {
		if (g_str_equal(fields[i].key, "MESSAGE"))
			message = fields[i].value;
	}
	if (level & (G_LOG_LEVEL_ERROR | G_LOG_LEVEL_CRITICAL)) {
		name = "error";
		priority = 3;
	} else if (level & G_LOG_LEVEL_WARNING) {
		name = "warning";
		priority = 4;
	} else if (level & G_LOG_LEVEL_DEBUG) {
		name = "debug";
		priority = 7;
	}
	if (data)
		fprintf(stderr, "<%d>%s\n", priority, message);
	else if (level & G_LOG_LEVEL_DEBUG)
		fprintf(stderr, "rmd: [%.6f] %s: %s\n", (gdouble)g_get_monotonic_time() / 1e6, name,
			message);
	else
		fprintf(stderr, "rmd: %s: %s\n", name, message);
	return G_LOG_WRITER_HANDLED;
}

/*
 * One rmd for one state folder. The lock is the kernel's, so nothing is left after a kill. The fd
 * stays open until the process ends.
 */
static gboolean
take_lock(const char *state_dir, GError **error)
{
	g_autofree char *path = rm_paths_lock(state_dir);
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	if (fd < 0) {
		rm_error_set(error, RM_ERROR_FAILED, "cannot open %s: %s", path, g_strerror(errno));
		return FALSE;
	}
	if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		rm_error_set(error, RM_ERROR_BUSY, "another rmd uses %s", state_dir);
		close(fd);
		return FALSE;
	}
	return TRUE;
}

/* A grant carries up to 253 fds, and every domain has a pidfd, a listener and a connection. */
static void
raise_limits(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

/* sd_notify() in so far as we need it. */
static void
notify_ready(void)
{
	const char *path = g_getenv("NOTIFY_SOCKET");
	g_autoptr(GSocketAddress) address = NULL;
	g_autoptr(GSocket) socket = NULL;

	if (!path || !*path)
		return;
	if (path[0] == '@')
		address = g_unix_socket_address_new_with_type(path + 1, -1,
							      G_UNIX_SOCKET_ADDRESS_ABSTRACT);
	else
		address = g_unix_socket_address_new(path);
	socket = g_socket_new(G_SOCKET_FAMILY_UNIX, G_SOCKET_TYPE_DATAGRAM,
			      G_SOCKET_PROTOCOL_DEFAULT, NULL);
	if (socket)
		g_socket_send_to(socket, address, "READY=1", 7, NULL, NULL);
}

static gboolean
on_quit(gpointer loop)
{
	g_main_loop_quit(loop);
	return G_SOURCE_CONTINUE;
}

static gboolean
run(const RmConfig *config, GError **error)
{
	g_autoptr(RmDaemon) daemon = NULL;
	g_autoptr(RmBusServer) server = NULL;
	g_autoptr(GMainLoop) loop = g_main_loop_new(NULL, FALSE);

	if (!rm_paths_make(config->runtime_dir, config->state_dir, error) ||
	    !take_lock(config->state_dir, error))
		return FALSE;
	daemon = rm_daemon_new(config, error);
	if (!daemon)
		return FALSE;
	server = rm_bus_server_new(daemon, error);
	if (!server)
		return FALSE;
	g_unix_signal_add(SIGTERM, on_quit, loop);
	g_unix_signal_add(SIGINT, on_quit, loop);
	g_info("rmd %s serves %u channels of %s", RM_VERSION,
	       rm_topology_n_channels(config->topology), config->path);
	notify_ready();
	g_main_loop_run(loop);
	g_info("rmd ends; domains keep running");
	return TRUE;
}

int
main(int argc, char **argv)
{
	g_autofree char *config_option = NULL;
	g_autofree char *level_option = NULL;
	gboolean version = FALSE, foreground = FALSE;
	const GOptionEntry entries[] = {
		{"config", 'c', 0, G_OPTION_ARG_FILENAME, &config_option,
		 "Configuration file (default: $RMD_CONFIG, then " RM_CONFIG_DEFAULT_PATH ")",
		 "FILE"},
		{"foreground", 'f', 0, G_OPTION_ARG_NONE, &foreground,
		 "Stay in the foreground (rmd always does)", NULL},
		{"log-level", 'l', 0, G_OPTION_ARG_STRING, &level_option,
		 "error, warning, info (default) or debug", "LEVEL"},
		{"version", 'V', 0, G_OPTION_ARG_NONE, &version, "Print the version", NULL},
		{NULL},
	};
	g_autoptr(GOptionContext) context =
		g_option_context_new("- manage the memory channels of this host");
	g_autoptr(RmConfig) config = NULL;
	g_autoptr(GError) error = NULL;

	g_option_context_add_main_entries(context, entries, NULL);
	if (!g_option_context_parse(context, &argc, &argv, &error)) {
		fprintf(stderr, "rmd: %s\n", error->message);
		return 2;
	}
	if (argc > 1) {
		fprintf(stderr, "rmd: unexpected argument %s\n", argv[1]);
		return 2;
	}
	if (version) {
		printf("rmd %s\n", RM_VERSION);
		return EXIT_SUCCESS;
	}
	if (level_option && !set_log_level(level_option, &error)) {
		fprintf(stderr, "rmd: %s\n", error->message);
		return 2;
	}
	rm_fault_init();
	umask(022);
	signal(SIGPIPE, SIG_IGN);
	g_log_set_writer_func(write_log, GINT_TO_POINTER(g_log_writer_is_journald(STDERR_FILENO)),
			      NULL);
	raise_limits();
	config = rm_config_load(rm_config_path(config_option), &error);
	if (!config || !run(config, &error)) {
		g_critical("%s", error->message);
		return EXIT_FAILURE;
	}
	return EXIT_SUCCESS;
}
