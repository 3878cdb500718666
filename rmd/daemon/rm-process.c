/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "rm-process.h"

#include <errno.h>
#include <glib-unix.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "rm-error.h"

#ifndef SO_PEERPIDFD /* Linux 6.5 */
#define SO_PEERPIDFD 77
#endif

struct RmProcess {
	gint pid;
	guint64 start_time_ticks;
	int pidfd;
	guint watch;
	RmProcessGone gone;
	gpointer data;
};

/* Field 22 of /proc/PID/stat; 0 if the process is gone. The name in field 2 may hold anything. */
static guint64
read_start_time(gint pid)
{
	g_autofree char *path = g_strdup_printf("/proc/%d/stat", pid);
	g_autofree char *text = NULL;
	g_auto(GStrv) fields = NULL;
	const char *end;

	if (!g_file_get_contents(path, &text, NULL, NULL))
		return 0;
	end = strrchr(text, ')');
	if (!end || end[1] != ' ')
		return 0;
	fields = g_strsplit(end + 2, " ", 21); /* from field 3 on */
	return g_strv_length(fields) < 21 ? 0 : g_ascii_strtoull(fields[19], NULL, 10);
}

static RmProcess *
process_new(gint pid, int pidfd, guint64 start_time_ticks, GError **error)
{
	g_autoptr(RmProcess) process = g_new0(RmProcess, 1);

	process->pid = pid;
	process->pidfd = pidfd;
	process->start_time_ticks = read_start_time(pid);
	/* Alive after the reading: then it was this process that was read. */
	if (!process->start_time_ticks || !rm_process_alive(process) ||
	    (start_time_ticks && process->start_time_ticks != start_time_ticks)) {
		rm_error_set(error, RM_ERROR_NOT_FOUND, "process %d is gone", pid);
		return NULL;
	}
	return g_steal_pointer(&process);
}

RmProcess *
rm_process_open(gint pid, guint64 start_time_ticks, GError **error)
{
	int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);

	if (pidfd < 0) {
		rm_error_set(error, errno == ESRCH ? RM_ERROR_NOT_FOUND : RM_ERROR_FAILED,
			     "process %d: %s", pid, g_strerror(errno));
		return NULL;
	}
	return process_new(pid, pidfd, start_time_ticks, error);
}

RmProcess *
rm_process_open_peer(GSocket *socket, GError **error)
{
	g_autoptr(GCredentials) credentials = g_socket_get_credentials(socket, error);
	socklen_t len = sizeof(int);
	gint pid;
	int pidfd;

	if (!credentials)
		return NULL;
	pid = g_credentials_get_unix_pid(credentials, error);
	if (pid <= 0)
		return NULL;
	if (getsockopt(g_socket_get_fd(socket), SOL_SOCKET, SO_PEERPIDFD, &pidfd, &len) == 0)
		return process_new(pid, pidfd, 0, error);
	return rm_process_open(pid, 0, error);
}

gint
rm_process_pid(const RmProcess *process)
{
	return process->pid;
}

guint64
rm_process_start_time_ticks(const RmProcess *process)
{
	return process->start_time_ticks;
}

gboolean
rm_process_uid(const RmProcess *process, uid_t *ret_uid)
{
	g_autofree char *path = g_strdup_printf("/proc/%d/status", process->pid);
	g_autofree char *text = NULL;
	const char *line;
	guint effective;

	if (!g_file_get_contents(path, &text, NULL, NULL))
		return FALSE;
	line = strstr(text, "\nUid:");
	if (!line || sscanf(line, "\nUid: %*u %u", &effective) != 1 || !rm_process_alive(process))
		return FALSE;
	*ret_uid = effective;
	return TRUE;
}

gboolean
rm_process_alive(const RmProcess *process)
{
	struct pollfd fd = {.fd = process->pidfd, .events = POLLIN};

	return poll(&fd, 1, 0) == 0;
}

gboolean
rm_process_equal(const RmProcess *a, const RmProcess *b)
{
	return a->pid == b->pid && a->start_time_ticks == b->start_time_ticks;
}

static gboolean
on_pidfd(gint fd, GIOCondition condition, gpointer data)
{
	RmProcess *process = data;

	process->watch = 0;
	process->gone(process->data);
	return G_SOURCE_REMOVE;
}

void
rm_process_watch(RmProcess *process, RmProcessGone gone, gpointer data)
{
	g_clear_handle_id(&process->watch, g_source_remove);
	process->gone = gone;
	process->data = data;
	process->watch = g_unix_fd_add(process->pidfd, G_IO_IN, on_pidfd, process);
}

void
rm_process_free(RmProcess *process)
{
	if (!process)
		return;
	g_clear_handle_id(&process->watch, g_source_remove);
	close(process->pidfd);
	g_free(process);
}
