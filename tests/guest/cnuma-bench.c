// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The guest's side of tests/bench/bench_kernel.py; every command prints one JSON object.
 *
 * Under QEMU's `-icount shift=0` the time stamp counter counts instructions, the guest's kernel and this program
 * together. What an operation costs is the slope between two sizes; start-up costs and the loop itself fall out of
 * it or out of the difference of two kernels.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

#include "channel-map.h"

#define PAGE 4096ul
#define HUGE (2ul << 20)

enum { POLICY_DEFAULT, POLICY_PREFERRED, POLICY_BIND, POLICY_INTERLEAVE, POLICY_WEIGHTED = 6 };

static void __attribute__((noreturn, format(printf, 1, 2))) die(const char *format, ...)
{
	va_list arguments;

	fprintf(stderr, "cnuma-bench: ");
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	exit(1);
}

static uint64_t number(const char *text)
{
	char *end;
	uint64_t value = strtoull(text, &end, 0);

	if (!*text || *end)
		die("'%s' is not a number", text);
	return value;
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void pause_ms(unsigned int ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000l };

	nanosleep(&t, NULL);
}

static void read_file(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t length = 0;
	ssize_t n = 0;

	if (fd < 0)
		die("%s: %m", path);
	while (length < size - 1 && (n = read(fd, text + length, size - 1 - length)) > 0)
		length += n;
	if (n < 0)
		die("%s: %m", path);
	close(fd);
	text[length] = 0;
}

static void write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		die("'%s' to %s: %m", text, path);
	close(fd);
}

static uint64_t vmstat(const char *name)
{
	static char text[1 << 15];
	size_t length = strlen(name);

	read_file("/proc/vmstat", text, sizeof(text));
	for (char *line = text; line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (!strncmp(line, name, length) && line[length] == ' ')
			return strtoull(line + length, NULL, 10);
	}
	die("/proc/vmstat has no %s", name);
}

static uint8_t *map(size_t length, int flags)
{
	/* Aligned to huge pages, so that no kind has odd pages at its ends. */
	uint8_t *p = mmap(NULL, length + HUGE, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, -1, 0), *aligned;

	if (p == MAP_FAILED)
		die("mmap of %zu bytes: %m", length);
	aligned = (uint8_t *)(((uintptr_t)p + HUGE - 1) & -HUGE);
	if (aligned > p)
		munmap(p, aligned - p);
	munmap(aligned + length, p + HUGE - aligned);
	return aligned;
}

static uint8_t *map_kind(const char *kind, size_t length)
{
	uint8_t *p;

	if (!strcmp(kind, "shmem"))
		return map(length, MAP_SHARED | MAP_ANONYMOUS);
	if (!strcmp(kind, "hugetlb")) {
		p = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
		if (p == MAP_FAILED)
			die("mmap of %zu bytes of hugetlb: %m", length);
		return p;
	}
	p = map(length, MAP_PRIVATE | MAP_ANONYMOUS);
	/* mthp: which orders there are is said in /sys/kernel/mm/transparent_hugepage/ */
	if (madvise(p, length, !strcmp(kind, "anon") ? MADV_NOHUGEPAGE : MADV_HUGEPAGE))
		die("madvise: %m");
	return p;
}

/* ---- what one operation costs ---- */

static void touch(uint8_t *p, size_t n, size_t step)
{
	for (size_t i = 0; i < n; i++)
		*(volatile uint8_t *)(p + i * step) = 1;
}

static uint64_t cost_touch(const char *kind, size_t n)
{
	size_t step = !strcmp(kind, "thp") ? HUGE : PAGE;
	uint8_t *p = map_kind(kind, n * step);
	uint64_t start = __rdtsc();

	touch(p, n, step);
	start = __rdtsc() - start;
	munmap(p, n * step);
	return start;
}

static uint64_t cost_munmap(size_t n)
{
	uint8_t *p = map_kind("anon", n * PAGE);
	uint64_t start;

	touch(p, n, PAGE);
	start = __rdtsc();
	munmap(p, n * PAGE);
	return __rdtsc() - start;
}

static uint64_t cost_cow(size_t n)
{
	uint8_t *p = map_kind("anon", n * PAGE);
	uint64_t insns = 0;
	int fds[2], status;
	pid_t child;

	touch(p, n, PAGE);
	if (pipe(fds) || (child = fork()) < 0)
		die("fork: %m");
	if (!child) {
		insns = __rdtsc();
		touch(p, n, PAGE);
		insns = __rdtsc() - insns;
		_exit(write(fds[1], &insns, sizeof(insns)) != sizeof(insns));
	}
	if (read(fds[0], &insns, sizeof(insns)) != sizeof(insns) || waitpid(child, &status, 0) != child || status)
		die("the child failed");
	close(fds[0]);
	close(fds[1]);
	munmap(p, n * PAGE);
	return insns;
}

