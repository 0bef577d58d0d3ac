/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What stand-ins of vendor libraries have in common: a state in one file that
 * all their processes map and lock, and who of them lives.
 */
#ifndef STANDIN_SHARED_H
#define STANDIN_SHARED_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

/* When a living process started, in ticks since boot; 0 for none, or its remains. */
uint64_t standin_started(int32_t pid);

/*
 * FOLDER/state: a new file of `size` zero bytes, mapped; the disk's blocks of
 * the first `reserve` are taken now.  0 or a negative errno; then no file is left.
 */
int standin_file_create(const char *folder, size_t size, size_t reserve, void **out);
/* The same file, which must have exactly `size` bytes; else -EPROTO. */
int standin_file_open(const char *folder, size_t size, void **out);
void standin_file_remove(const char *folder);

/* Take the disk's blocks of a part of it: a store where it has none is a SIGBUS.  -1 when the disk is full. */
int standin_room_for(void *start, size_t size);

/* A lock in the file that the next one gets when its holder is killed. */
int standin_mutex_init(pthread_mutex_t *lock);
void standin_mutex_lock(pthread_mutex_t *lock);

#endif
