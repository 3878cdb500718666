// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A working set that is written and verified all the time, and a witness of where its pages lie.
 *
 * One thread goes round the pages: it checks that a page still holds what was written last, and writes the next
 * sequence number. The other thread samples /proc/self/pagemap and counts on which channel each page lies and how
 * often it moved. Which channel a frame belongs to comes from the firmware's tables only (CNUM: the window of each
 * channel; SRAT: the memory that is in no window, which belongs to the head of its node), never from the kernel code
 * that the tests are about.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "channel-map.h"

#define PAGE 4096ul
#define WORDS (PAGE / sizeof(uint64_t))
#define SLICE 64ul /* words; the first of each slice carries the sequence number */
#define SLICES (WORDS / SLICE)

/* ---- the working set ---- */

static struct {
	const char *kind, *socket;
	size_t pages;
	unsigned int period_ms;
	uint8_t *memory;
	uint32_t *sequence; /* of each page; only the writer touches it */
	uint64_t *pfn;	    /* of each page as last seen, 0: never */
	uint8_t *node, *moved;
	struct channel_map map;
} load = { .kind = "anon", .socket = "/run/cnuma-load.sock", .period_ms = 100 };

static atomic_bool ready, quit;
static atomic_uint_fast64_t verified, errors, passes;
static uint64_t migrated, moved_inside, moved_pages, samples, absent, migrated_from[MAX_NODES];

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 31) * 0x9e3779b97f4a7c15ull;
	return x ^ x >> 29;
}

static uint64_t fixed_word(size_t page, size_t word)
{
	return mix(page * WORDS + word + 1);
}

static uint64_t sequence_word(size_t page, size_t slice, uint32_t sequence)
{
	return mix((page * SLICES + slice) ^ (uint64_t)sequence << 40 ^ 0x5a5aull << 24);
}

static volatile uint64_t *page_at(size_t page)
{
	return (volatile uint64_t *)(load.memory + page * PAGE);
}

static void write_sequence(size_t page)
{
	volatile uint64_t *words = page_at(page);

	for (size_t s = 0; s < SLICES; s++)
		words[s * SLICE] = sequence_word(page, s, load.sequence[page]);
}

static void fill_page(size_t page)
{
	volatile uint64_t *words = page_at(page);

	for (size_t w = 0; w < WORDS; w++)
		words[w] = fixed_word(page, w);
	write_sequence(page);
}

static bool check_word(size_t page, size_t word, uint64_t expected)
{
	uint64_t got = page_at(page)[word];

	if (got == expected)
		return true;
	if (atomic_load(&errors) < 10)
		fprintf(stderr, "cnuma-load: page %zu word %zu: %#" PRIx64 " instead of %#" PRIx64 " (sequence %u)\n",
			page, word, got, expected, load.sequence[page]);
	return false;
}

/* All sequence numbers, and one slice of the fixed words; which one goes round with the passes. */
static bool check_page(size_t page, size_t slice)
{
	bool good = true;

	for (size_t s = 0; s < SLICES && good; s++)
		good = check_word(page, s * SLICE, sequence_word(page, s, load.sequence[page]));
	for (size_t w = slice * SLICE + 1; w < (slice + 1) * SLICE && good; w++)
		good = check_word(page, w, fixed_word(page, w));
	return good;
}

static void *writer(void *unused)
{
	(void)unused;
	for (size_t i = 0; i < load.pages; i++)
		fill_page(i);
	atomic_store(&ready, true);
	for (uint64_t pass = 0; !atomic_load(&quit); pass++) {
		for (size_t i = 0; i < load.pages && !atomic_load_explicit(&quit, memory_order_relaxed); i++) {
			if (!check_page(i, pass % SLICES)) {
				atomic_fetch_add(&errors, 1);
				fill_page(i);
			}
			load.sequence[i]++;
			write_sequence(i);
			atomic_fetch_add_explicit(&verified, 1, memory_order_relaxed);
		}
		atomic_fetch_add(&passes, 1);
	}
	return NULL;
}

/* ---- the witness ---- */

static void see_page(size_t page, uint64_t entry)
{
	uint64_t pfn = entry & ((1ull << 55) - 1);

	/* Not there, or in the middle of a move: it is seen next time. */
	if (!(entry >> 63) || (entry >> 62 & 1)) {
		absent++;
		return;
	}
	if (pfn == load.pfn[page])
		return;

	unsigned int node = node_of(&load.map, pfn * PAGE);

	if (load.pfn[page] && node != load.node[page]) {
		migrated++;
		migrated_from[load.node[page]]++;
		moved_pages += !load.moved[page];
		load.moved[page] = 1;
	} else if (load.pfn[page]) {
		moved_inside++;
	}
	load.pfn[page] = pfn;
	load.node[page] = node;
}

