/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Makes memory zero past the caches, with several threads and at a bounded rate: how chunks whose
 * memory stays (DAX devices) are scrubbed. Owns nothing; blocks until it is done or cancelled.
 */
#ifndef RM_ZERO_H
#define RM_ZERO_H

#include <glib.h>

G_BEGIN_DECLS

typedef struct {
	guint threads;              /* 0 counts as 1 */
	guint64 rate_bytes_per_sec; /* of all threads together; 0: no limit */
	gint *cancelled;            /* set by another thread; or NULL */
	gsize *done_bytes;          /* added to atomically, while it runs; or NULL */
} RmZeroOptions;

/*
 * Zeroes @bytes at @memory (both multiples of 64). The stores are complete, for every observer of
 * this memory, when it returns. FALSE: cancelled; what is zero then is not known.
 */
gboolean rm_zero_memory(void *memory, gsize bytes, const RmZeroOptions *options);

/*
 * The same for a range of a file or device that can be mapped, in pieces of at most 1 GiB. Fails
 * where it cannot be mapped; RM_ERROR_BUSY when cancelled.
 */
gboolean rm_zero_file(int fd, guint64 offset_bytes, guint64 bytes, const RmZeroOptions *options,
		      GError **error);

G_END_DECLS

#endif
