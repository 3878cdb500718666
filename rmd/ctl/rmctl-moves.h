/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The table of what is moved, which several verbs print. */
#ifndef RMCTL_MOVES_H
#define RMCTL_MOVES_H

#include "rmctl-print.h"

G_BEGIN_DECLS

char *rmctl_moves_help(void);
gboolean rmctl_moves_check(GError **error);
/* Returns an exit code. */
int rmctl_moves_print(GVariant *moves);

G_END_DECLS

#endif