static void sample(int pagemap)
{
	static uint64_t entries[16384];
	off_t first = (uintptr_t)load.memory / PAGE;

	absent = 0;
	for (size_t at = 0; at < load.pages;) {
		size_t want = load.pages - at;

		if (want > sizeof(entries) / sizeof(*entries))
			want = sizeof(entries) / sizeof(*entries);

		ssize_t got = pread(pagemap, entries, want * sizeof(*entries), (first + at) * sizeof(*entries));

		if (got <= 0) {
			fprintf(stderr, "cnuma-load: /proc/self/pagemap: %m\n");
			exit(1);
		}
		for (size_t i = 0; i < got / sizeof(*entries); i++)
			see_page(at + i, entries[i]);
		at += got / sizeof(*entries);
	}
	samples++;
}

static void print_nodes(FILE *f, const char *name, const uint64_t *counts)
{
	const char *comma = "";

	fprintf(f, ",\"%s\":{", name);
	for (unsigned int i = 0; i < UNKNOWN; i++) {
		if (load.map.known[i] || counts[i]) {
			fprintf(f, "%s\"%u\":%" PRIu64, comma, i, counts[i]);
			comma = ",";
		}
	}
	if (counts[UNKNOWN])
		fprintf(f, "%s\"unknown\":%" PRIu64, comma, counts[UNKNOWN]);
	fputc('}', f);
}

static void report(FILE *f)
{
	uint64_t pages[MAX_NODES] = { 0 };

	for (size_t i = 0; i < load.pages; i++)
		if (load.pfn[i])
			pages[load.node[i]]++;
	fprintf(f, "{\"ready\":%s,\"kind\":\"%s\",\"total\":%zu", atomic_load(&ready) ? "true" : "false", load.kind,
		load.pages);
	print_nodes(f, "pages", pages);
	fprintf(f,
		",\"verified_pages\":%" PRIu64 ",\"verify_errors\":%" PRIu64 ",\"passes\":%" PRIu64 ",\"migrated\":%" PRIu64
		",\"moved_inside\":%" PRIu64 ",\"migrated_pages\":%" PRIu64 ",\"absent\":%" PRIu64 ",\"samples\":%" PRIu64,
		(uint64_t)atomic_load(&verified), (uint64_t)atomic_load(&errors), (uint64_t)atomic_load(&passes), migrated,
		moved_inside, moved_pages, absent, samples);
	print_nodes(f, "migrated_from", migrated_from);
	fputs("}\n", f);
}

static void reset(void)
{
	atomic_store(&verified, 0);
	atomic_store(&errors, 0);
	atomic_store(&passes, 0);
	migrated = moved_inside = moved_pages = samples = 0;
	memset(migrated_from, 0, sizeof(migrated_from));
	memset(load.moved, 0, load.pages);
}

/* `reset` answers with the report of what it ends, so that nothing is counted twice or lost between two steps. */
static void answer(int connection, int pagemap)
{
	char line[64] = "";
	FILE *f = fdopen(connection, "w");

	if (f && read(connection, line, sizeof(line) - 1) > 0) {
		line[strcspn(line, "\n")] = 0;
		if (!strcmp(line, "report") || !strcmp(line, "reset") || !strcmp(line, "quit")) {
			sample(pagemap);
			report(f);
			if (line[2] == 's')
				reset();
			if (line[0] == 'q')
				atomic_store(&quit, true);
		} else {
			fprintf(f, "{\"error\":\"unknown command '%s': report, reset or quit\"}\n", line);
		}
	}
	if (f)
		fclose(f);
}

static struct sockaddr_un socket_address(void)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };

	snprintf(a.sun_path, sizeof(a.sun_path), "%s", load.socket);
	return a;
}

static int client(const char *command)
{
	struct sockaddr_un a = socket_address();
	int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	char buffer[4096];
	ssize_t n, total = 0;

	if (s < 0 || connect(s, (struct sockaddr *)&a, sizeof(a))) {
		fprintf(stderr, "cnuma-load: %s: %m\n", load.socket);
		return 1;
	}
	dprintf(s, "%s\n", command);
	while ((n = read(s, buffer, sizeof(buffer))) > 0) {
		fwrite(buffer, 1, n, stdout);
		total += n;
	}
	return total ? 0 : 1;
}

static void *map_or_die(size_t length, int flags)
{
	void *p = mmap(NULL, length, PROT_READ | PROT_WRITE, flags, -1, 0);

	if (p == MAP_FAILED) {
		fprintf(stderr, "cnuma-load: mmap of %zu bytes: %m\n", length);
		exit(1);
	}
	return p;
}

