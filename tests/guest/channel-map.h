// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Which channel a physical address belongs to, from the firmware's tables only: CNUM names the window of each channel,
 * SRAT the memory that is in no window, which belongs to the head of its node. Never from the kernel code under test.
 */
#ifndef CHANNEL_MAP_H
#define CHANNEL_MAP_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ACPI_HEADER 36
#define CNUM_ENTRY 56
#define MAX_RANGES 256
#define MAX_NODES 64
#define UNKNOWN (MAX_NODES - 1)

struct range {
	uint64_t base, size;
	unsigned int node;
};

struct channel_map {
	struct range windows[MAX_RANGES], base[MAX_RANGES];
	unsigned int n_windows, n_base;
	bool known[MAX_NODES]; /* nodes that the tables name */
};

static uint32_t le32(const uint8_t *p)
{
	return p[0] | p[1] << 8 | p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t le64(const uint8_t *p)
{
	return le32(p) | (uint64_t)le32(p + 4) << 32;
}

/* Returns NULL, or what is wrong with the table. */
static const char *table_error(const uint8_t *t, size_t length, const char *signature)
{
	uint8_t sum = 0;

	if (length < ACPI_HEADER || memcmp(t, signature, 4))
		return "no such signature";
	if (le32(t + 4) != length)
		return "its length is not the length in its header";
	for (size_t i = 0; i < length; i++)
		sum += t[i];
	return sum ? "bad checksum" : NULL;
}

static const char *add_cnum(struct channel_map *map, const uint8_t *t, size_t length)
{
	const char *error = table_error(t, length, "CNUM");

	if (error)
		return error;
	if (t[8] != 1)
		return "unknown revision";
	if (length < 44)
		return "too short";

	uint32_t n = le32(t + 36), stride = le32(t + 40);

	if (stride < CNUM_ENTRY || 44 + (uint64_t)n * stride != length)
		return "entries do not fill it";
	for (uint32_t i = 0; i < n; i++) {
		const uint8_t *e = t + 44 + (size_t)i * stride;
		struct range r = { le64(e + 40), le64(e + 48), le32(e) };

		if (r.node >= UNKNOWN || map->n_windows == MAX_RANGES)
			return "more nodes than this program knows";
		map->known[r.node] = true;
		if (r.size)
			map->windows[map->n_windows++] = r;
	}
	return NULL;
}

static const char *add_srat(struct channel_map *map, const uint8_t *t, size_t length)
{
	const char *error = table_error(t, length, "SRAT");

	if (error)
		return error;
	for (size_t at = ACPI_HEADER + 12; at + 2 <= length && t[at + 1] >= 2; at += t[at + 1]) {
		const uint8_t *e = t + at;

		if (e[0] != 1 || e[1] < 40 || at + 40 > length || !(le32(e + 28) & 1))
			continue;

		struct range r = { le64(e + 8), le64(e + 16), le32(e + 2) };

		if (r.node >= UNKNOWN || map->n_base == MAX_RANGES)
			return "more nodes than this program knows";
		if (!r.size)
			continue;
		map->known[r.node] = true;
		map->base[map->n_base++] = r;
	}
	return NULL;
}

static unsigned int node_of(const struct channel_map *map, uint64_t address)
{
	for (unsigned int i = 0; i < map->n_windows; i++)
		if (address - map->windows[i].base < map->windows[i].size)
			return map->windows[i].node;
	for (unsigned int i = 0; i < map->n_base; i++)
		if (address - map->base[i].base < map->base[i].size)
			return map->base[i].node;
	return UNKNOWN;
}

/* A table that does not exist is no error: a guest without channels has no CNUM, and perhaps no SRAT. */
static void load_table(struct channel_map *map, const char *path,
		       const char *(*add)(struct channel_map *, const uint8_t *, size_t))
{
	static uint8_t data[1 << 16];
	size_t length = 0;
	FILE *f = fopen(path, "re");

	if (!f) {
		if (errno == ENOENT)
			return;
		fprintf(stderr, "%s: %s: %m\n", program_invocation_short_name, path);
		exit(1);
	}
	length = fread(data, 1, sizeof(data), f);
	fclose(f);

	const char *error = add(map, data, length);

	if (error) {
		fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, path, error);
		exit(1);
	}
}

#endif
