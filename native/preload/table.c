/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The emulator's client inside this library: the same sources, with their
 * system calls going past the replacements and their memory past the program's
 * allocator, which may be what is being started right now.
 */
#include "flags.h"

#include "raw.h"

#include <stdlib.h>
#include <sys/socket.h>

#define mmap raw_mmap
#define mremap raw_mremap
#define munmap raw_munmap
#define mprotect raw_mprotect
#define madvise raw_madvise
#define msync raw_msync
#define ioctl raw_ioctl
#define close raw_close
#define fstat raw_fstat
#define fcntl(fd, command, ...) raw_fcntl(fd, command, (void *)(uintptr_t)(__VA_ARGS__ + 0))
#define readlink raw_readlink
#define sendmsg raw_sendmsg
#define connect(fd, address, size) raw_connect(fd, address, size)
#define calloc raw_calloc
#define free raw_free

#include "../emulator/connection.c"
#include "../emulator/client.c"
