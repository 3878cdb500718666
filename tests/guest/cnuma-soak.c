// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * One cycle of the soak: memory of several kinds, all that a process may do to it in an order that the seed gives, and
 * the contents verified after each step, while the host changes the channels below it.
 *
 * cnuma-soak SEED MIB: prints one JSON object; exits with 1 when a word was not what was written.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define WORDS (PAGE / 8)
#define HUGE (2ul << 20)
#define CGROUP "/sys/fs/cgroup"

enum { POLICY_DEFAULT, POLICY_PREFERRED, POLICY_BIND, POLICY_INTERLEAVE };

enum kind { ANON, THP, SHMEM, SAME, KINDS };

/* version 0 of a page: all zero */
struct region {
	enum kind kind;
	uint8_t *memory;
	size_t pages;
	uint32_t *version;
};

static struct region regions[KINDS];
static uint64_t seed, state, verified, skipped;
static char group[64];

static void __attribute__((noreturn, format(printf, 1, 2))) die(const char *format, ...)
{
	va_list arguments;

	fprintf(stderr, "cnuma-soak: seed %#" PRIx64 ": ", seed);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	exit(1);
}

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static uint64_t dice(uint64_t sides)
{
	return mix(state += 0x9e3779b97f4a7c15ull) % sides;
}

/* ---- contents ---- */

static uint64_t word(const struct region *r, size_t page, size_t index)
{
	if (!r->version[page])
		return 0;
	/* Pages of the same version are the same: for KSM */
	if (r->kind == SAME)
		return mix(seed ^ (uint64_t)r->version[page] << 32 ^ index);
	return mix(seed ^ (uint64_t)r->kind << 60 ^ (uint64_t)r->version[page] << 40 ^ (page * WORDS + index));
}

static void write_page(struct region *r, size_t page)
{
	uint64_t *words = (uint64_t *)(r->memory + page * PAGE);

	r->version[page] = r->kind == SAME ? 1 + dice(3) : r->version[page] + 1;
	for (size_t i = 0; i < WORDS; i++)
		words[i] = word(r, page, i);
}

static void verify_page(const struct region *r, size_t page, const char *when)
{
	const uint64_t *words = (const uint64_t *)(r->memory + page * PAGE);

	for (size_t i = 0; i < WORDS; i++)
		if (words[i] != word(r, page, i))
			die("after %s: kind %d page %zu (%p) version %u word %zu is %#" PRIx64 " instead of %#" PRIx64, when,
			    r->kind, page, (void *)words, r->version[page], i, words[i], word(r, page, i));
	verified++;
}

static void verify(const char *when)
{
	for (int k = 0; k < KINDS; k++)
		for (size_t i = 0; i < regions[k].pages; i++)
			verify_page(&regions[k], i, when);
}

/* Some pages get new contents. */
static void write_some(void)
{
	for (int i = 0; i < 200; i++) {
		struct region *r = &regions[dice(KINDS)];

		write_page(r, dice(r->pages));
	}
}

/* ---- files and groups ---- */

static bool try_write(const char *path, const char *format, ...)
{
	char text[64];
	va_list arguments;
	int fd = open(path, O_WRONLY | O_CLOEXEC), length;
	bool good;

	va_start(arguments, format);
	length = vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	if (fd < 0)
		return false;
	good = write(fd, text, length) == length;
	close(fd);
	return good;
}

static void group_write(const char *file, const char *value)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", group, file);
	if (!try_write(path, "%s", value) && errno != EAGAIN && errno != EINTR)
		die("'%s' to %s: %m", value, path);
}

static void enter_group(void)
{
	snprintf(group, sizeof(group), CGROUP "/soak-%d", getpid());
	if (!try_write(CGROUP "/cgroup.subtree_control", "+memory +cpuset") || mkdir(group, 0755))
		die("%s: %m", group);
	group_write("cgroup.procs", "0");
}

static void leave_group(void)
{
	try_write(CGROUP "/cgroup.procs", "0");
	if (rmdir(group))
		die("rmdir %s: %m", group);
}

/* ---- what is done to the memory ---- */

static struct region *any(void)
{
	return &regions[dice(KINDS)];
}

/* A part of a region: first page and number */
static size_t part(const struct region *r, size_t *n)
{
	size_t first = dice(r->pages);

	*n = 1 + dice(r->pages - first);
	return first;
}

static void wait_for(pid_t child, const char *what)
{
	int status;

	if (child < 0 || waitpid(child, &status, 0) != child)
		die("%s: %m", what);
	if (status)
		die("%s: the child ended with %#x", what, status);
}

