/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "rm-size.h"

#include "rm-error.h"

static const struct {
	const char *name;
	guint64 factor;
} units[] = {
	{"TiB", RM_TIB}, {"GiB", RM_GIB}, {"MiB", RM_MIB}, {"KiB", RM_KIB}, {"bytes", 1},
};

guint64
rm_size_unit(const char *unit)
{
	gsize i;

	for (i = 0; i < G_N_ELEMENTS(units); i++)
		if (g_str_equal(unit, units[i].name))
			return units[i].factor;
	return 0;
}

/* 0 if @suffix is no unit; "G" and "GiB" alike. */
static guint64
suffix_factor(const char *suffix)
{
	gsize i;

	if (suffix[0] == '\0')
		return 1;
	for (i = 0; i < G_N_ELEMENTS(units); i++) {
		if (g_ascii_strcasecmp(suffix, units[i].name) == 0)
			return units[i].factor;
		if (units[i].factor > 1 && suffix[1] == '\0' &&
		    g_ascii_toupper(suffix[0]) == units[i].name[0])
			return units[i].factor;
	}
	return 0;
}

gboolean
rm_size_parse(const char *text, guint64 *ret_bytes, GError **error)
{
	g_autofree char *copy = g_strstrip(g_strdup(text));
	guint64 number, factor, bytes;
	char *end = NULL;

	if (!g_ascii_isdigit(copy[0])) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "'%s' is not a size; write for example 512M or 4GiB", text);
		return FALSE;
	}
	errno = 0;
	number = g_ascii_strtoull(copy, &end, 10);
	if (errno != 0) {
		rm_error_set(error, RM_ERROR_INVALID, "the size '%s' is too large", text);
		return FALSE;
	}
	while (*end == ' ')
		end++;
	factor = suffix_factor(end);
	if (factor == 0) {
		rm_error_set(error, RM_ERROR_INVALID,
			     "'%s' is not a size; write a whole number and K, M, G or T, "
			     "for example 512M or 4GiB",
			     text);
		return FALSE;
	}
	if (!g_uint64_checked_mul(&bytes, number, factor)) {
		rm_error_set(error, RM_ERROR_INVALID, "the size '%s' is too large", text);
		return FALSE;
	}
	*ret_bytes = bytes;
	return TRUE;
}

char *
rm_size_format(guint64 bytes)
{
	gsize i;

	for (i = 0; bytes != 0 && i < G_N_ELEMENTS(units); i++)
		if (bytes % units[i].factor == 0)
			return g_strdup_printf("%" G_GUINT64_FORMAT " %s", bytes / units[i].factor,
					       units[i].name);
	return g_strdup("0");
}

gboolean
rm_size_check_chunks(const char *what, guint64 bytes, GError **error)
{
	guint64 below = bytes - bytes % RM_CHUNK_BYTES;
	g_autofree char *asked = NULL;
	g_autofree char *lower = NULL;
	g_autofree char *upper = NULL;

	if (below == bytes)
		return TRUE;
	asked = rm_size_format(bytes);
	lower = rm_size_format(below);
	upper = rm_size_format(below + RM_CHUNK_BYTES);
	if (below == 0)
		rm_error_set(
			error, RM_ERROR_INVALID,
			"%s: %s is not a multiple of the chunk size, 128 MiB; the smallest size "
			"is %s",
			what, asked, upper);
	else
		rm_error_set(
			error, RM_ERROR_INVALID,
			"%s: %s is not a multiple of the chunk size, 128 MiB; the nearest sizes "
			"are %s and %s",
			what, asked, lower, upper);
	return FALSE;
}
