/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's own calls: right ones, nearly right ones, and rubbish. */
#include "storm.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

static const uint64_t windows[] = { 0xa0000000, 0xa0200000, 0xa0800000, 0xc0000000,
				    0xd0000000, 0xd0400000, 0x5000000000, 0xe0000000 };

static uint64_t some_id(struct dice *dice)
{
	return 1 + below(dice, below(dice, 16) ? 12 : 1 << 20);
}

static void export(struct dice *dice)
{
	struct obmm_cmd_export cmd = { .length = 1, .flags = below(dice, 8) ? 1 : roll(dice) & 3 };

	cmd.size[0] = (below(dice, 4) ? 1 : 4) * CHUNK; /* cleared, which takes its time in a guest */
	if (!below(dice, 16))
		cmd.size[0] = roll(dice);
	if (!below(dice, 16))
		cmd.length = roll(dice);
	if (!below(dice, 16))
		cmd.priv_len = (uint16_t)roll(dice), cmd.priv = (void *)PICK(dice, 0, (uintptr_t)arena, (uintptr_t)&cmd);
	if (!below(dice, 16))
		cmd.vendor_len = (uint16_t)below(dice, 160), cmd.vendor_info = &cmd;
	did(EXPORTED, !ioctl(control(dice), OBMM_CMD_EXPORT, &cmd));
}

static void import(struct dice *dice)
{
	struct obmm_cmd_import cmd = { .flags = below(dice, 8) ? 1 : roll(dice) & 7, .numa_id = -1 };

	cmd.addr = windows[below(dice, sizeof(windows) / sizeof(*windows))];
	cmd.length = (1 + below(dice, 8)) * CHUNK;
	cmd.scna = (uint32_t)PICK(dice, 0x40a, 0x40a, 0x40a, 0x50b, 7);
	if (!below(dice, 16))
		cmd.addr = roll(dice) & ~(CHUNK - 1ULL);
	if (!below(dice, 16))
		cmd.length = roll(dice) & ~(CHUNK - 1ULL);
	did(IMPORTED, !ioctl(control(dice), OBMM_CMD_IMPORT, &cmd));
}

static void remove_region(struct dice *dice)
{
	struct obmm_cmd_unexport cmd = { some_id(dice), below(dice, 32) ? 0 : roll(dice) };

	did(REMOVED, !ioctl(control(dice), below(dice, 2) ? OBMM_CMD_UNEXPORT : OBMM_CMD_UNIMPORT, &cmd));
}

static void query(struct dice *dice)
{
	struct obmm_cmd_addr_query cmd = { .key_type = (uint32_t)below(dice, 3), .mem_id = some_id(dice) };

	cmd.offset = below(dice, 4) ? below(dice, 4 * CHUNK) : roll(dice);
	cmd.pa = below(dice, 2) ? windows[below(dice, 8)] : roll(dice) & 0xffffffff;
	ioctl(control(dice), OBMM_CMD_ADDR_QUERY, &cmd);
}

static void preimport(struct dice *dice)
{
	struct obmm_cmd_preimport cmd = { .pa = windows[below(dice, 8)], .length = CHUNK << below(dice, 8) };

	cmd.scna = 0x40a;
	cmd.numa_id = (int)below(dice, 6) - 1;
	ioctl(control(dice), below(dice, 2) ? OBMM_CMD_DECLARE_PREIMPORT : OBMM_CMD_UNDECLARE_PREIMPORT, &cmd);
}

static void export_pid(struct dice *dice)
{
	struct obmm_cmd_export_pid cmd = { .pid = (int)PICK(dice, 0, 0, 1, 2, ~0ULL) };
	size_t length;

	cmd.va = place(dice, &length);
	cmd.length = length;
	if (!below(dice, 4))
		cmd.pid = atomic_load(&board->pids[below(dice, WORKERS)]);
	ioctl(control(dice), OBMM_CMD_EXPORT_PID, &cmd);
}

static void rubbish(struct dice *dice)
{
	uint64_t words[40];
	size_t length;
	unsigned long request = below(dice, 2) ? roll(dice) & 0xffffffff :
						 _IOC(roll(dice) & 3, 'x', below(dice, 12), PICK(dice, 0, 16, 24, 32, 80, 96, 104, 224));

	for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++)
		words[i] = below(dice, 2) ? roll(dice) : below(dice, 3);
	if (below(dice, 2))
		ioctl(node(dice), request, words);
	else
		ioctl(node(dice), request, place(dice, &length));
}

