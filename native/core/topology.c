/* SPDX-License-Identifier: Apache-2.0 */
#include "topology.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../abi/obmm_abi.h"

static int read_line(const char *path, char *line, int size)
{
	FILE *file = fopen(path, "re");
	char *got;

	if (!file)
		return -errno;
	got = fgets(line, size, file);
	fclose(file);
	if (!got)
		return -EIO;
	line[strcspn(line, "\n")] = '\0';
	return 0;
}

/* An attribute of the entity: decimal or 0x..., whatever the file has. */
static int read_attribute(const char *entity, const char *name, unsigned long *value)
{
	char path[512], line[64], *end;
	int rc;

	snprintf(path, sizeof(path), "%s/%s", entity, name);
	rc = read_line(path, line, sizeof(line));
	if (rc)
		return rc;
	errno = 0;
	*value = strtoul(line, &end, 0);
	return errno || end == line || *end ? -EINVAL : 0;
}

static int read_controller(const char *entity, struct obmm_controller *controller)
{
	unsigned long cna, eid, ummu, numa;

	if (read_attribute(entity, "primary_cna", &cna) || read_attribute(entity, "eid", &eid) ||
	    read_attribute(entity, "ummu_map", &ummu) || read_attribute(entity, "numa", &numa))
		return -ENODEV;
	memset(controller, 0, sizeof(*controller));
	controller->cna = (uint32_t)cna;
	/* little-endian in the first bytes */
	for (int i = 0; i < 8; i++)
		controller->eid[i] = (uint8_t)(eid >> 8 * i);
	controller->ummu = (unsigned int)ummu;
	controller->numa = (unsigned int)numa;
	return 0;
}

/* The entity that has a file ubc (13.1). */
static int read_first_entity(const char *folder, struct obmm_controller *controller)
{
	struct dirent **entities;
	int count = scandir(folder, &entities, NULL, alphasort), rc = -ENODEV;

	for (int i = 0; i < count; i++) {
		char entity[512];
		unsigned long ubc;

		snprintf(entity, sizeof(entity), "%s/%s", folder, entities[i]->d_name);
		if (rc && !read_attribute(entity, "ubc", &ubc))
			rc = read_controller(entity, controller);
		free(entities[i]);
	}
	if (count >= 0)
		free(entities);
	return rc;
}

int obmm_first_controller(const char *root, struct obmm_controller *controller)
{
	/* eight controllers at most (13.1) */
	for (unsigned int index = 0; index < 8; index++) {
		char folder[256];

		snprintf(folder, sizeof(folder), "%s/sys/devices/ub_bus_controller%u", root, index);
		if (read_first_entity(folder, controller))
			continue;
		controller->index = index;
		return 0;
	}
	return -ENODEV;
}

uint64_t obmm_granule(const char *root)
{
	char path[512], line[64];
	uint64_t bytes;

	snprintf(path, sizeof(path), "%s/sys/module/obmm/parameters/mem_allocator_granu", root);
	if (read_line(path, line, sizeof(line)) || obmm_parse_size(line, &bytes) || !bytes)
		return OBMM_BASIC_GRANULARITY;
	return bytes;
}

int obmm_parse_size(const char *text, uint64_t *bytes)
{
	static const char UNITS[] = "KMGT";
	unsigned int shift = 0;
	const char *unit;
	char *end;

	if (!isdigit((unsigned char)*text))
		return -EINVAL;
	errno = 0;
	*bytes = strtoull(text, &end, 10);
	if (errno)
		return -ERANGE;
	unit = *end ? strchr(UNITS, toupper((unsigned char)*end)) : NULL;
	if (unit) {
		shift = 10 * (unsigned int)(unit - UNITS + 1);
		end++;
		if (*end == 'i')
			end++;
	}
	if (*end == 'B')
		end++;
	if (*end)
		return -EINVAL;
	if (*bytes > UINT64_MAX >> shift)
		return -ERANGE;
	*bytes <<= shift;
	return 0;
}
