/* SPDX-License-Identifier: GPL-2.0-or-later */
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include <glib-unix.h>

#include "rmctl.h"

#define BAR_WIDTH 30

/* A signal may be lost when rmd is very busy: ask now and then. */
#define POLL_MSEC 1000

typedef struct {
	RmManager1 *manager;
	GMainLoop *loop;
	guint64 id;
	gboolean quiet;
	gboolean is_tty;
	gboolean interrupted;
	gboolean drawn;    /* a bar is on the current line */
	int shown_percent; /* of the last plain line; -1 before the first */
	char *shown_message;
	GVariant *job; /* the newest dictionary */
	GError *error;
} Waiting;

static gboolean
is_running(GVariant *job)
{
	const char *state = "running";

	g_variant_lookup(job, "state", "&s", &state);
	return g_str_equal(state, "running");
}

static void
draw_bar(Waiting *waiting, double progress, const char *message)
{
	char bar[BAR_WIDTH + 1];
	int i;

	for (i = 0; i < BAR_WIDTH; i++)
		bar[i] = i < (int)(progress * BAR_WIDTH) ? '#' : '.';
	bar[BAR_WIDTH] = '\0';
	fprintf(stderr, "\r\033[K[%s] %3d%% %.40s", bar, (int)(100 * progress), message);
	waiting->drawn = TRUE;
}

/* A new line for a new message or another tenth. */
static void
print_progress(Waiting *waiting, double progress, const char *message)
{
	int percent = (int)(100 * progress);

	if (g_strcmp0(message, waiting->shown_message) == 0 &&
	    percent / 10 == waiting->shown_percent / 10)
		return;
	fprintf(stderr, "job %" G_GUINT64_FORMAT ": %d%% %s\n", waiting->id, percent, message);
	waiting->shown_percent = percent;
	g_free(waiting->shown_message);
	waiting->shown_message = g_strdup(message);
}

/* Takes over @job. */
static void
update(Waiting *waiting, GVariant *job)
{
	const char *message = "";
	double progress = 0;

	g_clear_pointer(&waiting->job, g_variant_unref);
	waiting->job = job;
	if (!is_running(job)) {
		g_main_loop_quit(waiting->loop);
		return;
	}
	if (waiting->quiet)
		return;
	g_variant_lookup(job, "progress", "d", &progress);
	g_variant_lookup(job, "message", "&s", &message);
	progress = CLAMP(progress, 0, 1);
	if (waiting->is_tty)
		draw_bar(waiting, progress, message);
	else
		print_progress(waiting, progress, message);
}

static void
on_job_changed(RmManager1 *manager, guint64 id, GVariant *job, gpointer data)
{
	Waiting *waiting = data;

	if (id == waiting->id)
		update(waiting, g_variant_ref(job));
}

static gboolean
poll_job(gpointer data)
{
	Waiting *waiting = data;
	GVariant *job = NULL;

	if (rm_manager1_call_get_job_sync(waiting->manager, waiting->id, &job, NULL,
					  &waiting->error)) {
		update(waiting, job);
		return G_SOURCE_CONTINUE;
	}
	g_main_loop_quit(waiting->loop);
	return G_SOURCE_REMOVE;
}

static gboolean
on_interrupt(gpointer data)
{
	Waiting *waiting = data;

	waiting->interrupted = TRUE;
	g_main_loop_quit(waiting->loop);
	return G_SOURCE_CONTINUE;
}

static void
wait_until_ended(Waiting *waiting)
{
	gulong handler = g_signal_connect(waiting->manager, "job-changed",
					  G_CALLBACK(on_job_changed), waiting);
	guint interrupt = g_unix_signal_add(SIGINT, on_interrupt, waiting);
	guint timer;

	if (poll_job(waiting) == G_SOURCE_CONTINUE && is_running(waiting->job)) {
		timer = g_timeout_add(POLL_MSEC, poll_job, waiting);
		g_main_loop_run(waiting->loop);
		if (waiting->error == NULL)
			g_source_remove(timer);
	}
	g_source_remove(interrupt);
	g_signal_handler_disconnect(waiting->manager, handler);
	if (waiting->drawn)
		fputs("\r\033[K", stderr);
}

static int
report(Waiting *waiting)
{
	const char *state = "", *message = "";

	if (waiting->error != NULL) {
		if (waiting->job != NULL)
			fprintf(stderr,
				"rmctl: job %" G_GUINT64_FORMAT
				" is no longer watched; rmctl jobs shows what became of it\n",
				waiting->id);
		return rmctl_fail(g_steal_pointer(&waiting->error));
	}
	if (waiting->interrupted) {
		fprintf(stderr,
			"rmctl: job %" G_GUINT64_FORMAT
			" goes on; rmctl jobs --cancel %" G_GUINT64_FORMAT " stops it\n",
			waiting->id, waiting->id);
		return RMCTL_FAILED;
	}
	g_variant_lookup(waiting->job, "state", "&s", &state);
	g_variant_lookup(waiting->job, "message", "&s", &message);
	if (g_str_equal(state, "done"))
		return RMCTL_OK;
	fprintf(stderr, "rmctl: job %" G_GUINT64_FORMAT " %s: %s\n", waiting->id, state, message);
	return RMCTL_FAILED;
}

int
rmctl_wait_job(RmManager1 *manager, guint64 id, gboolean quiet, GVariant **ret_job)
{
	Waiting waiting = {
		.manager = manager,
		.loop = g_main_loop_new(NULL, FALSE),
		.id = id,
		.quiet = quiet,
		.is_tty = isatty(STDERR_FILENO) == 1,
		.shown_percent = -1,
	};
	int code;

	wait_until_ended(&waiting);
	code = report(&waiting);
	*ret_job = waiting.job;
	g_free(waiting.shown_message);
	g_main_loop_unref(waiting.loop);
	return code;
}
