/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The <emulator> of a libvirt domain with <rr:memory>. Becomes the patched QEMU by exec, under the
 * same pid: with a domain's -uuid it first asks rmd for the arguments that describe the channels
 * and connects the socket of the channel RPC, because QEMU's sandbox may not let it do so early
 * enough.
 *
 * Without -uuid (libvirt's capability probes, -version) rmd is not needed. A domain that has no
 * claim runs as it would under the plain QEMU. The command line of libvirt is passed on as it is;
 * ours comes after it, where a later -m replaces an earlier one.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "rm-client.h"

#define START_MSEC (30 * 1000)

/* The literal in rmd's arguments that stands for the number of the connected socket. */
#define FD_PLACE "@FD@"

static int
complain(const char *message)
{
	fprintf(stderr, "qemu-ramryder: %s\n", message);
	return 1;
}

/* The value of -uuid in the form that rmd uses; NULL if there is none. */
static char *
find_uuid(int argc, char **argv)
{
	int i;

	for (i = 1; i + 1 < argc; i++) {
		if (!g_str_equal(argv[i], "-uuid") && !g_str_equal(argv[i], "--uuid"))
			continue;
		if (g_uuid_string_is_valid(argv[i + 1]))
			return g_ascii_strdown(argv[i + 1], -1);
	}
	return NULL;
}

/* Returns only if it fails. */
static void
become(const char *emulator, char **argv, GError **error)
{
	int saved;

	argv[0] = (char *)emulator;
	signal(SIGPIPE, SIG_DFL); /* GIO ignores it, and exec would hand that on */
	execv(emulator, argv);
	saved = errno;
	rm_error_set(error, RM_ERROR_FAILED,
		     "cannot execute %s: %s; [qemu] emulator in rmd.conf names the patched QEMU",
		     emulator, g_strerror(saved));
}

/*
 * QEMU holds an fd for each granted chunk that its guest has not plugged yet: 8192 for 1 TiB, where
 * the soft limit often is 1024. The hard limit is the administrator's and stays.
 */
static void
raise_fd_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max)
		return;
	limit.rlim_cur = limit.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
		complain("cannot raise the limit of open files; a large VM may not start");
}

/* A socket that survives exec. */
static int
connect_channel_socket(const char *path, GError **error)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd;

	if (strlen(path) >= sizeof(address.sun_path)) {
		rm_error_set(error, RM_ERROR_FAILED,
			     "the socket path %s is longer than %zu bytes; shorten [daemon] "
			     "runtime-dir in rmd.conf",
			     path, sizeof(address.sun_path) - 1);
		return -1;
	}
	strcpy(address.sun_path, path);
	fd = socket(AF_UNIX, SOCK_STREAM, 0);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
		return fd;
	rm_error_set(error, RM_ERROR_FAILED, "cannot connect to rmd's channel socket %s: %s", path,
		     g_strerror(errno));
	if (fd >= 0)
		close(fd);
	return -1;
}

static char *
fill_in_fd(const char *argument, int fd)
{
	g_autofree char *number = g_strdup_printf("%d", fd);
	g_auto(GStrv) pieces = g_strsplit(argument, FD_PLACE, -1);

	return g_strjoinv(number, pieces);
}

/* FALSE without an error: rmd has no claim for this domain. */
static gboolean
ask_rmd(const char *uuid, char ***ret_arguments, char **ret_emulator, int *ret_fd, GError **error)
{
	g_autofree char *bus_path = rm_client_bus_path(error);
	g_autoptr(RmManager1) manager = NULL;
	g_autoptr(GError) why = NULL;
	g_auto(GStrv) arguments = NULL;
	g_autofree char *emulator = NULL;
	g_autofree char *socket_path = NULL;
	int fd;

	if (bus_path == NULL)
		return FALSE;
	manager = rm_client_connect(bus_path, START_MSEC, error);
	if (manager == NULL)
		return FALSE;
	if (!rm_manager1_call_start_sync(manager, uuid, &arguments, &emulator, &socket_path, NULL,
					 &why)) {
		if (g_error_matches(why, RM_ERROR, RM_ERROR_NOT_FOUND))
			return FALSE;
		rm_client_clean_error(bus_path, &why);
		g_propagate_error(error, g_steal_pointer(&why));
		return FALSE;
	}
	fd = connect_channel_socket(socket_path, error);
	if (fd < 0)
		return FALSE;
	*ret_arguments = g_steal_pointer(&arguments);
	*ret_emulator = g_steal_pointer(&emulator);
	*ret_fd = fd;
	return TRUE;
}

static int
start_domain(const char *uuid, int argc, char **argv)
{
	g_autoptr(GPtrArray) all = g_ptr_array_new();
	g_auto(GStrv) arguments = NULL;
	g_autofree char *emulator = NULL;
	g_autoptr(GError) error = NULL;
	int fd = -1, i;

	if (!ask_rmd(uuid, &arguments, &emulator, &fd, &error)) {
		if (error == NULL)
			emulator = rm_client_emulator(&error);
		if (error == NULL)
			become(emulator, argv, &error);
		return complain(error->message);
	}
	for (i = 0; i < argc; i++)
		g_ptr_array_add(all, argv[i]);
	for (i = 0; arguments[i] != NULL; i++)
		g_ptr_array_add(all, fill_in_fd(arguments[i], fd));
	g_ptr_array_add(all, NULL);
	raise_fd_limit();
	become(emulator, (char **)all->pdata, &error);
	return complain(error->message);
}

int
main(int argc, char **argv)
{
	g_autofree char *uuid = find_uuid(argc, argv);
	g_autofree char *emulator = NULL;
	g_autoptr(GError) error = NULL;

	if (uuid != NULL)
		return start_domain(uuid, argc, argv);
	emulator = rm_client_emulator(&error);
	if (emulator == NULL)
		return complain(error->message);
	become(emulator, argv, &error);
	return complain(error->message);
}
