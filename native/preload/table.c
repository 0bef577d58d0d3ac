/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The emulator's client inside this library: the same sources, with their
 * system calls going past the replacements.
 */
#include <stdint.h>

#include "raw.h"

#define mmap raw_mmap
#define mremap raw_mremap
#define munmap raw_munmap
#define mprotect raw_mprotect
#define madvise raw_madvise
#define msync raw_msync
#define ioctl raw_ioctl
#define close raw_close
#define fstat raw_fstat
#define fcntl(fd, command, arg) raw_fcntl(fd, command, (void *)(uintptr_t)(arg))

#include "../emulator/connection.c"
#include "../emulator/client.c"
