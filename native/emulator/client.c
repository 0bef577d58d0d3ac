/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The system-call table of an emulated node (docs/emulator.md).  It forwards
 * calls and hands back answers; what it maps, it was told to map.
 */
#include "client.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "connection.h"

/* Spec 9.3: the block size that bit 63 of the offset asks for. */
#define BLOCK_SIZE (2UL << 20)
#define BLOCK_FLAG (1UL << 63)

/* What musl's <sys/ioctl.h> leaves to the kernel's headers. */
#ifndef _IOC_SIZE
#define _IOC_SIZE(request) (((request) >> 16) & 0x3fff)
#define _IOC_DIR(request) (((request) >> 30) & 3)
#define _IOC_WRITE 1U
#endif

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

struct emulator {
	struct obmm_sys sys; /* first: the table is the object */
	struct obmm_connection *connection;
	char name[256];
};

static struct obmm_connection *connection_of(struct obmm_sys *sys)
{
	return ((struct emulator *)sys)->connection;
}

/* 0 or -1 and errno, as libc; OBMM_CALL_FOREIGN passes. */
static int forward(struct obmm_sys *sys, struct obmm_call *call)
{
	int rc = obmm_connection_call(connection_of(sys), call);

	if (rc >= 0)
		return rc;
	errno = -rc;
	return -1;
}

static int emulator_open(struct obmm_sys *sys, const char *path, int flags)
{
	struct obmm_call call = {
		.request = {
			.call = OBMM_CALL_OPEN,
			.size = strlen(path),
			.arg = { (unsigned int)flags, geteuid() },
		},
		.payload = path,
		.keep_flags = flags & O_CLOEXEC,
	};

	if (call.request.size >= OBMM_WIRE_PAYLOAD_MAX) {
		errno = ENAMETOOLONG;
		return -1;
	}
	if (forward(sys, &call))
		return -1;
	if (call.descriptor < 0) {
		errno = -call.descriptor;
		return -1;
	}
	return call.descriptor;
}

static int emulator_ioctl(struct obmm_sys *sys, int fd, unsigned long request, void *arg)
{
	struct obmm_call call = {
		.request = {
			.call = OBMM_CALL_IOCTL,
			.file = obmm_connection_file(connection_of(sys), fd),
			/* the kernel's ioctl takes 32 bits of it */
			.arg = { (unsigned int)request, (uintptr_t)arg },
		},
		.payload = arg,
	};

	switch (request) {
	case FIOCLEX:
	case FIONCLEX:
	case FIONBIO:
		/* answered by the VFS before any driver (rule D2) */
		return ioctl(fd, request, arg);
	}
	if (!call.request.file)
		return ioctl(fd, request, arg);
	if (_IOC_DIR(request) & _IOC_WRITE)
		call.request.size = _IOC_SIZE(request);
	switch (forward(sys, &call)) {
	case 0:
		return call.value;
	case OBMM_CALL_FOREIGN:
		return ioctl(fd, request, arg);
	default:
		return -1;
	}
}

/*
 * Room for a mapping, so that the server knows the address before it decides.
 * Returns MAP_FAILED and errno as the kernel would for lack of room.
 */
static void *reserve(void *hint, size_t length, int flags, uint64_t offset)
{
	const int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (flags & MAP_FIXED_NOREPLACE);
	uintptr_t start, aligned;
	void *room = mmap(hint, length, PROT_NONE, how, -1, 0);

	if (room == MAP_FAILED || !(offset & BLOCK_FLAG) || (flags & MAP_FIXED_NOREPLACE) ||
	    (uintptr_t)room % BLOCK_SIZE == 0)
		return room;
	munmap(room, length);
	if (length + BLOCK_SIZE < length) {
		errno = ENOMEM;
		return MAP_FAILED;
	}
	room = mmap(NULL, length + BLOCK_SIZE, PROT_NONE, how, -1, 0);
	if (room == MAP_FAILED)
		return room;
	start = (uintptr_t)room;
	aligned = (start + BLOCK_SIZE - 1) & ~(BLOCK_SIZE - 1);
	if (aligned > start)
		munmap(room, aligned - start);
	munmap((void *)(aligned + length), start + BLOCK_SIZE - aligned);
	return (void *)aligned;
}

/* A call about [addr, addr + length): 0 when the server has done it, 1 when the kernel has to, -1 refused. */
static int about_range(struct obmm_sys *sys, int number, void *addr, size_t length, uint64_t more)
{
	struct obmm_call call = {
		.request = { .call = number, .arg = { (uintptr_t)addr, length, more } },
	};

	return forward(sys, &call);
}

