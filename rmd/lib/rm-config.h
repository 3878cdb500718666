/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The configuration file of rmd (rmd.conf): folders, emulator, stores and channels. Owns the syntax
 * and every default; a group, key or value that it does not know is an error that names it. Reads
 * one file and nothing else; includes no bus and no loop.
 */
#ifndef RM_CONFIG_H
#define RM_CONFIG_H

#include "rm-topology.h"

G_BEGIN_DECLS

#define RM_CONFIG_DEFAULT_PATH "/etc/rmd/rmd.conf"
#define RM_CONFIG_ENV          "RMD_CONFIG"

typedef struct {
	char *name;
	char *kind; /* "file" */
	char *path;
} RmStoreConfig;

typedef struct {
	char *path; /* of the file itself, for messages */
	char *runtime_dir;
	char *state_dir;
	char *emulator;
	char *qemu_user;         /* QEMU runs as it; NULL: only as root */
	guint claim_timeout_sec; /* a claim whose process never came */
	guint job_timeout_sec;   /* a job without any progress */
	guint scrub_threads;
	guint64 scrub_bytes_per_sec; /* 0: no limit */
	GPtrArray *stores;           /* of RmStoreConfig */
	RmTopology *topology;
} RmConfig;

/*
 * Which file to read: @option (--config) if given, else the environment variable RMD_CONFIG, else
 * the default. Static or borrowed.
 */
const char *rm_config_path(const char *option);

RmConfig *rm_config_load(const char *path, GError **error);

/*
 * Only [daemon] runtime-dir: all that a client needs in order to find the socket. A file that does
 * not exist gives the default.
 */
char *rm_config_load_runtime_dir(const char *path, GError **error);

void rm_config_free(RmConfig *config);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RmConfig, rm_config_free)

G_END_DECLS

#endif
