/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "rm-log.h"

#include <stdio.h>
#include <unistd.h>

#include "rm-error.h"

static gint log_level = G_LOG_LEVEL_INFO;

static const struct {
	const char *name;
	GLogLevelFlags level;
} log_levels[] = {
	{"error", G_LOG_LEVEL_CRITICAL},
	{"warning", G_LOG_LEVEL_WARNING},
	{"info", G_LOG_LEVEL_INFO},
	{"debug", G_LOG_LEVEL_DEBUG},
};

gboolean
rm_log_set_level(const char *name, GError **error)
{
	guint i;

	for (i = 0; i < G_N_ELEMENTS(log_levels); i++) {
		if (g_str_equal(log_levels[i].name, name)) {
			g_atomic_int_set(&log_level, (gint)log_levels[i].level);
			return TRUE;
		}
	}
	rm_error_set(error, RM_ERROR_INVALID,
		     "log level %s is unknown; known: error, warning, info, debug", name);
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
	if (level > (GLogLevelFlags)g_atomic_int_get(&log_level) && !(level & G_LOG_LEVEL_ERROR))
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

const char *
rm_log_level(void)
{
	guint i;

	for (i = 0; i < G_N_ELEMENTS(log_levels); i++) {
		if (log_levels[i].level == (GLogLevelFlags)g_atomic_int_get(&log_level))
			return log_levels[i].name;
	}
	g_return_val_if_reached("info");
}

void
rm_log_init(void)
{
	g_log_set_writer_func(write_log, GINT_TO_POINTER(g_log_writer_is_journald(STDERR_FILENO)),
			      NULL);
}