/* Page cache of ext2 on a RAM disk: reading a hole takes pages, but no input or output. */
static uint64_t cost_file(size_t n)
{
	static const char *const path = "/run/bench/hole";
	static uint8_t buffer[PAGE];
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	uint64_t start;

	if (fd < 0 || ftruncate(fd, n * PAGE))
		die("%s: %m", path);
	start = __rdtsc();
	for (size_t i = 0; i < n; i++)
		if (read(fd, buffer, PAGE) != PAGE)
			die("%s: %m", path);
	start = __rdtsc() - start;
	if (ftruncate(fd, 0) || unlink(path))
		die("%s: %m", path);
	close(fd);
	return start;
}

static uint64_t cost_once(const char *kind, size_t n)
{
	if (!strcmp(kind, "cow"))
		return cost_cow(n);
	if (!strcmp(kind, "munmap"))
		return cost_munmap(n);
	if (!strcmp(kind, "file"))
		return cost_file(n);
	return cost_touch(kind, n);
}

static int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* cost KIND SMALL LARGE ROUNDS; the median round counts: once in a while the kernel has something else to do */
static void cost(char **argument)
{
	uint64_t small = number(argument[1]), large = number(argument[2]), rounds = number(argument[3]);
	double slopes[100], sorted[100];

	if (small >= large || !rounds || rounds > 100)
		die("sizes %" PRIu64 " and %" PRIu64 ", %" PRIu64 " rounds", small, large, rounds);
	cost_once(argument[0], large); /* the allocator's lists and the page tables of the kernel are as they stay */
	printf("{\"kind\":\"%s\",\"sizes\":[%" PRIu64 ",%" PRIu64 "],\"operations\":%" PRIu64 ",\"insns\":[", argument[0],
	       small, large, rounds * (large - small));
	for (uint64_t i = 0; i < rounds; i++) {
		uint64_t a = cost_once(argument[0], small), b = cost_once(argument[0], large);

		sorted[i] = slopes[i] = ((double)b - a) / (large - small);
		printf("%s[%" PRIu64 ",%" PRIu64 "]", i ? "," : "", a, b);
	}
	qsort(sorted, rounds, sizeof(*sorted), compare_doubles);
	printf("],\"slopes\":[");
	for (uint64_t i = 0; i < rounds; i++)
		printf("%s%.3f", i ? "," : "", slopes[i]);
	printf("],\"insns_per_operation\":%.3f}\n", (sorted[(rounds - 1) / 2] + sorted[rounds / 2]) / 2);
}

/* ---- where pages lie ---- */

static void set_policy(const char *text)
{
	static const struct {
		const char *name;
		int mode;
	} modes[] = { { "default", POLICY_DEFAULT },
		      { "bind", POLICY_BIND },
		      { "interleave", POLICY_INTERLEAVE },
		      { "weighted", POLICY_WEIGHTED } };
	const char *nodes = strchr(text, ':');
	unsigned long mask = 0;

	for (const char *c = nodes ? nodes + 1 : ""; *c; c++)
		mask |= *c >= '0' && *c <= '9' ? 1ul << (*c - '0') : 0;
	for (size_t i = 0; i < sizeof(modes) / sizeof(*modes); i++) {
		if (strncmp(text, modes[i].name, strcspn(text, ":")))
			continue;
		if (syscall(SYS_set_mempolicy, modes[i].mode, mask ? &mask : NULL, mask ? 64ul : 0))
			die("set_mempolicy %s: %m", text);
		return;
	}
	die("unknown policy '%s'", text);
}

static void count_nodes(const struct channel_map *channels, uint8_t *p, size_t pages, uint64_t *counts)
{
	static uint64_t entries[16384];
	int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);

	for (size_t at = 0; at < pages;) {
		size_t want = pages - at < 16384 ? pages - at : 16384;
		ssize_t got = pread(pagemap, entries, want * 8, ((uintptr_t)p / PAGE + at) * 8);

		if (got <= 0)
			die("/proc/self/pagemap: %m");
		for (size_t i = 0; i < got / 8ul; i++)
			if (entries[i] >> 63 && !(entries[i] >> 62 & 1))
				counts[node_of(channels, (entries[i] & ((1ull << 55) - 1)) * PAGE)]++;
		at += got / 8;
	}
	close(pagemap);
}

