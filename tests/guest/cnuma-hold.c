// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Hold memory in a way that is hard to move, until SIGTERM: then verify it, and say so by the exit code.
 *
 *   cnuma-hold pipe N    N anonymous pages (at most 256) that a pipe refers to (vmsplice): nobody can migrate them
 *   cnuma-hold fork MIB  anonymous memory that a child shares copy-on-write: no fault moves it
 *
 * Prints "ready" and goes to the background when the memory is there.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul

static void fail(const char *what)
{
	fprintf(stderr, "cnuma-hold: %s: %m\n", what);
	exit(1);
}

static uint64_t word(size_t page)
{
	return (page + 1) * 0x9e3779b97f4a7c15ull;
}

static uint64_t *fill(size_t pages)
{
	uint64_t *p = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		fail("mmap");
	madvise(p, pages * PAGE, MADV_NOHUGEPAGE);
	for (size_t i = 0; i < pages; i++)
		p[i * PAGE / sizeof(*p)] = word(i);
	return p;
}

static bool verify(const uint64_t *p, size_t pages)
{
	for (size_t i = 0; i < pages; i++) {
		if (p[i * PAGE / sizeof(*p)] != word(i)) {
			fprintf(stderr, "cnuma-hold: page %zu has changed\n", i);
			return false;
		}
	}
	return true;
}

static void to_pipe(uint64_t *p, size_t pages)
{
	struct iovec v = { p, pages * PAGE };
	int fds[2];

	if (pipe(fds) || fcntl(fds[1], F_SETPIPE_SZ, pages * PAGE) < 0)
		fail("pipe");
	while (v.iov_len) {
		ssize_t n = vmsplice(fds[1], &v, 1, SPLICE_F_NONBLOCK);

		if (n <= 0)
			fail("vmsplice");
		v.iov_base = (char *)v.iov_base + n;
		v.iov_len -= n;
	}
}

int main(int argc, char **argv)
{
	sigset_t term;
	uint64_t *p;
	size_t pages;
	pid_t child = 0;
	int signal, status = 0;

	if (argc != 3 || (strcmp(argv[1], "pipe") && strcmp(argv[1], "fork"))) {
		fputs("usage: cnuma-hold pipe PAGES | fork MIB\n", stderr);
		return 2;
	}
	sigemptyset(&term);
	sigaddset(&term, SIGTERM);
	sigprocmask(SIG_BLOCK, &term, NULL);
	/* The memory is made after this: a fork would share it. */
	if (daemon(0, 1))
		fail("daemon");

	pages = strtoul(argv[2], NULL, 10);
	if (!strcmp(argv[1], "pipe")) {
		p = fill(pages);
		to_pipe(p, pages);
	} else {
		pages <<= 8;
		p = fill(pages);
		child = fork();
		if (child < 0)
			fail("fork");
	}
	if (child || !strcmp(argv[1], "pipe")) {
		puts("ready");
		fflush(stdout);
	}
	sigwait(&term, &signal);
	if (!verify(p, pages))
		return 1;
	if (child > 0) {
		kill(child, SIGTERM);
		if (waitpid(child, &status, 0) != child || status)
			return 1;
	}
	if (child || !strcmp(argv[1], "pipe")) {
		puts("verified");
		fflush(stdout);
	}
	return 0;
}