/* Tell the server that [addr, addr + length) goes.  One that does not answer has let it go: unmapping is local. */
static int release(struct obmm_sys *sys, void *addr, size_t length)
{
	struct obmm_call call = {
		.request = { .call = OBMM_CALL_MUNMAP, .arg = { (uintptr_t)addr, length } },
	};

	return forward(sys, &call) < 0 && call.answered ? -1 : 0;
}

static void *emulator_mmap(struct obmm_sys *sys, void *addr, size_t length, int prot, int flags, int fd,
			   uint64_t offset)
{
	const size_t page = sysconf(_SC_PAGESIZE);
	const size_t rounded = (length + page - 1) & ~(page - 1);
	const uint64_t file = obmm_connection_file(connection_of(sys), fd);
	const int fixed = flags & MAP_FIXED;
	void *room = MAP_FAILED;
	int no_room = 0, error;

	if (!file) {
		/* a foreign mapping over a region's: the region's goes as in munmap, its addresses in the same step */
		if (fixed && release(sys, addr, rounded))
			return MAP_FAILED;
		return mmap(addr, length, prot, flags, fd, (off_t)offset);
	}
	if (!fixed) {
		errno = length ? ENOMEM : EINVAL; /* length + page wraps to 0 */
		if (rounded)
			room = reserve(addr, rounded, flags, offset);
		if (room == MAP_FAILED)
			no_room = errno;
		else
			addr = room;
	}

	struct obmm_call call = {
		.request = {
			.call = OBMM_CALL_MMAP,
			.file = file,
			.arg = { (uintptr_t)addr, length, (unsigned int)prot, (unsigned int)flags, offset,
				 no_room },
		},
	};

	switch (forward(sys, &call)) {
	case 0:
		return (void *)(uintptr_t)call.value;
	case OBMM_CALL_FOREIGN:
		if (room != MAP_FAILED)
			munmap(room, rounded);
		return mmap(fixed ? addr : NULL, length, prot, flags, fd, (off_t)offset);
	default:
		error = errno;
		if (room != MAP_FAILED)
			munmap(room, rounded);
		errno = error;
		return MAP_FAILED;
	}
}

static int emulator_munmap(struct obmm_sys *sys, void *addr, size_t length)
{
	/* the server releases what is the regions'; the whole range goes here */
	return release(sys, addr, length) ? -1 : munmap(addr, length);
}

static int emulator_close(struct obmm_sys *sys, int fd)
{
	(void)sys; /* the server sees the end of file of the last reference */
	return close(fd);
}

static void emulator_destroy(struct obmm_sys *sys)
{
	obmm_connection_put(connection_of(sys));
	free(sys);
}

int obmm_sys_emulator(const char *socket_path, const char *node, struct obmm_sys **out)
{
	struct emulator *e = calloc(1, sizeof(*e));
	int rc;

	if (!e)
		return -ENOMEM;
	rc = obmm_connection_get(socket_path, node ? node : "", &e->connection);
	if (rc) {
		free(e);
		return rc;
	}
	snprintf(e->name, sizeof(e->name), "emulator:%s#%s", socket_path, obmm_connection_node(e->connection));
	e->sys = (struct obmm_sys){
		.size = sizeof(e->sys),
		.open = emulator_open,
		.ioctl = emulator_ioctl,
		.mmap = emulator_mmap,
		.munmap = emulator_munmap,
		.close = emulator_close,
		.destroy = emulator_destroy,
		.root = obmm_connection_root(e->connection),
		.name = e->name,
	};
	*out = &e->sys;
	return 0;
}

int obmm_emulator_program(struct obmm_sys *sys, const struct obmm_emulator_window *window, uint64_t *pa)
{
	struct obmm_call call = {
		.request = { .call = OBMM_CALL_PROGRAM, .size = sizeof(*window) },
		.payload = window,
	};
	int rc = obmm_connection_call(connection_of(sys), &call);

	static_assert(sizeof(*window) == sizeof(struct obmm_wire_window), "sent as it is");
	if (!rc)
		*pa = call.value;
	return rc;
}

int obmm_emulator_unprogram(struct obmm_sys *sys, uint64_t pa)
{
	struct obmm_call call = { .request = { .call = OBMM_CALL_UNPROGRAM, .arg = { pa } } };

	return obmm_connection_call(connection_of(sys), &call);
}