static void do_fork(void)
{
	pid_t child = fork();

	if (!child) {
		verify("fork, in the child");
		for (int k = 0; k < KINDS; k++)
			if (k != SHMEM)
				for (size_t i = dice(2); i < regions[k].pages; i += 2)
					write_page(&regions[k], i);
		/* What is shared with the parent is the parent's to write. */
		verify("writing in the child");
		_exit(0);
	}
	/* Both write at the same time. */
	for (int i = 0; i < 300; i++) {
		struct region *r = any();

		if (r->kind != SHMEM)
			write_page(r, dice(r->pages));
	}
	wait_for(child, "fork");
}

static void do_exec(void)
{
	char text[32];
	pid_t child;

	snprintf(text, sizeof(text), "%" PRIu64, seed ^ 1);
	child = fork();
	if (!child) {
		execl("/proc/self/exe", "cnuma-soak", "--child", text, "4", NULL);
		_exit(1);
	}
	write_some();
	wait_for(child, "exec");
}

static uint8_t *reserve(size_t length)
{
	uint8_t *p = mmap(NULL, length + HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0), *aligned;

	if (p == MAP_FAILED)
		die("mmap: %m");
	aligned = (uint8_t *)(((uintptr_t)p + HUGE - 1) & -HUGE);
	if (aligned > p)
		munmap(p, aligned - p);
	munmap(aligned + length, p + HUGE - aligned);
	return aligned;
}

static void do_mremap(void)
{
	struct region *r = any();
	/* Sometimes off by pages, so that huge pages must be split. */
	size_t length = r->pages * PAGE, shift = dice(2) * PAGE * dice(512);
	uint8_t *target = reserve(length + HUGE) + shift;

	if (mremap(r->memory, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, target) != target) {
		/* Policies of parts have made several mappings of it. */
		if (errno != EFAULT)
			die("mremap: %m");
		munmap(target - shift, length + HUGE);
		skipped++;
		return;
	}
	munmap(target - shift, shift);
	munmap(target + length, HUGE - shift);
	r->memory = target;
}

static void do_split(void)
{
	struct region *r = &regions[THP];
	size_t n, first = part(r, &n);

	switch (dice(4)) {
	case 0:
		try_write("/sys/kernel/debug/split_huge_pages", "%d,%#lx,%#lx,%d", getpid(), (unsigned long)r->memory,
			  (unsigned long)(r->memory + r->pages * PAGE), (int)dice(3) * 2);
		break;
	case 1: /* a hole in each of some huge pages */
		for (size_t i = first; i < r->pages; i += 512) {
			if (madvise(r->memory + i * PAGE, PAGE, MADV_DONTNEED))
				die("MADV_DONTNEED: %m");
			r->version[i] = 0;
		}
		break;
	case 2:
		if (mprotect(r->memory + first * PAGE, n * PAGE, PROT_READ))
			die("mprotect: %m");
		verify("mprotect");
		if (mprotect(r->memory, r->pages * PAGE, PROT_READ | PROT_WRITE))
			die("mprotect: %m");
		break;
	case 3: /* and together again */
		if (madvise(r->memory, r->pages * PAGE, 25 /* MADV_COLLAPSE */))
			skipped++;
		break;
	}
}

static void do_swap(void)
{
	struct region *r = any();
	size_t n, first = part(r, &n);

	if (madvise(r->memory + first * PAGE, n * PAGE, 21 /* MADV_PAGEOUT */))
		skipped++;
}

static void do_memcg(void)
{
	char text[32];
	size_t bytes = 0;

	for (int k = 0; k < KINDS; k++)
		bytes += regions[k].pages * PAGE;
	snprintf(text, sizeof(text), "%zu", bytes * (2 + dice(2)) / 4);
	group_write("memory.high", text);
	write_some();
	verify("memory.high");
	group_write("memory.high", "max");
	snprintf(text, sizeof(text), "%zu", bytes / (4 + dice(8)));
	group_write("memory.reclaim", text);
}

static void do_ksm(void)
{
	struct region *r = &regions[SAME];
	size_t n, first = part(r, &n);

	if (madvise(r->memory, r->pages * PAGE, MADV_MERGEABLE))
		die("MADV_MERGEABLE: %m");
	usleep(200000);
	verify("merging");
	for (size_t i = first; i < first + n; i += 3)
		write_page(r, i);
	if (dice(2) && madvise(r->memory, r->pages * PAGE, MADV_UNMERGEABLE))
		die("MADV_UNMERGEABLE: %m");
}

