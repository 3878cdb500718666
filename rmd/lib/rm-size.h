/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Sizes as people write and read them. Owns the size of a chunk, the spelling of units and nothing
 * else; depends on rm-error only.
 */
#ifndef RM_SIZE_H
#define RM_SIZE_H

#include <glib.h>

G_BEGIN_DECLS

#define RM_KIB (G_GUINT64_CONSTANT(1) << 10)
#define RM_MIB (G_GUINT64_CONSTANT(1) << 20)
#define RM_GIB (G_GUINT64_CONSTANT(1) << 30)
#define RM_TIB (G_GUINT64_CONSTANT(1) << 40)

/* The unit of every grant: Linux's memory block size on x86-64. */
#ifndef RM_CHUNK_BYTES
#define RM_CHUNK_BYTES (128 * RM_MIB)
#endif

/*
 * The factor of a unit that is written in full: "bytes", "KiB", "MiB", "GiB", "TiB"; 0 for any
 * other word. Decimal units are left out on purpose: memory is never a multiple of 10^9.
 */
guint64 rm_size_unit(const char *unit);

/*
 * Reads a whole number with an optional unit, upper or lower case: "134217728", "128M", "4G",
 * "4GiB", "1 TiB". Fails with RM_ERROR_INVALID and a message that quotes @text.
 */
gboolean rm_size_parse(const char *text, guint64 *ret_bytes, GError **error);

/* The exact size in the largest unit that divides it: "4 GiB", "4100 MiB", "17 bytes". */
char *rm_size_format(guint64 bytes);

/*
 * Fails with RM_ERROR_INVALID unless @bytes is a multiple of a chunk; the message begins with @what
 * ("--capacity") and names the nearest sizes that would do.
 */
gboolean rm_size_check_chunks(const char *what, guint64 bytes, GError **error);

G_END_DECLS

#endif
