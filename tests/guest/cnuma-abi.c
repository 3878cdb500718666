// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * What the memory-policy calls say and accept, raw (libnuma would filter), as one JSON line:
 *
 *   cnuma-abi NODE	NODE: an id that must not exist for applications (a channel that is no head)
 *
 * seen: every node id that a call named for 64 MiB of touched memory; refused: calls that were given NODE -> errno.
 */
#include <errno.h>
#include <linux/mempolicy.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGES 16384
#define MAX_NODES 1024

static bool seen[MAX_NODES];
static void *page[PAGES];
static int status[PAGES], target[PAGES];

static long last_errno(long result)
{
	return result < 0 ? errno : 0;
}

int main(int argc, char **argv)
{
	unsigned long mask[MAX_NODES / 64] = { 0 }, allowed[MAX_NODES / 64] = { 0 };
	int node = argc == 2 ? atoi(argv[1]) : 0, mode, where;
	char *memory = mmap(NULL, PAGES * 4096ul, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	const char *comma = "";

	if (memory == MAP_FAILED || node <= 0 || node >= MAX_NODES) {
		fputs("usage: cnuma-abi NODE\n", stderr);
		return 2;
	}
	madvise(memory, PAGES * 4096ul, MADV_NOHUGEPAGE);
	for (int i = 0; i < PAGES; i++) {
		page[i] = memory + i * 4096ul;
		*(char *)page[i] = 1;
		target[i] = node;
		if (syscall(SYS_get_mempolicy, &where, NULL, 0, page[i], MPOL_F_NODE | MPOL_F_ADDR) == 0)
			seen[where] = true;
	}
	if (syscall(SYS_move_pages, 0, (long)PAGES, page, NULL, status, 0)) {
		perror("move_pages");
		return 1;
	}
	for (int i = 0; i < PAGES; i++)
		if (status[i] >= 0)
			seen[status[i]] = true;
	syscall(SYS_get_mempolicy, &mode, allowed, (long)MAX_NODES, NULL, MPOL_F_MEMS_ALLOWED);
	for (int i = 0; i < MAX_NODES; i++)
		seen[i] |= allowed[i / 64] >> i % 64 & 1;

	printf("{\"seen\":[");
	for (int i = 0; i < MAX_NODES; i++) {
		if (seen[i]) {
			printf("%s%d", comma, i);
			comma = ",";
		}
	}

	mask[node / 64] = 1ul << node % 64;
	printf("],\"refused\":{");
	printf("\"set_mempolicy\":%ld", last_errno(syscall(SYS_set_mempolicy, MPOL_BIND, mask, (long)MAX_NODES)));
	printf(",\"mbind\":%ld", last_errno(syscall(SYS_mbind, memory, 4096ul, MPOL_BIND, mask, (long)MAX_NODES, 0)));
	printf(",\"set_mempolicy_home_node\":%ld", last_errno(syscall(SYS_set_mempolicy_home_node, memory, 4096ul, (long)node, 0)));
	/* move_pages tells per page, or fails as a whole. */
	long moved = last_errno(syscall(SYS_move_pages, 0, 1l, page, target, status, 0));

	printf(",\"move_pages\":%ld", moved ? moved : status[0] < 0 ? -status[0] : 0l);
	printf(",\"migrate_pages\":%ld", last_errno(syscall(SYS_migrate_pages, 0, (long)MAX_NODES, allowed, mask)));
	printf("}}\n");
	return 0;
}
