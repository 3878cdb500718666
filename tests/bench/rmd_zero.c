/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * rmd_zero FILE BYTES THREADS: the rate at which rmd's DAX path (rm_zero_memory) zeroes a mapping
 * of FILE that is faulted in, over the rate of bare loops of non-temporal stores with the same
 * threads on the same mapping. The two take turns; the medians are compared. JSON on stdout.
 */
#include <emmintrin.h>
#include <fcntl.h>
#include <glib.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "rm-zero.h"

#define ROUNDS 15

typedef struct {
	char *memory;
	gsize bytes;
} Slice;

static void *
bare_slice(void *data)
{
	const Slice *slice = data;
	const __m128i zero = _mm_setzero_si128();
	gsize i;

	for (i = 0; i < slice->bytes; i += 16)
		_mm_stream_si128((__m128i *)(void *)(slice->memory + i), zero);
	_mm_sfence();
	return NULL;
}

static void
bare(char *memory, gsize bytes, guint threads)
{
	pthread_t ids[64];
	Slice slices[64];
	guint i;

	for (i = 0; i < threads; i++) {
		slices[i].memory = memory + i * (bytes / threads);
		slices[i].bytes = bytes / threads;
		if (i)
			pthread_create(&ids[i], NULL, bare_slice, &slices[i]);
	}
	bare_slice(&slices[0]);
	for (i = 1; i < threads; i++)
		pthread_join(ids[i], NULL);
}

static int
compare(const void *a, const void *b)
{
	double da = *(const double *)a, db = *(const double *)b;

	return da < db ? -1 : da > db;
}

int
main(int argc, char **argv)
{
	gsize bytes = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
	guint threads = argc > 3 ? (guint)atoi(argv[3]) : 0;
	RmZeroOptions options = {.threads = threads};
	double rates[2][ROUNDS];
	int fd = argc > 1 ? open(argv[1], O_RDWR) : -1;
	char *memory;
	guint round;

	if (fd < 0 || !bytes || !threads || threads > 64 || bytes % (threads * 4096)) {
		fprintf(stderr, "usage: rmd_zero FILE BYTES THREADS\n");
		return 2;
	}
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
	if (memory == MAP_FAILED) {
		perror("mmap");
		return 1;
	}
	memset(memory, 0xa5, bytes);
	for (round = 0; round < 2 * ROUNDS; round++) {
		gint64 start = g_get_monotonic_time();

		if (round % 2)
			bare(memory, bytes, threads);
		else
			rm_zero_memory(memory, bytes, &options);
		rates[round % 2][round / 2] =
			(double)bytes / (double)(g_get_monotonic_time() - start);
		if (memory[0] || memcmp(memory, memory + 1, bytes - 1)) {
			fprintf(stderr, "not zero after round %u\n", round);
			return 1;
		}
		memset(memory, 0xa5, bytes);
	}
	qsort(rates[0], ROUNDS, sizeof(double), compare);
	qsort(rates[1], ROUNDS, sizeof(double), compare);
	printf("{\"threads\": %u, \"bytes\": %zu, \"rmd_mbps\": %.0f, \"bare_mbps\": %.0f, "
	       "\"ratio\": %.4f}\n",
	       threads, bytes, rates[0][ROUNDS / 2], rates[1][ROUNDS / 2],
	       rates[0][ROUNDS / 2] / rates[1][ROUNDS / 2]);
	return 0;
}
