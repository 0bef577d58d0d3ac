/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small client library in the style of the vendor's: it knows the device
 * paths, the driver's structs and the sysfs files, and nothing of an emulator.
 */
#ifndef FOREIGN_MEM_H
#define FOREIGN_MEM_H

#include <stdint.h>

struct mem_desc {
	uint64_t uba, length;
	uint32_t tokenid, cna;
	uint8_t eid[16];
};

struct mem_controller {
	uint32_t cna;
	uint8_t eid[16];
	int numa, ummu;
};

/* The first local bus controller that sysfs shows.  0 or -1. */
int mem_controller(struct mem_controller *found);
/* The mem_id, or 0 with errno. */
uint64_t mem_export(uint64_t length, struct mem_desc *desc);
int mem_unexport(uint64_t id);
uint64_t mem_import(const struct mem_desc *desc, uint64_t hpa);
int mem_unimport(uint64_t id);
/* open of the region's device with `flags`. */
int mem_open(uint64_t id, int flags);
int mem_set_ownership(int fd, void *start, uint64_t length, int prot);
/* One value of /sys/devices/obmm/obmm_shmdev<id>/<name>. */
int mem_attribute(uint64_t id, const char *name, char *out, int size);

#endif
