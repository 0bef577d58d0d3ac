/* SPDX-License-Identifier: Apache-2.0 */
#include "reader.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "wire.h"

/* With the lock. */
static int read_some(struct obmm_urma_reader *reader, const uint64_t *offsets, uint64_t n, uint32_t length,
		     struct obmm_fault *fault)
{
	struct obmm_urma_batch batch = reader->way;
	struct obmm_urma_outcome outcome;
	int rc;

	batch.opcode = OBMM_URMA_READ;
	batch.offsets = offsets;
	batch.lengths = NULL;
	batch.length = length;
	batch.n = n;
	rc = reader->path ? obmm_urma_transfer(reader->path, &batch, &outcome) : -ESHUTDOWN;
	if (!rc)
		return 0;
	if (!reader->path)
		memset(&outcome, 0, sizeof(outcome));
	reader->last = outcome;
	reader->result = rc;
	memset(fault, 0, sizeof(*fault));
	fault->offset = fault->address = outcome.index < n ? offsets[outcome.index] : 0;
	fault->signo = SIGBUS; /* the memory did not answer, as far as a gather is concerned */
	fault->code = rc;
	return -EFAULT;
}

static int read_rows(void *context, const uint64_t *offsets, uint8_t *const *out, size_t n, uint32_t row_bytes,
		     struct obmm_fault *fault)
{
	struct obmm_urma_reader *reader = context;
	const uint64_t most = reader->way.local_bytes / row_bytes;
	int rc = most ? 0 : -EFAULT;

	pthread_mutex_lock(reader->lock);
	for (size_t from = 0; from < n && !rc;) {
		const uint64_t some = n - from < most ? n - from : most;
		const uint8_t *landing = (const uint8_t *)(uintptr_t)reader->way.local;

		rc = read_some(reader, offsets + from, some, row_bytes, fault);
		for (uint64_t i = 0; i < some && !rc; i++)
			memcpy(out[from + i], landing + i * row_bytes, row_bytes);
		from += some;
	}
	pthread_mutex_unlock(reader->lock);
	return rc;
}

static int read_version(void *context, uint64_t *version, struct obmm_fault *fault)
{
	struct obmm_urma_reader *reader = context;
	int rc = 0;

	*version = 0;
	if (reader->version == UINT64_MAX)
		return 0;
	pthread_mutex_lock(reader->lock);
	rc = read_some(reader, &reader->version, 1, sizeof(*version), fault);
	if (!rc)
		memcpy(version, (const void *)(uintptr_t)reader->way.local, sizeof(*version));
	pthread_mutex_unlock(reader->lock);
	return rc;
}

int obmm_urma_reader_init(struct obmm_urma_reader *reader)
{
	pthread_mutex_t *lock = calloc(1, sizeof(*lock));

	if (!lock)
		return -ENOMEM;
	pthread_mutex_init(lock, NULL);
	reader->lock = lock;
	reader->fetch = (struct obmm_fetch){ .context = reader, .rows = read_rows, .version = read_version };
	return 0;
}

void obmm_urma_reader_end(struct obmm_urma_reader *reader)
{
	free(reader->lock);
	reader->lock = NULL;
}

void obmm_urma_reader_switch(struct obmm_urma_reader *reader, struct obmm_urma_path *path,
			     const struct obmm_urma_batch *way)
{
	pthread_mutex_lock(reader->lock);
	reader->path = path;
	if (way)
		reader->way = *way;
	pthread_mutex_unlock(reader->lock);
}
