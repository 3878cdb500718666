// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Pages that go bad, as a witness: fills memory and keeps it; one JSON line for each command on stdin.
 *
 *   cnuma-poison MIB
 *     soft N	soft-offline every Nth page; {"failed":, "changed":, "errors":}
 *     hard N	poison every Nth page: it is lost, as an access has to say
 *     where	{"moved":} pages that lie in another frame than at the last soft or where
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096ul
#ifndef MADV_SOFT_OFFLINE
#define MADV_SOFT_OFFLINE 101
#endif

static sigjmp_buf lost;
static volatile sig_atomic_t reading;

/* madvise() itself may send one, too */
static void on_sigbus(int signal)
{
	(void)signal;
	if (reading)
		siglongjmp(lost, 1);
}

static int is_readable(volatile char *page)
{
	volatile int readable = 0;

	if (!sigsetjmp(lost, 1)) {
		reading = 1;
		(void)*page;
		readable = 1;
	}
	reading = 0;
	return readable;
}

static uint64_t frame(int pagemap, const char *page)
{
	uint64_t entry;

	if (pread(pagemap, &entry, 8, (uintptr_t)page / PAGE * 8) != 8)
		return 0;
	return entry & ((1ull << 55) - 1);
}

int main(int argc, char **argv)
{
	size_t pages = argc == 2 ? strtoul(argv[1], NULL, 10) << 8 : 0, every;
	uint64_t *frames = calloc(pages + 1, sizeof(*frames));
	int pagemap = open("/proc/self/pagemap", O_RDONLY);
	char line[64];
	char *memory;

	if (!pages || pagemap < 0 || !frames) {
		fputs("usage: cnuma-poison MIB\n", stderr);
		return 2;
	}
	memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return 1;
	madvise(memory, pages * PAGE, MADV_NOHUGEPAGE);
	for (size_t i = 0; i < pages; i++) {
		*(size_t *)(memory + i * PAGE) = i;
		frames[i] = frame(pagemap, memory + i * PAGE);
	}
	signal(SIGBUS, on_sigbus);
	setvbuf(stdout, NULL, _IOLBF, 0);
	puts("{\"ready\":true}");

	while (fgets(line, sizeof(line), stdin)) {
		size_t failed = 0, changed = 0, errors = 0, moved = 0;

		if (sscanf(line, "soft %zu", &every) == 1 && every) {
			for (size_t i = 0; i < pages; i += every) {
				char *page = memory + i * PAGE;

				failed += madvise(page, PAGE, MADV_SOFT_OFFLINE) != 0;
				changed += frame(pagemap, page) != frames[i];
				errors += *(size_t *)page != i;
				frames[i] = frame(pagemap, page);
			}
			printf("{\"failed\":%zu,\"changed\":%zu,\"errors\":%zu}\n", failed, changed, errors);
		} else if (sscanf(line, "hard %zu", &every) == 1 && every) {
			for (size_t i = 0; i < pages; i += every) {
				failed += madvise(memory + i * PAGE, PAGE, MADV_HWPOISON) != 0;
				errors += is_readable(memory + i * PAGE);
			}
			printf("{\"failed\":%zu,\"readable\":%zu}\n", failed, errors);
		} else if (!strncmp(line, "where", 5)) {
			for (size_t i = 0; i < pages; i++) {
				uint64_t now = frame(pagemap, memory + i * PAGE);

				moved += now != frames[i];
				frames[i] = now;
			}
			printf("{\"moved\":%zu}\n", moved);
		}
	}
	return 0;
}
