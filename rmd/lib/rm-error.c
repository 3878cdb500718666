/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "rm-error.h"

#include <stdarg.h>

G_DEFINE_QUARK(rm - error, rm_error)

static const char *const names[RM_ERROR_N] = {
	[RM_ERROR_FAILED] = "Failed",   [RM_ERROR_NOT_FOUND] = "NotFound",
	[RM_ERROR_INVALID] = "Invalid", [RM_ERROR_NO_SPACE] = "NoSpace",
	[RM_ERROR_BUSY] = "Busy",       [RM_ERROR_STALE] = "Stale",
	[RM_ERROR_DAMAGED] = "Damaged",
};

const char *
rm_error_name(RmError code)
{
	g_return_val_if_fail((guint)code < RM_ERROR_N, "Failed");
	return names[code];
}

void
rm_error_set(GError **error, RmError code, const char *format, ...)
{
	g_autofree char *message = NULL;
	va_list args;

	va_start(args, format);
	message = g_strdup_vprintf(format, args);
	va_end(args);
	g_strdelimit(message, "\r\n", ' ');
	g_set_error_literal(error, RM_ERROR, code, message);
}
