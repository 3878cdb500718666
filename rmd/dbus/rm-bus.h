/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What both ends of the bus agree on beside the generated code: the object path and the names of
 * the errors. Include this (not the generated header) in rmd, rmctl, the shim and the hook.
 */
#ifndef RM_BUS_H
#define RM_BUS_H

#include <gio/gio.h>
#include "rm-bus-generated.h"
#include "rm-error.h"

G_BEGIN_DECLS

#define RM_BUS_PATH         "/org/ramryder/Manager1"
#define RM_BUS_INTERFACE    "org.ramryder.Manager1"
#define RM_BUS_ERROR_PREFIX "org.ramryder.Error."

/*
 * Registers RM_ERROR with GDBus, so that an RmError that a method returns becomes
 * org.ramryder.Error.NAME and is an RmError again at the caller. Call it once before the first
 * message; more calls do nothing.
 */
void rm_bus_init(void);

G_END_DECLS

#endif