int obmm_emulator_release(struct obmm_sys *sys, uint64_t *pa)
{
	int rc = *pa ? obmm_emulator_unprogram(sys, *pa) : 0;

	if (rc >= 0)
		*pa = 0;
	return rc;
}

int obmm_emulator_mprotect(struct obmm_sys *sys, void *addr, size_t length, int prot)
{
	int rc = about_range(sys, OBMM_CALL_MPROTECT, addr, length, (unsigned int)prot);

	return rc == OBMM_CALL_FOREIGN ? mprotect(addr, length, prot) : rc;
}

int obmm_emulator_madvise(struct obmm_sys *sys, void *addr, size_t length, int advice)
{
	int rc = about_range(sys, OBMM_CALL_MADVISE, addr, length, (unsigned int)advice);

	return rc == OBMM_CALL_FOREIGN ? madvise(addr, length, advice) : rc;
}

int obmm_emulator_msync(struct obmm_sys *sys, void *addr, size_t length, int flags)
{
	int rc = about_range(sys, OBMM_CALL_MSYNC, addr, length, (unsigned int)flags);

	return rc == OBMM_CALL_FOREIGN ? msync(addr, length, flags) : rc;
}

void *obmm_emulator_mremap(struct obmm_sys *sys, void *addr, size_t old_length, size_t new_length, int flags,
			   void *new_addr)
{
	struct obmm_call call = {
		.request = {
			.call = OBMM_CALL_MREMAP,
			.arg = { (uintptr_t)addr, old_length, new_length, (unsigned int)flags,
				 (uintptr_t)new_addr },
		},
	};

	switch (forward(sys, &call)) {
	case 0:
		return (void *)(uintptr_t)call.value;
	case OBMM_CALL_FOREIGN:
		return mremap(addr, old_length, new_length, flags, new_addr);
	default:
		return MAP_FAILED;
	}
}

int64_t obmm_emulator_file(struct obmm_sys *sys, int fd, int operation, uint64_t a, uint64_t b, uint64_t c)
{
	struct obmm_call call = {
		.request = {
			.call = OBMM_CALL_FILE,
			.file = obmm_connection_file(connection_of(sys), fd),
			.arg = { operation, a, b, c },
		},
	};

	switch (call.request.file ? forward(sys, &call) : OBMM_CALL_FOREIGN) {
	case 0:
		return call.value;
	case OBMM_CALL_FOREIGN:
		errno = ENOTSUP;
		return -1;
	default:
		return -1;
	}
}

static int about_path(struct obmm_sys *sys, int number, const char *path, const uint64_t arg[3])
{
	const size_t size = strlen(path);
	struct obmm_call call = {
		.request = {
			.call = number,
			.size = size,
			.arg = { arg[0], arg[1], arg[2] },
		},
		.payload = path,
	};

	if (size > OBMM_WIRE_PAYLOAD_MAX) {
		errno = ENAMETOOLONG;
		return -1;
	}
	return forward(sys, &call);
}

int obmm_emulator_chmod(struct obmm_sys *sys, const char *path, unsigned int mode)
{
	return about_path(sys, OBMM_CALL_CHMOD, path, (uint64_t[]){ mode, geteuid(), 0 });
}

int obmm_emulator_chown(struct obmm_sys *sys, const char *path, unsigned int uid, unsigned int gid)
{
	return about_path(sys, OBMM_CALL_CHOWN, path, (uint64_t[]){ uid, gid, geteuid() });
}

int64_t obmm_emulator_opens(struct obmm_sys *sys, uint64_t mem_id)
{
	struct obmm_call call = { .request = { .call = OBMM_CALL_OPENS, .arg = { mem_id } } };
	int rc = obmm_connection_call(connection_of(sys), &call);

	return rc < 0 ? rc : call.value;
}

size_t obmm_emulator_device(struct obmm_sys *sys, int fd, char *device, size_t size)
{
	return obmm_connection_device(connection_of(sys), fd, device, size);
}

int obmm_emulator_is_open(struct obmm_sys *sys, int fd)
{
	return obmm_connection_file(connection_of(sys), fd) != 0;
}

int obmm_emulator_descriptor(struct obmm_sys *sys)
{
	return obmm_connection_descriptor(connection_of(sys));
}

void obmm_emulator_vacate(struct obmm_sys *sys, int fd)
{
	obmm_connection_vacate(connection_of(sys), fd);
}
