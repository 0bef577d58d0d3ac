/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fault callbacks (SDK specification 10).  They do not come from the daemon:
 * the real ones come from the UB engine, these from the shared file.
 */
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "standin.h"
#include "state.h"

static pthread_mutex_t registering = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(shmem_faults_func) callback;
/* whose file a thread watches, and in which process: a forked child has none */
static char watched[256];
static pid_t watcher;

struct watch {
	struct standin_state *state;
	uint32_t seen;
};

static void *work(void *argument)
{
	struct watch *watch = argument;
	struct standin_state *state = watch->state;

	for (;;) {
		struct standin_event event;
		int due;

		standin_lock(state);
		/* what a slow callback has missed is gone, as from any log that goes round */
		if (state->fired - watch->seen > STANDIN_EVENTS)
			watch->seen = state->fired - STANDIN_EVENTS;
		due = state->fired != watch->seen;
		if (due)
			event = state->events[watch->seen++ % STANDIN_EVENTS];
		standin_unlock(state);
		if (due)
			atomic_load(&callback)(event.name, event.kind);
		else
			syscall(SYS_futex, &state->fired, FUTEX_WAIT, watch->seen, NULL, NULL, 0);
	}
	return NULL;
}

/* From here on, this process's number is among those that hear of faults. */
static int listen_to(struct standin_state *state, uint32_t *seen)
{
	struct standin_listener *room = NULL;

	standin_lock(state);
	for (uint32_t i = 0; i < STANDIN_LISTENERS; i++)
		if (!state->listeners[i].pid)
			room = &state->listeners[i];
	if (room)
		*room = (struct standin_listener){ .pid = getpid(), .started = standin_started(getpid()) };
	*seen = state->fired;
	standin_unlock(state);
	return room ? 0 : -1;
}

static int watch(const char *folder)
{
	struct watch *made = malloc(sizeof(*made));
	pthread_t thread;

	if (!made || standin_state_open(folder, &made->state)) {
		free(made);
		return UBSM_ERR_UBSE;
	}
	if (listen_to(made->state, &made->seen) || pthread_create(&thread, NULL, work, made)) {
		standin_state_close(made->state);
		free(made);
		return UBSM_ERR_UBSE;
	}
	pthread_detach(thread);
	snprintf(watched, sizeof(watched), "%s", folder);
	watcher = getpid();
	return UBSM_OK;
}

int ubsmem_shmem_faults_register(shmem_faults_func wanted)
{
	struct standin_settings settings;
	int code = UBSM_OK;

	if (!wanted)
		return UBSM_ERR_PARAM_INVALID;
	standin_read_settings(&settings);
	pthread_mutex_lock(&registering);
	atomic_store(&callback, wanted);
	if (watcher != getpid() || strcmp(watched, settings.folder))
		code = watch(settings.folder);
	pthread_mutex_unlock(&registering);
	return code;
}
