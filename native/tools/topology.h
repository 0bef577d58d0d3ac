/* SPDX-License-Identifier: Apache-2.0 */
/* What an export and an import have to name as their own side, from sysfs (driver specification 12, 13). */
#ifndef OBMM_TOPOLOGY_H
#define OBMM_TOPOLOGY_H

#include <stdint.h>

struct controller {
	unsigned int index;
	uint32_t cna;
	uint8_t eid[16];
	unsigned int ummu;
	unsigned int numa;
};

/* The first bus controller below <root>/sys/devices.  0, or -ENODEV when there is none. */
int topology_first_controller(const char *root, struct controller *controller);

/* The unit of export sizes: the memseg where its parameter is readable (by root), else 2 MiB. */
uint64_t topology_granule(const char *root);

/* "4", "4K", "4KiB", ... "4T" -> bytes; 0 or -EINVAL, -ERANGE. */
int parse_size(const char *text, uint64_t *bytes);

#endif
