/* SPDX-License-Identifier: Apache-2.0 */
#include "mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "abi/obmm_abi.h"

static int read_number(const char *folder, const char *name, unsigned long long *value)
{
	char path[512];
	FILE *file;
	int ok;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	file = fopen(path, "r");
	if (!file)
		return -1;
	ok = fscanf(file, "%lli", (long long *)value) == 1;
	fclose(file);
	return ok ? 0 : -1;
}

int mem_controller(struct mem_controller *found)
{
	for (int n = 0; n < 8; n++) {
		char folder[64], entity[512];
		struct dirent *entry;
		DIR *dir;

		snprintf(folder, sizeof(folder), "/sys/devices/ub_bus_controller%d", n);
		dir = opendir(folder);
		if (!dir)
			continue;
		while ((entry = readdir(dir))) {
			unsigned long long value;

			if (strlen(entry->d_name) != 5)
				continue;
			snprintf(entity, sizeof(entity), "%s/%s", folder, entry->d_name);
			if (read_number(entity, "ubc", &value))
				continue;
			memset(found, 0, sizeof(*found));
			read_number(entity, "eid", &value);
			memcpy(found->eid, &value, sizeof(value));
			read_number(entity, "primary_cna", &value);
			found->cna = value;
			read_number(entity, "numa", &value);
			found->numa = value;
			read_number(entity, "ummu_map", &value);
			found->ummu = value;
			closedir(dir);
			return 0;
		}
		closedir(dir);
	}
	errno = ENODEV;
	return -1;
}

static int control(unsigned long request, void *command)
{
	int fd = open("/dev/obmm", O_RDWR), rc;

	if (fd < 0)
		return -1;
	rc = ioctl(fd, request, command);
	close(fd);
	return rc;
}

uint64_t mem_export(uint64_t length, struct mem_desc *desc)
{
	struct {
		uint64_t version, mask;
		uint8_t on_chip, zero[7];
	} vendor = { .on_chip = 1 };
	struct obmm_cmd_export command = { 0 };
	struct mem_controller local;

	if (mem_controller(&local))
		return 0;
	vendor.mask = 1ULL << local.ummu;
	command.size[local.numa] = length;
	command.length = OBMM_MAX_LOCAL_NUMA_NODES;
	command.flags = OBMM_EXPORT_FLAG_ALLOW_MMAP;
	command.pxm_numa = local.numa;
	command.vendor_info = &vendor;
	command.vendor_len = sizeof(vendor);
	memcpy(command.deid, local.eid, sizeof(local.eid));
	if (control(OBMM_CMD_EXPORT, &command))
		return 0;
	desc->uba = command.uba;
	desc->tokenid = command.tokenid;
	desc->length = length;
	desc->cna = local.cna;
	memcpy(desc->eid, local.eid, sizeof(local.eid));
	return command.mem_id;
}

int mem_unexport(uint64_t id)
{
	struct obmm_cmd_unexport command = { .mem_id = id };

	return control(OBMM_CMD_UNEXPORT, &command);
}

uint64_t mem_import(const struct mem_desc *desc, uint64_t hpa)
{
	struct obmm_cmd_import command = { 0 };
	struct mem_controller local;

	if (mem_controller(&local))
		return 0;
	command.flags = OBMM_IMPORT_FLAG_ALLOW_MMAP;
	command.addr = hpa;
	command.length = desc->length;
	command.tokenid = desc->tokenid;
	command.scna = local.cna;
	command.dcna = desc->cna;
	command.numa_id = -1;
	memcpy(command.seid, local.eid, sizeof(local.eid));
	memcpy(command.deid, desc->eid, sizeof(desc->eid));
	return control(OBMM_CMD_IMPORT, &command) ? 0 : command.mem_id;
}

int mem_unimport(uint64_t id)
{
	struct obmm_cmd_unimport command = { .mem_id = id };

	return control(OBMM_CMD_UNIMPORT, &command);
}

int mem_open(uint64_t id, int flags)
{
	char path[64];

	snprintf(path, sizeof(path), "/dev/obmm_shmdev%llu", (unsigned long long)id);
	return open(path, flags);
}

int mem_set_ownership(int fd, void *start, uint64_t length, int prot)
{
	struct obmm_cmd_update_range command = {
		.start = (uintptr_t)start,
		.end = (uintptr_t)start + length,
		.mem_state = OBMM_SHM_MEM_NORMAL,
		.cache_ops = OBMM_SHM_CACHE_INFER,
	};

	if (prot & PROT_WRITE)
		command.mem_state |= OBMM_SHM_MEM_READWRITE;
	else if (!(prot & PROT_READ))
		command.mem_state |= OBMM_SHM_MEM_NO_ACCESS;
	return ioctl(fd, OBMM_SHMDEV_UPDATE_RANGE, &command);
}

int mem_attribute(uint64_t id, const char *name, char *out, int size)
{
	char path[256];
	int fd, got;

	snprintf(path, sizeof(path), "/sys/devices/obmm/obmm_shmdev%llu/%s", (unsigned long long)id, name);
	fd = open(path, O_RDONLY);
	if (fd < 0)
		return -1;
	got = read(fd, out, size - 1);
	close(fd);
	if (got < 0)
		return -1;
	out[got] = 0;
	out[strcspn(out, "\n")] = 0;
	return 0;
}
