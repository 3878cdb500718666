/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Where rmd's messages go: a line each on standard error, with the level as journald reads it when
 * it is at the other end. Owns the level, which can be changed at any time.
 */
#ifndef RM_LOG_H
#define RM_LOG_H

#include <glib.h>

G_BEGIN_DECLS

/* To be called before there are threads. */
void rm_log_init(void);

/* error, warning, info or debug; anything else is an error that lists them. */
gboolean rm_log_set_level(const char *name, GError **error);
const char *rm_log_level(void);

G_END_DECLS

#endif
