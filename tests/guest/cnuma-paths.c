// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Makes the kernel allocate a page for one that exists: copy-on-write, collapse to a huge page, userfaultfd copies,
 * breaking up what KSM has merged, soft-offlining. Prints one JSON object with the pages of each kind, and keeps them
 * mapped until it is killed, so that the test can ask whether they lie where they belong.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#define HUGE (2ul << 20)
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_SOFT_OFFLINE
#define MADV_SOFT_OFFLINE 101
#endif

static void die(const char *what)
{
	fprintf(stderr, "cnuma-paths: %s: %s\n", what, strerror(errno));
	exit(1);
}

static uint8_t *map(size_t length, int flags)
{
	uint8_t *p = mmap(NULL, length + HUGE, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		die("mmap");
	p = (uint8_t *)(((uintptr_t)p + HUGE - 1) & -HUGE);
	madvise(p, length, MADV_NOHUGEPAGE);
	return p;
}

static void write_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);

	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		die(path);
	close(fd);
}

static long read_number(const char *path)
{
	long value = -1;
	FILE *f = fopen(path, "r");

	if (!f || fscanf(f, "%ld", &value) != 1)
		die(path);
	fclose(f);
	return value;
}

/* The child keeps the old pages for as long as the parent lives; the parent's are copies. */
static long cow(size_t length)
{
	uint8_t *p = map(length, MAP_PRIVATE);

	memset(p, 1, length);
	fflush(stdout);
	if (!fork()) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	for (size_t i = 0; i < length; i += PAGE)
		p[i] = 2;
	return length / PAGE;
}

static long collapse(size_t length)
{
	uint8_t *p = map(length, MAP_PRIVATE);
	long huge = 0;

	memset(p, 3, length);
	madvise(p, length, MADV_HUGEPAGE);
	for (size_t i = 0; i < length; i += HUGE)
		huge += !madvise(p + i, HUGE, MADV_COLLAPSE);
	return huge * (HUGE / PAGE);
}

static struct {
	int fd;
	long copied;
} uffd;

static void *serve_faults(void *source)
{
	struct uffd_msg msg;

	while (read(uffd.fd, &msg, sizeof(msg)) == sizeof(msg)) {
		struct uffdio_copy copy = { .dst = msg.arg.pagefault.address & -PAGE, .src = (uintptr_t)source, .len = PAGE };

		if (!ioctl(uffd.fd, UFFDIO_COPY, &copy))
			uffd.copied++;
	}
	return NULL;
}

static long copies(size_t length)
{
	static uint8_t source[PAGE] __attribute__((aligned(4096))) = { 4 };
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register range = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	uint8_t *p = map(length, MAP_PRIVATE);
	pthread_t thread;

	uffd.fd = syscall(SYS_userfaultfd, O_CLOEXEC);
	range.range.start = (uintptr_t)p;
	range.range.len = length;
	if (uffd.fd < 0 || ioctl(uffd.fd, UFFDIO_API, &api) || ioctl(uffd.fd, UFFDIO_REGISTER, &range) ||
	    pthread_create(&thread, NULL, serve_faults, source))
		die("userfaultfd");
	for (size_t i = 0; i < length; i += PAGE)
		if (p[i] != 4)
			die("a page that userfaultfd has copied");
	return uffd.copied;
}

/* Equal pages are merged, then each of them is written to. */
static long unmerge(size_t length)
{
	uint8_t *p = map(length, MAP_PRIVATE);
	time_t end = time(NULL) + 60;
	long merged;

	for (size_t i = 0; i < length; i += PAGE)
		memset(p + i, 5 + (i / PAGE) % 7, PAGE);
	write_text("/sys/kernel/mm/ksm/pages_to_scan", "20000");
	write_text("/sys/kernel/mm/ksm/sleep_millisecs", "20");
	if (madvise(p, length, MADV_MERGEABLE))
		die("MADV_MERGEABLE");
	write_text("/sys/kernel/mm/ksm/run", "1");
	while ((merged = read_number("/sys/kernel/mm/ksm/pages_sharing")) < (long)(length / PAGE / 2) && time(NULL) < end)
		usleep(100000);
	write_text("/sys/kernel/mm/ksm/run", "0");
	for (size_t i = 0; i < length; i += PAGE)
		p[i] = i / PAGE;
	return merged;
}

static long soft_offline(long pages)
{
	uint8_t *p = map(pages * PAGE, MAP_PRIVATE);
	long done = 0;

	memset(p, 6, pages * PAGE);
	for (long i = 0; i < pages; i++)
		done += !madvise(p + i * PAGE, PAGE, MADV_SOFT_OFFLINE);
	return done;
}

int main(void)
{
	int fds[2];
	char byte;

	/* The caller goes on when all is there. */
	if (pipe(fds))
		die("pipe");
	if (fork()) {
		close(fds[1]);
		return read(fds[0], &byte, 1) == 1 ? 0 : 1;
	}
	setsid();
	printf("{\"cow\": %ld", cow(16 << 20));
	printf(", \"collapse\": %ld", collapse(32 << 20));
	printf(", \"userfaultfd\": %ld", copies(8 << 20));
	printf(", \"ksm\": %ld", unmerge(8 << 20));
	printf(", \"soft_offline\": %ld}\n", soft_offline(32));
	fflush(stdout);
	if (write(fds[1], "r", 1) != 1)
		die("pipe");
	for (;;)
		pause();
}