static void load_channels(struct channel_map *channels)
{
	load_table(channels, "/sys/firmware/acpi/tables/CNUM", add_cnum);
	load_table(channels, "/sys/firmware/acpi/tables/SRAT", add_srat);
}

/* spread KIND POLICY PAGES */
static void spread(char **argument)
{
	static struct channel_map channels;
	uint64_t pages = number(argument[2]), counts[MAX_NODES] = { 0 };
	const char *comma = "";
	uint8_t *p;

	load_channels(&channels);
	set_policy(argument[1]);
	p = map_kind(argument[0], pages * PAGE);
	touch(p, pages, PAGE);
	count_nodes(&channels, p, pages, counts);
	printf("{\"kind\":\"%s\",\"policy\":\"%s\",\"total\":%" PRIu64 ",\"pages\":{", argument[0], argument[1], pages);
	for (unsigned int i = 0; i < MAX_NODES; i++) {
		if (counts[i]) {
			printf("%s\"%d\":%" PRIu64, comma, i == UNKNOWN ? -1 : (int)i, counts[i]);
			comma = ",";
		}
	}
	puts("}}");
}

/* ---- how long it takes to move pages ---- */

/*
 * Touches pages again and again and looks at the time stamp counter before and after each touch: a touch costs a few
 * instructions, what costs more than SLOW is the kernel at work, in this process's fault or, between two touches, in a
 * tick or a thread. The sum of it is what the kernel has done meanwhile, without the time that this program was waiting.
 */
#define SLOW 400

static struct {
	uint64_t kernel, faults, samples;
	uint32_t *latency;
	size_t room;
} work;

static uint64_t minor_faults(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_minflt;
}

