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
#include "rm-log.h"
#include "rm-paths.h"

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
notify(const char *state)
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
		g_socket_send_to(socket, address, state, strlen(state), NULL, NULL);
}

/* From the main loop: one that hangs does not say that it lives. */
static gboolean
on_watchdog(gpointer data)
{
	notify("WATCHDOG=1");
	return G_SOURCE_CONTINUE;
}

static void
start_watchdog(void)
{
	const char *text = g_getenv("WATCHDOG_USEC");
	guint64 usec = text ? g_ascii_strtoull(text, NULL, 10) : 0;

	if (usec)
		g_timeout_add((guint)CLAMP(usec / 3000, 1, 60000), on_watchdog, NULL);
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
	notify("READY=1");
	start_watchdog();
	g_main_loop_run(loop);
	notify("STOPPING=1");
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
	if (level_option && !rm_log_set_level(level_option, &error)) {
		fprintf(stderr, "rmd: %s\n", error->message);
		return 2;
	}
	rm_fault_init();
	umask(022);
	signal(SIGPIPE, SIG_IGN);
	rm_log_init();
	raise_limits();
	config = rm_config_load(rm_config_path(config_option), &error);
	if (!config || !run(config, &error)) {
		g_critical("%s", error->message);
		return EXIT_FAILURE;
	}
	return EXIT_SUCCESS;
}