static void map_working_set(void)
{
	size_t length = load.pages * PAGE, huge = 2ul << 20;
	int private = MAP_PRIVATE | MAP_ANONYMOUS;

	if (!strcmp(load.kind, "anon")) {
		load.memory = map_or_die(length, private);
		madvise(load.memory, length, MADV_NOHUGEPAGE);
	} else if (!strcmp(load.kind, "thp")) {
		uintptr_t p = (uintptr_t)map_or_die(length + huge, private);

		load.memory = (uint8_t *)((p + huge - 1) & -huge);
		madvise(load.memory, length, MADV_HUGEPAGE);
	} else if (!strcmp(load.kind, "shmem")) {
		load.memory = map_or_die(length, MAP_SHARED | MAP_ANONYMOUS);
	} else if (!strcmp(load.kind, "hugetlb")) {
		load.memory = map_or_die(length, private | MAP_HUGETLB);
	} else {
		fprintf(stderr, "cnuma-load: unknown kind '%s': anon, thp, shmem or hugetlb\n", load.kind);
		exit(2);
	}
	/* Its own tables are touched at once: they must not be part of what is measured later. */
	load.sequence = map_or_die(load.pages * sizeof(*load.sequence), private | MAP_POPULATE);
	load.pfn = map_or_die(load.pages * sizeof(*load.pfn), private | MAP_POPULATE);
	load.node = map_or_die(load.pages, private | MAP_POPULATE);
	load.moved = map_or_die(load.pages, private | MAP_POPULATE);
}

/* The parent stays until the working set is filled, so that a script simply goes on with the next line. */
static int go_to_background(void)
{
	int fds[2];
	char byte;

	if (pipe(fds))
		exit(1);
	if (fork()) {
		close(fds[1]);
		_exit(read(fds[0], &byte, 1) == 1 ? 0 : 1);
	}
	setsid();
	close(fds[0]);
	return fds[1];
}

static void serve(int notify)
{
	struct sockaddr_un a = socket_address();
	int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	pthread_t thread;

	unlink(a.sun_path);
	if (pagemap < 0 || s < 0 || bind(s, (struct sockaddr *)&a, sizeof(a)) || listen(s, 8) ||
	    pthread_create(&thread, NULL, writer, NULL)) {
		fprintf(stderr, "cnuma-load: cannot start: %m\n");
		exit(1);
	}
	while (!atomic_load(&quit)) {
		struct pollfd p = { .fd = s, .events = POLLIN };

		if (poll(&p, 1, load.period_ms) > 0)
			answer(accept4(s, NULL, NULL, SOCK_CLOEXEC), pagemap);
		else
			sample(pagemap);
		if (notify >= 0 && atomic_load(&ready)) {
			if (write(notify, "r", 1) != 1)
				exit(1);
			close(notify);
			notify = -1;
		}
	}
	pthread_join(thread, NULL);
	unlink(a.sun_path);
}

/* For the test of the parser: cnuma-load --map CNUM SRAT ADDRESS… */
static int print_map(char **argument)
{
	load_table(&load.map, argument[0], add_cnum);
	load_table(&load.map, argument[1], add_srat);
	for (argument += 2; *argument; argument++) {
		unsigned int node = node_of(&load.map, strtoull(*argument, NULL, 0));

		if (node == UNKNOWN)
			printf("%s unknown\n", *argument);
		else
			printf("%s %u\n", *argument, node);
	}
	return 0;
}

static int usage(void)
{
	fputs("usage: cnuma-load [--kind anon|thp|shmem|hugetlb] [--period MS] [--socket PATH] [--background] MIB\n"
	      "       cnuma-load [--socket PATH] report|reset|quit\n"
	      "       cnuma-load --map CNUM SRAT ADDRESS...\n",
	      stderr);
	return 2;
}

int main(int argc, char **argv)
{
	static const struct option options[] = { { "kind", required_argument, NULL, 'k' },
						 { "period", required_argument, NULL, 'p' },
						 { "socket", required_argument, NULL, 's' },
						 { "background", no_argument, NULL, 'b' },
						 { "map", no_argument, NULL, 'm' },
						 {} };
	bool background = false;
	int option, notify = -1;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (option == 'k')
			load.kind = optarg;
		else if (option == 'p')
			load.period_ms = strtoul(optarg, NULL, 10);
		else if (option == 's')
			load.socket = optarg;
		else if (option == 'b')
			background = true;
		else if (option == 'm')
			return argc - optind < 2 ? usage() : print_map(argv + optind);
		else
			return usage();
	}
	if (optind != argc - 1)
		return usage();
	if (!strchr("0123456789", *argv[optind]))
		return client(argv[optind]);
	load.pages = strtoul(argv[optind], NULL, 10) << 8;
	if (!load.pages)
		return usage();

	signal(SIGPIPE, SIG_IGN);
	if (background)
		notify = go_to_background();
	load_table(&load.map, "/sys/firmware/acpi/tables/CNUM", add_cnum);
	load_table(&load.map, "/sys/firmware/acpi/tables/SRAT", add_srat);
	map_working_set();
	serve(notify);
	return 0;
}
