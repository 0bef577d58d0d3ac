/* SPDX-License-Identifier: Apache-2.0 */
#ifndef OBMM_BACKEND_H
#define OBMM_BACKEND_H

#include "../core/sys.h"

/*
 * The kernel that OBMM_DEVICE names, as for the Python package: /dev/obmm (or
 * unset), emulator, emulator:<socket>[#<node>], emulator#<node>.  0 or a
 * negative errno, -EINVAL for any other text.  Never one instead of another.
 */
int backend_open(const char *device, struct obmm_sys **out);

#endif
