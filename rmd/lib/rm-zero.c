/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "rm-zero.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#ifdef __x86_64__
#include <emmintrin.h>
#endif

#include "rm-error.h"

/* One look at the clock and at the request to stop for so much. */
#define STEP_BYTES ((gsize)2 << 20)
#define MAP_BYTES  ((guint64)1 << 30)

typedef struct {
	char *memory;
	gsize bytes;
	guint64 rate_bytes_per_sec;
	const RmZeroOptions *options;
	gboolean cancelled;
} Part;

#ifdef __x86_64__
static void
zero_step(char *memory, gsize bytes)
{
	const __m128i zero = _mm_setzero_si128();
	char *end = memory + bytes;

	for (; memory < end; memory += 64) {
		_mm_stream_si128((__m128i *)(gpointer)memory, zero);
		_mm_stream_si128((__m128i *)(gpointer)(memory + 16), zero);
		_mm_stream_si128((__m128i *)(gpointer)(memory + 32), zero);
		_mm_stream_si128((__m128i *)(gpointer)(memory + 48), zero);
	}
}

static void
zero_fence(void)
{
	_mm_sfence();
}
#else
static void
zero_step(char *memory, gsize bytes)
{
	memset(memory, 0, bytes);
}

static void
zero_fence(void)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}
#endif

/* Sleeps until so many bytes are due at the rate that was asked for. */
static void
keep_rate(const Part *part, gint64 start_usec, gsize done)
{
	gint64 due;

	if (!part->rate_bytes_per_sec)
		return;
	due = start_usec + (gint64)((gdouble)done / (gdouble)part->rate_bytes_per_sec * 1e6);
	while (due > g_get_monotonic_time()) {
		if (part->options->cancelled && g_atomic_int_get(part->options->cancelled))
			return;
		g_usleep((gulong)CLAMP(due - g_get_monotonic_time(), 1, 50000));
	}
}

static gpointer
zero_part(gpointer data)
{
	Part *part = data;
	gint64 start_usec = g_get_monotonic_time();
	gsize done = 0;

	while (done < part->bytes) {
		gsize step = MIN(STEP_BYTES, part->bytes - done);

		if (part->options->cancelled && g_atomic_int_get(part->options->cancelled)) {
			part->cancelled = TRUE;
			break;
		}
		zero_step(part->memory + done, step);
		done += step;
		if (part->options->done_bytes)
			g_atomic_pointer_add(part->options->done_bytes, (gssize)step);
		keep_rate(part, start_usec, done);
	}
	zero_fence();
	return NULL;
}

gboolean
rm_zero_memory(void *memory, gsize bytes, const RmZeroOptions *options)
{
	guint n = (guint)CLAMP(MIN(options->threads, bytes / STEP_BYTES), 1, 64), i;
	g_autofree Part *parts = g_new0(Part, n);
	g_autofree GThread **threads = g_new0(GThread *, n);
	gsize share = bytes / n / 64 * 64;
	gboolean ok = TRUE;

	for (i = 0; i < n; i++) {
		parts[i].memory = (char *)memory + i * share;
		parts[i].bytes = i + 1 < n ? share : bytes - i * share;
		parts[i].rate_bytes_per_sec = options->rate_bytes_per_sec / n;
		parts[i].options = options;
		if (options->rate_bytes_per_sec && !parts[i].rate_bytes_per_sec)
			parts[i].rate_bytes_per_sec = 1;
		if (i)
			threads[i] = g_thread_new("rmd-zero", zero_part, &parts[i]);
	}
	zero_part(&parts[0]);
	ok = !parts[0].cancelled;
	for (i = 1; i < n; i++) {
		g_thread_join(threads[i]);
		ok = ok && !parts[i].cancelled;
	}
	return ok;
}

gboolean
rm_zero_file(int fd, guint64 offset_bytes, guint64 bytes, const RmZeroOptions *options,
	     GError **error)
{
	while (bytes) {
		gsize piece = (gsize)MIN(bytes, MAP_BYTES);
		void *memory = mmap(NULL, piece, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
				    (off_t)offset_bytes);
		gboolean ok;

		if (memory == MAP_FAILED) {
			rm_error_set(error, RM_ERROR_FAILED,
				     "cannot map %" G_GSIZE_FORMAT
				     " bytes in order to zero them: %s",
				     piece, g_strerror(errno));
			return FALSE;
		}
		ok = rm_zero_memory(memory, piece, options);
		munmap(memory, piece);
		if (!ok) {
			rm_error_set(error, RM_ERROR_BUSY, "zeroing was cancelled");
			return FALSE;
		}
		offset_bytes += piece;
		bytes -= piece;
	}
	return TRUE;
}
