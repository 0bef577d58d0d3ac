/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The in-process mode: the calling thread itself runs the cluster's rules on
 * the locked shared file.  No daemon, no round trip (SDK specification 16.2).
 * There is no daemon to see a process die, so each call looks for those that did.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "standin.h"
#include "state.h"

/* calls read; coming and going write, and must not starve behind calls */
static pthread_rwlock_t inside = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
static struct standin_cluster *cluster;
static uint32_t self, session;
static unsigned long timeout_s;

/* With the cluster's lock: this process's number in it. */
static uint32_t enter(const struct standin_settings *settings, struct standin_welcome *welcome)
{
	struct standin_state *state = cluster->state;
	uint32_t node = standin_node(state, settings->node), number;

	if (node == STANDIN_NOBODY)
		return node;
	standin_bury(cluster);
	number = standin_enter(cluster, getpid(), settings->user[0] == UINT64_MAX ? getuid() : settings->user[0],
			       settings->user[1] == UINT64_MAX ? getgid() : settings->user[1], node, 0);
	if (number == STANDIN_NOBODY)
		return number;
	session = state->processes[number].session;
	timeout_s = settings->timeout_s;
	strcpy(welcome->socket, state->fabric);
	strcpy(welcome->node, state->nodes[node]);
	return number;
}

static void leave(void)
{
	standin_cluster_close(cluster);
	cluster = NULL;
}

int standin_direct_connect(const struct standin_settings *settings, struct standin_welcome *welcome)
{
	int code = UBSM_ERR_MEMLIB;

	pthread_rwlock_wrlock(&inside);
	if (!standin_cluster_open(settings->folder, &cluster)) {
		standin_lock(cluster->state);
		self = enter(settings, welcome);
		standin_unlock(cluster->state);
		if (self == STANDIN_NOBODY)
			leave();
		else
			code = UBSM_OK;
	}
	pthread_rwlock_unlock(&inside);
	return code;
}

void standin_direct_disconnect(void)
{
	pthread_rwlock_wrlock(&inside);
	standin_lock(cluster->state);
	standin_leave(cluster, self, session);
	standin_unlock(cluster->state);
	leave();
	pthread_rwlock_unlock(&inside);
}

static int answer(struct standin_turn *turn)
{
	struct timespec left = { timeout_s, 0 };
	int code;

	standin_lock(cluster->state);
	standin_bury(cluster);
	standin_unlock(cluster->state);
	code = standin_answer(turn);
	if (!turn->lost)
		return code;
	free(turn->body);
	turn->body = NULL;
	turn->size = 0;
	while (nanosleep(&left, &left) && errno == EINTR)
		;
	return UBSM_ERR_NET;
}

int standin_direct_call(const struct standin_request *request, const void *payload, void **body, size_t *size)
{
	struct standin_turn turn = { .request = request, .payload = payload };
	int code = UBSM_ERR_NET;

	pthread_rwlock_rdlock(&inside);
	if (cluster) {
		turn.cluster = cluster;
		turn.process = self;
		code = answer(&turn);
	}
	pthread_rwlock_unlock(&inside);
	*body = turn.body;
	*size = turn.size;
	return code;
}
