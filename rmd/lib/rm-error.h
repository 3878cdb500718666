/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The one error domain of RamRyder. A message is a single line that says what was asked, what is
 * there and what to do; it reaches rmctl and virsh unchanged. The codes are those of the D-Bus
 * errors org.ramryder.Error.*; this file knows no bus (see rmd/dbus/rm-bus.h for the mapping).
 */
#ifndef RM_ERROR_H
#define RM_ERROR_H

#include <glib.h>

G_BEGIN_DECLS

typedef enum {
	RM_ERROR_FAILED,    /* something below us did not work */
	RM_ERROR_NOT_FOUND, /* no such domain, channel or job */
	RM_ERROR_INVALID,   /* the request contradicts itself or the configuration */
	RM_ERROR_NO_SPACE,  /* right, but there are not enough chunks or channels */
	RM_ERROR_BUSY,      /* right, but not now */
	RM_ERROR_STALE,     /* made for an older state (expected-generation) */
	RM_ERROR_DAMAGED,   /* a file of ours does not say what it should */
	RM_ERROR_N
} RmError;

#define RM_ERROR (rm_error_quark())
GQuark rm_error_quark(void);

/* "NotFound" for RM_ERROR_NOT_FOUND; static. */
const char *rm_error_name(RmError code);

/* g_set_error() in our domain; line breaks become blanks. */
void rm_error_set(GError **error, RmError code, const char *format, ...) G_GNUC_PRINTF(3, 4);

G_END_DECLS

#endif
