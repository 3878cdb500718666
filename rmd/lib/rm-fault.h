/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Where the tests kill us. The environment variable RMD_FAULT=NAME:N ends the process with SIGKILL
 * when it passes the point NAME for the Nth time, as a crash there would; NAME "any" counts all
 * points. Without the variable a point is one comparison. Any thread may pass one.
 */
#ifndef RM_FAULT_H
#define RM_FAULT_H

#include <glib.h>

G_BEGIN_DECLS

/* Reads the environment; before there are threads. */
void rm_fault_init(void);

void rm_fault_point(const char *name);

G_END_DECLS

#endif