static void start_work(size_t room)
{
	work.room = room;
	if (!work.latency)
		work.latency = mmap(NULL, room * sizeof(uint32_t), PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (work.latency == MAP_FAILED)
		die("mmap: %m");
	mlock(work.latency, room * sizeof(uint32_t));
	work.kernel = work.faults = work.samples = 0;
}

/* One pass over the pages; returns the faults that were taken. */
static uint64_t pass(uint8_t *p, size_t pages)
{
	uint64_t minor = minor_faults(), first = minor, last = __rdtsc();

	for (size_t i = 0; i < pages; i++) {
		uint64_t before = __rdtsc(), after, now;

		*(volatile uint8_t *)(p + i * PAGE) += 1;
		after = __rdtsc();
		if (before - last > SLOW)
			work.kernel += before - last;
		last = after;
		if (after - before <= SLOW)
			continue;
		work.kernel += after - before;
		now = minor_faults();
		if (now != minor && work.samples < work.room)
			work.latency[work.samples++] = after - before;
		minor = now;
		last = __rdtsc();
	}
	work.faults += minor - first;
	return minor - first;
}

static int compare_latencies(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

static void print_work(void)
{
	uint64_t n = work.samples;

	qsort(work.latency, n, sizeof(uint32_t), compare_latencies);
	printf("\"kernel_insns\":%" PRIu64 ",\"faults\":%" PRIu64 ",\"samples\":%" PRIu64, work.kernel, work.faults, n);
	if (n)
		printf(",\"p50\":%u,\"p99\":%u,\"p999\":%u,\"max\":%u", work.latency[n / 2], work.latency[n * 99 / 100],
		       work.latency[n * 999 / 1000], work.latency[n - 1]);
}

static bool file_is(const char *path, const char *text)
{
	char content[256];

	read_file(path, content, sizeof(content));
	content[strcspn(content, "\n")] = 0;
	return !strcmp(content, text);
}

static void wait_file(const char *path, const char *text, double timeout)
{
	double end = seconds() + timeout;

	while (!file_is(path, text)) {
		if (seconds() > end)
			die("%s is not '%s' after %.0f s", path, text, timeout);
		pause_ms(10);
	}
}

#define CNUMA "/sys/kernel/mm/cnuma/"

static const char *const state_path = CNUMA "redistribute/state";

static void *spinner(void *stop)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(1, &set);
	sched_setaffinity(0, sizeof(set), &set);
	while (!*(volatile bool *)stop)
		;
	return NULL;
}

static uint64_t moved_by_faults(void)
{
	char text[32];

	read_file(CNUMA "redistribute/fault_moved", text, sizeof(text));
	return strtoull(text, NULL, 10);
}

/*
 * redistribute NODE KIND PAGES FAULTS THREADS: take a channel back by hand and give it again; the pages follow on being
 * touched. Again until there were so many faults. With two threads the other one keeps a second CPU busy.
 */
static void redistribute(char **argument)
{
	static struct channel_map channels;
	uint64_t node = number(argument[0]), pages = number(argument[2]), least = number(argument[3]), cycles = 0;
	uint64_t hint_faults = 0, migrated = 0, by_faults = 0, failed = 0, before[MAX_NODES] = { 0 }, after[MAX_NODES] = { 0 };
	uint8_t *p = map_kind(argument[1], pages * PAGE);
	char draining[64], drained[64];
	double took = 0, end;
	bool stop = false;
	pthread_t thread;

	load_channels(&channels);
	snprintf(draining, sizeof(draining), CNUMA "cnode%u/draining", (unsigned int)node);
	snprintf(drained, sizeof(drained), CNUMA "cnode%u/drain_state", (unsigned int)node);
	touch(p, pages, PAGE);
	start_work(1 << 20);
	if (number(argument[4]) > 1) {
		cpu_set_t set;

		if (pthread_create(&thread, NULL, spinner, &stop))
			die("pthread_create failed");
		CPU_ZERO(&set);
		CPU_SET(0, &set);
		sched_setaffinity(0, sizeof(set), &set);
	}
	for (; work.samples < least; cycles++) {
		unsigned int quiet = 0;
		uint64_t last = 0;
		bool seen = false;

		if (cycles >= 200)
			die("only %" PRIu64 " faults in %" PRIu64 " cycles", work.samples, cycles);
		write_file(draining, "1");
		wait_file(drained, "empty", 120);
		wait_file(state_path, "idle", 300);
		count_nodes(&channels, p, pages, before);
		hint_faults -= vmstat("cnuma_hint_faults");
		migrated -= vmstat("cnuma_migrated");
		by_faults -= moved_by_faults();
		failed -= vmstat("cnuma_migrate_failed");
		took -= seconds();
		end = seconds() + 120;
		write_file(draining, "0");
		/* Until faults and what works for them have ended: nothing happens in ten passes. */
		while (quiet < 10) {
			uint64_t faults = pass(p, pages), moved = vmstat("cnuma_migrated");

			seen |= faults > 0;
			if (seen && !faults && moved == last && !file_is(state_path, "marking") &&
			    !file_is(state_path, "settling") && !file_is(state_path, "pending"))
				quiet++;
			else
				quiet = 0;
			last = moved;
			if (seconds() > end)
				die("cycle %" PRIu64 ": no end of faults after 120 s (%" PRIu64 " in all)", cycles, work.faults);
		}
		took += seconds();
		hint_faults += vmstat("cnuma_hint_faults");
		migrated += vmstat("cnuma_migrated");
		by_faults += moved_by_faults();
		failed += vmstat("cnuma_migrate_failed");
		count_nodes(&channels, p, pages, after);
	}
	stop = true;
	printf("{\"kind\":\"%s\",\"total\":%" PRIu64 ",\"cycles\":%" PRIu64 ",\"came\":%" PRIu64 ",\"hint_faults\":%" PRIu64
	       ",\"migrated\":%" PRIu64 ",\"by_faults\":%" PRIu64 ",\"failed\":%" PRIu64 ",\"seconds\":%.6f,",
	       argument[1], pages, cycles, after[node] - before[node], hint_faults, migrated, by_faults, failed, took);
	print_work();
	puts("}");
}

/* balance NODE PAGES: NUMA balancing brings the pages from NODE to where this process runs */
static void balance(char **argument)
{
	static struct channel_map channels;
	uint64_t node = number(argument[0]), pages = number(argument[1]), migrated, hint_faults;
	uint64_t before[MAX_NODES] = { 0 }, after[MAX_NODES] = { 0 };
	uint8_t *p = map_kind("anon", pages * PAGE);
	char policy[32];
	double end, took;

	load_channels(&channels);
	snprintf(policy, sizeof(policy), "bind:%u", (unsigned int)node);
	start_work(1 << 20);
	set_policy(policy);
	touch(p, pages, PAGE);
	set_policy("default");
	count_nodes(&channels, p, pages, before);
	migrated = vmstat("numa_pages_migrated");
	hint_faults = vmstat("numa_hint_faults");
	took = seconds();
	end = took + 60;
	while (vmstat("numa_pages_migrated") - migrated < pages * 95 / 100) {
		pass(p, pages);
		if (seconds() > end)
			break;
	}
	took = seconds() - took;
	migrated = vmstat("numa_pages_migrated") - migrated;
	hint_faults = vmstat("numa_hint_faults") - hint_faults;
	count_nodes(&channels, p, pages, after);
	printf("{\"total\":%" PRIu64 ",\"left\":%" PRIu64 ",\"hint_faults\":%" PRIu64 ",\"migrated\":%" PRIu64
	       ",\"seconds\":%.6f,",
	       pages, after[node], hint_faults, migrated, took);
	print_work();
	puts("}");
}

/* move_pages NODE TARGET PAGES BATCH: one system call for each BATCH pages */
static void move(char **argument)
{
	uint64_t pages = number(argument[2]), batch = number(argument[3]), insns, moved = 0;
	void **address = calloc(pages, sizeof(*address));
	int *nodes = calloc(pages, sizeof(*nodes)), *status = calloc(pages, sizeof(*status));
	uint8_t *p = map_kind("anon", pages * PAGE);
	char policy[32];

	snprintf(policy, sizeof(policy), "bind:%u", (unsigned int)number(argument[0]));
	set_policy(policy);
	touch(p, pages, PAGE);
	set_policy("default");
	for (uint64_t i = 0; i < pages; i++) {
		address[i] = p + i * PAGE;
		nodes[i] = number(argument[1]);
		status[i] = -1;
	}
	insns = __rdtsc();
	for (uint64_t i = 0; i < pages; i += batch)
		if (syscall(SYS_move_pages, 0, pages - i < batch ? pages - i : batch, address + i, nodes + i, status + i, 2) < 0)
			die("move_pages: %m");
	insns = __rdtsc() - insns;
	for (uint64_t i = 0; i < pages; i++)
		moved += status[i] == nodes[i];
	printf("{\"total\":%" PRIu64 ",\"batch\":%" PRIu64 ",\"moved\":%" PRIu64 ",\"kernel_insns\":%" PRIu64 "}\n", pages,
	       batch, moved, insns);
}

/* The parent returns when the child has filled its memory, so that a script simply goes on with the next line. */
static void go_to_background(void (*fill)(void *), void *argument)
{
	char byte = 0;
	int fds[2];

	if (pipe(fds))
		die("pipe: %m");
	if (fork()) {
		close(fds[1]);
		_exit(read(fds[0], &byte, 1) == 1 ? 0 : 1);
	}
	setsid();
	close(fds[0]);
	fill(argument);
	if (write(fds[1], &byte, 1) != 1)
		exit(1);
	close(fds[1]);
	for (;;)
		pause();
}

static void fill_memory(void *argument)
{
	char **a = argument;
	size_t pages = number(a[2]), every = number(a[3]), piece = 16;
	uint8_t *p = map_kind(a[0], pages * PAGE);

	set_policy(a[1]);
	touch(p, pages, PAGE);
	for (size_t i = 0; every && i + piece <= pages; i += every * piece)
		if (madvise(p + i * PAGE, piece * PAGE, MADV_DONTNEED))
			die("MADV_DONTNEED: %m");
}

/*
 * hold KIND POLICY PAGES EVERY: goes to the background and keeps them, but for a 64 KiB piece of each EVERY: what is in
 * use then lies scattered, as it does on a machine that has run for a while
 */
static void hold(char **argument)
{
	go_to_background(fill_memory, argument);
}

static uint64_t mem_total_kb(void)
{
	char text[256];

	read_file("/proc/meminfo", text, sizeof(text));
	return strtoull(text + strcspn(text, "0123456789"), NULL, 10);
}

/* How often the configuration of virtio devices has changed */
static uint64_t config_interrupts(void)
{
	static char text[1 << 15];
	uint64_t sum = 0;

	read_file("/proc/interrupts", text, sizeof(text));
	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
		if (strstr(line, "virtio") && strstr(line, "config"))
			sum += strtoull(strchr(line, ':') + 1, NULL, 10);
	return sum;
}

/*
 * watch MIB TIMEOUT: from the next request to a virtio device (or ACPI) until so much memory is gone. This process only
 * spins, at the lowest priority; what it does not get has the kernel, and it counts that.
 */
static void watch(char **argument)
{
	uint64_t total = mem_total_kb(), gone = number(argument[0]) * 1024, kernel = 0, since = 0, polls = 0;
	uint64_t before = config_interrupts(), migrated = vmstat("pgmigrate_success"), failed = vmstat("pgmigrate_fail");
	double start = 0, end = seconds() + number(argument[1]);
	bool requested = false;

	setpriority(PRIO_PROCESS, 0, 19);
	puts("{\"ready\":true}");
	fflush(stdout);
	for (;;) {
		uint64_t last = __rdtsc(), now, next = last + 1000000;
		double begin = seconds();

		for (last = __rdtsc(); last < next; last = now) {
			now = __rdtsc();
			if (now - last > SLOW)
				since += now - last;
		}
		polls++;
		if (!requested && (config_interrupts() != before || mem_total_kb() < total)) {
			requested = true;
			start = begin;
		}
		if (requested)
			kernel += since;
		since = 0;
		if (mem_total_kb() + gone <= total + gone / 64)
			break;
		if (seconds() > end)
			die("%" PRIu64 " of %" PRIu64 " KiB are gone after %s s", total - mem_total_kb(), gone, argument[1]);
	}
	printf("{\"kernel_insns\":%" PRIu64 ",\"seconds\":%.6f,\"migrated\":%" PRIu64 ",\"failed\":%" PRIu64
	       ",\"polls\":%" PRIu64 "}\n",
	       kernel, seconds() - start, vmstat("pgmigrate_success") - migrated, vmstat("pgmigrate_fail") - failed, polls);
}

/* retry NODE PAGES: drain a channel of which one page is busy in a pipe, then let go of it */
static void retry(char **argument)
{
	static struct channel_map channels;
	uint64_t node = number(argument[0]), pages = number(argument[1]), at;
	uint8_t *p = map_kind("anon", pages * PAGE);
	char path[64], state[64];
	double start, end;
	int fds[2];

	load_channels(&channels);
	touch(p, pages, PAGE);
	for (at = 0; at < pages; at++) {
		uint64_t counts[MAX_NODES] = { 0 };

		count_nodes(&channels, p + at * PAGE, 1, counts);
		if (counts[node])
			break;
	}
	if (at == pages)
		die("none of the pages lies on node %" PRIu64, node);

	struct iovec vector = { p + at * PAGE, PAGE };

	if (pipe(fds) || vmsplice(fds[1], &vector, 1, 0) != PAGE)
		die("vmsplice: %m");
	snprintf(path, sizeof(path), CNUMA "cnode%u/draining", (unsigned int)node);
	snprintf(state, sizeof(state), CNUMA "cnode%u/drain_state", (unsigned int)node);
	write_file(path, "1");
	wait_file(state, "partial", 120);
	pause_ms(5000);
	if (!file_is(state, "partial"))
		die("the drain did not wait for the busy page");
	start = seconds();
	end = start + 60;
	close(fds[0]);
	close(fds[1]);
	while (!file_is(state, "empty")) {
		if (seconds() > end)
			die("not empty 60 s after the page was let go");
		pause_ms(5);
	}
	end = seconds();
	write_file(path, "0");
	printf("{\"seconds\":%.6f}\n", end - start);
}

static const struct command {
	const char *name;
	int arguments;
	void (*run)(char **argument);
	const char *usage;
} commands[] = {
	{ "cost", 4, cost, "anon|thp|mthp|shmem|file|cow|munmap SMALL LARGE ROUNDS" },
	{ "spread", 3, spread, "anon|thp|mthp|shmem|hugetlb default|bind:NODES|interleave:NODES|weighted:NODES PAGES" },
	{ "redistribute", 5, redistribute, "NODE KIND PAGES FAULTS THREADS" },
	{ "balance", 2, balance, "NODE PAGES" },
	{ "move", 4, move, "NODE TARGET PAGES BATCH" },
	{ "hold", 4, hold, "KIND POLICY PAGES EVERY" },
	{ "watch", 2, watch, "MIB TIMEOUT" },
	{ "retry", 2, retry, "NODE PAGES" },
};

int main(int argc, char **argv)
{
	for (size_t i = 0; i < sizeof(commands) / sizeof(*commands); i++) {
		if (argc == commands[i].arguments + 2 && !strcmp(argv[1], commands[i].name)) {
			commands[i].run(argv + 2);
			return 0;
		}
	}
	for (size_t i = 0; i < sizeof(commands) / sizeof(*commands); i++)
		fprintf(stderr, "usage: cnuma-bench %s %s\n", commands[i].name, commands[i].usage);
	return 2;
}