static void update_range(struct dice *dice)
{
	struct mapped *known = &mapped[below(dice, MAPPED_KEPT)];
	struct obmm_cmd_update_range cmd;
	int fd = node(dice);
	size_t length;

	memset(&cmd, 0, sizeof(cmd));
	cmd.start = (uintptr_t)place(dice, &length);
	cmd.end = cmd.start + length;
	cmd.mem_state = (uint8_t)PICK(dice, 0x1, 0x5, 0x9, 0xd, 0x9, 0xd, 0xe, 0xb, roll(dice) & 0xff);
	cmd.cache_ops = (uint8_t)PICK(dice, 4, 4, 4, 0, 1, 2, 3, 5);
	if (below(dice, 4) && known->at) {
		cmd.start = (uintptr_t)known->at + PAGE * below(dice, 2) * below(dice, 1 + known->length / PAGE);
		cmd.end = (uintptr_t)known->at + known->length;
		fd = known->fd;
	}
	did(OWNED, !ioctl(fd, OBMM_SHMDEV_UPDATE_RANGE, &cmd));
}

static void open_region(struct dice *dice)
{
	char path[64];
	int fd, flags = (int)PICK(dice, O_RDWR, O_RDWR, O_RDWR, O_RDONLY, O_WRONLY, O_RDWR | O_SYNC, O_RDWR | O_DIRECT, O_PATH);

	snprintf(path, sizeof(path), OBMM_SHMDEV_PREFIX "%u", (unsigned int)some_id(dice));
	if (!below(dice, 12))
		snprintf(path, sizeof(path), OBMM_DEV_PATH);
	fd = open(path, flags | O_CLOEXEC);
	did(OPENED, fd >= 0);
	if (below(dice, 12) || fd < 0)
		keep(dice, fd);
	else
		close(fd);
}

static void close_one(struct dice *dice)
{
	int fd = atomic_exchange(&nodes[CONTROLS + below(dice, NODES - CONTROLS)], -1);

	if (fd >= 0)
		close(fd);
}

static void map(struct dice *dice)
{
	struct mapped *known = &mapped[below(dice, MAPPED_KEPT)];
	int fd;
	size_t length;
	void *at = place(dice, &length);
	int prot = (int)PICK(dice, 3, 3, 3, 1, 2, 0, 5, 7);
	int flags = (int)PICK(dice, MAP_SHARED, MAP_SHARED, MAP_SHARED, MAP_PRIVATE, MAP_SHARED | MAP_POPULATE,
			      MAP_SHARED | MAP_LOCKED, MAP_SHARED | MAP_NORESERVE, MAP_SHARED_VALIDATE | MAP_SYNC);
	uint64_t offset = below(dice, 3) ? 0 : below(dice, 4) * CHUNK + below(dice, 2) * PAGE * below(dice, 512);

	if (below(dice, 2))
		offset |= OBMM_MMAP_FLAG_HUGETLB_PMD;
	if (!below(dice, 64))
		offset = roll(dice) & ~(PAGE - 1);
	flags |= at < (void *)arena || at >= (void *)(arena + ARENA) ? 0 : MAP_FIXED;
	if ((flags & MAP_FIXED) && ((uintptr_t)at + length > (uintptr_t)arena + ARENA || (uintptr_t)at + length < (uintptr_t)at))
		return; /* over memory of this program's own */
	fd = node(dice);
	if (mmap(at, length, prot, flags, fd, (off_t)offset) == MAP_FAILED || !(flags & MAP_FIXED))
		return;
	did(MAPPED, true);
	known->at = at;
	known->length = length;
	known->fd = fd;
}

void driver_call(struct dice *dice)
{
	static void (*const calls[])(struct dice *) = {
		export, import, import, remove_region, remove_region, remove_region, query, rubbish, preimport, export_pid,
		open_region, open_region, open_region, close_one, map, map, map, map, map, map,
		map, map, update_range, update_range, update_range, update_range, update_range,
	};

	calls[below(dice, sizeof(calls) / sizeof(*calls))](dice);
}