static void do_cpuset(void)
{
	static const char *const sets[] = { "0", "0-1", "1", "" };

	for (int i = 0; i < 2; i++) {
		group_write("cpuset.mems", sets[dice(4)]);
		write_some();
		verify("cpuset.mems");
	}
	group_write("cpuset.mems", "");
}

static void do_policy(void)
{
	struct region *r = any();
	size_t n, first = part(r, &n);
	unsigned long mask = 1 + dice(3), every = 3;

	switch (dice(3)) {
	case 0:
		if (syscall(SYS_mbind, r->memory + first * PAGE, n * PAGE, dice(2) ? POLICY_BIND : POLICY_INTERLEAVE, &mask, 64ul,
			    2ul /* MPOL_MF_MOVE */))
			skipped++;
		break;
	case 1:
		if (syscall(SYS_migrate_pages, 0, 64ul, &every, &mask) < 0)
			skipped++;
		break;
	case 2:
		if (syscall(SYS_set_mempolicy, POLICY_INTERLEAVE, &every, 64ul))
			skipped++;
		write_some();
		if (syscall(SYS_set_mempolicy, POLICY_DEFAULT, NULL, 0ul))
			die("set_mempolicy: %m");
		break;
	}
}

/* A channel is taken back by hand, and that is changed again. */
static void do_drain(void)
{
	char path[64];

	snprintf(path, sizeof(path), "/sys/kernel/mm/cnuma/cnode%d/draining", (int)(2 + dice(4)));
	if (!try_write(path, "1"))
		skipped++;
	usleep(dice(300000));
	write_some();
	verify("draining by hand");
	if (!try_write(path, "0"))
		skipped++;
}

static void do_remap(void)
{
	struct region *r = any();
	size_t n, first = part(r, &n);

	if (r->kind == SHMEM) {
		for (size_t i = 0; i < n; i += 7)
			write_page(r, first + i);
		return;
	}
	if (madvise(r->memory + first * PAGE, n * PAGE, MADV_DONTNEED))
		die("MADV_DONTNEED: %m");
	for (size_t i = first; i < first + n; i++) {
		r->version[i] = 0;
		if (dice(4))
			write_page(r, i);
	}
}

static const struct step {
	const char *name;
	void (*run)(void);
} steps[] = {
	{ "fork", do_fork },   { "exec", do_exec }, { "mremap", do_mremap }, { "split", do_split },   { "swap", do_swap },
	{ "memcg", do_memcg }, { "ksm", do_ksm },   { "cpuset", do_cpuset }, { "policy", do_policy }, { "drain", do_drain },
	{ "remap", do_remap },
};
#define STEPS (sizeof(steps) / sizeof(*steps))

static void make_regions(size_t mib)
{
	for (int k = 0; k < KINDS; k++) {
		struct region *r = &regions[k];
		size_t length = mib / KINDS << 20;

		r->kind = k;
		r->pages = length / PAGE;
		r->memory = reserve(length);
		if (mmap(r->memory, length, PROT_READ | PROT_WRITE,
			 MAP_FIXED | MAP_ANONYMOUS | (k == SHMEM ? MAP_SHARED : MAP_PRIVATE), -1, 0) != r->memory)
			die("mmap: %m");
		madvise(r->memory, length, k == THP ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
		r->version = calloc(r->pages, sizeof(*r->version));
		for (size_t i = 0; i < r->pages; i++)
			write_page(r, i);
	}
	verify("filling");
}

int main(int argc, char **argv)
{
	bool child = argc == 4 && !strcmp(argv[1], "--child");
	uint8_t order[STEPS];

	if (argc != 3 && !child) {
		fputs("usage: cnuma-soak SEED MIB\n", stderr);
		return 2;
	}
	seed = state = strtoull(argv[1 + child], NULL, 0);
	if (child) {
		make_regions(strtoul(argv[3], NULL, 0));
		write_some();
		verify("exec");
		return 0;
	}
	enter_group();
	make_regions(strtoul(argv[2], NULL, 0));
	/* Each once, in any order. */
	for (size_t i = 0; i < STEPS; i++) {
		size_t j = dice(i + 1);

		order[i] = order[j];
		order[j] = i;
	}
	for (size_t i = 0; i < STEPS; i++) {
		steps[order[i]].run();
		verify(steps[order[i]].name);
		write_some();
	}
	verify("all");
	leave_group();
	printf("{\"seed\":\"%#" PRIx64 "\",\"verified\":%" PRIu64 ",\"skipped\":%" PRIu64 ",\"steps\":\"", seed, verified, skipped);
	for (size_t i = 0; i < STEPS; i++)
		printf("%s%s", i ? " " : "", steps[order[i]].name);
	puts("\"}");
	return 0;
}
