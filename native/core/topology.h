/* SPDX-License-Identifier: Apache-2.0 */
/* What an export and an import have to name as their own side, from sysfs (driver specification 12, 13). */
#ifndef OBMM_TOPOLOGY_H
#define OBMM_TOPOLOGY_H

#include "../abi/lp64.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct obmm_controller {
	unsigned int index;
	uint32_t cna;
	uint8_t eid[16];
	unsigned int ummu;
	unsigned int numa;
};

/* The first bus controller below <root>/sys/devices.  0, or -ENODEV when there is none. */
int obmm_first_controller(const char *root, struct obmm_controller *controller);

/* The unit of export sizes: the memseg where its parameter is readable (by root), else 2 MiB. */
uint64_t obmm_granule(const char *root);

/* "4", "4K", "4KiB", ... "4T" -> bytes; 0 or -EINVAL, -ERANGE. */
int obmm_parse_size(const char *text, uint64_t *bytes);

#ifdef __cplusplus
}
#endif

#endif
