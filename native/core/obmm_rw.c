/* SPDX-License-Identifier: Apache-2.0 */
#include "obmm_rw.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>

/*
 * Nothing here retries EINTR: a manager interrupts a long NUMA removal with a
 * signal on purpose (spec 15, 21).
 */
static int result(int value)
{
	return value < 0 ? -errno : value;
}

int obmm_rw_open(struct obmm_sys *sys)
{
	int rc = obmm_sys_check(sys);

	return rc ? rc : result(sys->open(sys, OBMM_DEV_PATH, O_RDWR | O_CLOEXEC));
}

int obmm_rw_close(struct obmm_sys *sys, int fd)
{
	return result(sys->close(sys, fd));
}

int obmm_rw_ioctl(struct obmm_sys *sys, int fd, uint64_t request, void *arg)
{
	return result(sys->ioctl(sys, fd, request, arg));
}

int obmm_rw_export(struct obmm_sys *sys, int fd, struct obmm_cmd_export *cmd)
{
	return obmm_rw_ioctl(sys, fd, OBMM_CMD_EXPORT, cmd);
}

int obmm_rw_export_useraddr(struct obmm_sys *sys, int fd, struct obmm_cmd_export_pid *cmd)
{
	return obmm_rw_ioctl(sys, fd, OBMM_CMD_EXPORT_PID, cmd);
}

int obmm_rw_unexport(struct obmm_sys *sys, int fd, uint64_t mem_id, uint64_t flags)
{
	struct obmm_cmd_unexport cmd = { .mem_id = mem_id, .flags = flags };

	return obmm_rw_ioctl(sys, fd, OBMM_CMD_UNEXPORT, &cmd);
}

int obmm_rw_import(struct obmm_sys *sys, int fd, struct obmm_cmd_import *cmd)
{
	return obmm_rw_ioctl(sys, fd, OBMM_CMD_IMPORT, cmd);
}

int obmm_rw_unimport(struct obmm_sys *sys, int fd, uint64_t mem_id, uint64_t flags)
{
	struct obmm_cmd_unimport cmd = { .mem_id = mem_id, .flags = flags };

	return obmm_rw_ioctl(sys, fd, OBMM_CMD_UNIMPORT, &cmd);
}

int obmm_rw_declare_preimport(struct obmm_sys *sys, int fd, struct obmm_cmd_preimport *cmd)
{
	return obmm_rw_ioctl(sys, fd, OBMM_CMD_DECLARE_PREIMPORT, cmd);
}

int obmm_rw_undeclare_preimport(struct obmm_sys *sys, int fd, struct obmm_cmd_preimport *cmd)
{
	return obmm_rw_ioctl(sys, fd, OBMM_CMD_UNDECLARE_PREIMPORT, cmd);
}

int obmm_rw_query_pa(struct obmm_sys *sys, int fd, uint64_t mem_id, uint64_t offset, uint64_t *pa)
{
	struct obmm_cmd_addr_query cmd = {
		.key_type = OBMM_QUERY_BY_ID_OFFSET,
		.mem_id = mem_id,
		.offset = offset,
	};
	int rc = obmm_rw_ioctl(sys, fd, OBMM_CMD_ADDR_QUERY, &cmd);

	if (rc >= 0)
		*pa = cmd.pa;
	return rc;
}

int obmm_rw_query_id(struct obmm_sys *sys, int fd, uint64_t pa, uint64_t *mem_id, uint64_t *offset)
{
	struct obmm_cmd_addr_query cmd = { .key_type = OBMM_QUERY_BY_PA, .pa = pa };
	int rc = obmm_rw_ioctl(sys, fd, OBMM_CMD_ADDR_QUERY, &cmd);

	if (rc >= 0) {
		*mem_id = cmd.mem_id;
		*offset = cmd.offset;
	}
	return rc;
}

int obmm_rw_shmdev_open(struct obmm_sys *sys, uint64_t mem_id, int flags)
{
	char path[sizeof(OBMM_SHMDEV_PREFIX) + 20];
	int rc = obmm_sys_check(sys);

	if (rc)
		return rc;
	snprintf(path, sizeof(path), OBMM_SHMDEV_PREFIX "%" PRIu64, mem_id);
	return result(sys->open(sys, path, flags | O_CLOEXEC));
}

int obmm_rw_map(struct obmm_sys *sys, int fd, void *addr, uint64_t offset, uint64_t length, int prot,
		int pmd, void **out)
{
	int flags = addr ? MAP_SHARED | MAP_FIXED : MAP_SHARED;
	void *mapped;

	if (pmd)
		offset |= OBMM_MMAP_FLAG_HUGETLB_PMD;
	mapped = sys->mmap(sys, addr, length, prot, flags, fd, offset);
	if (mapped == MAP_FAILED)
		return -errno;
	*out = mapped;
	return 0;
}

int obmm_rw_unmap(struct obmm_sys *sys, void *addr, uint64_t length)
{
	return result(sys->munmap(sys, addr, length));
}

int obmm_rw_seal(struct obmm_sys *sys, void *addr, uint64_t length)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;

	return sys->mmap(sys, addr, length, PROT_NONE, flags, -1, 0) == MAP_FAILED ? -errno : 0;
}

int obmm_rw_set_ownership(struct obmm_sys *sys, int fd, uint64_t start, uint64_t end, uint8_t mem_state,
			  uint8_t cache_ops)
{
	struct obmm_cmd_update_range cmd = {
		.start = start,
		.end = end,
		.mem_state = mem_state,
		.cache_ops = cache_ops,
	};

	return obmm_rw_ioctl(sys, fd, OBMM_SHMDEV_UPDATE_RANGE, &cmd);
}
