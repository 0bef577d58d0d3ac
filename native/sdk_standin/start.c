/* SPDX-License-Identifier: Apache-2.0 */
/* Start, log and faults (SDK specification 5, 10). */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "standin.h"

const char *ubsmem_standin_version(void)
{
	return "obmm stand-in 1: daemon mode on the OBMM emulator";
}

int ubsmem_init_attributes(ubsmem_options_t *options)
{
	return options ? UBSM_OK : UBSM_ERR_PARAM_INVALID;
}

int ubsmem_initialize(const ubsmem_options_t *options)
{
	return options ? standin_connect() : UBSM_ERR_PARAM_INVALID;
}

int ubsmem_finalize(void)
{
	standin_disconnect();
	return UBSM_OK;
}

/* the stand-in logs nothing */
int ubsmem_set_logger_level(int level)
{
	return level >= 0 && level <= 4 ? UBSM_OK : UBSM_ERR_PARAM_INVALID;
}

int ubsmem_set_extern_logger(ubsmem_logger_func logger)
{
	return logger ? UBSM_OK : UBSM_ERR_PARAM_INVALID;
}

static pthread_mutex_t faults_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(shmem_faults_func) faults_callback;
static atomic_int subscribed;

/* Events are answers with the kind as their code and the object's name as their body. */
static void *watch_faults(void *socket)
{
	struct standin_answer event;
	char name[64];
	int fd = (intptr_t)socket;

	while (recv(fd, &event, sizeof(event), MSG_WAITALL) == sizeof(event) && event.size < sizeof(name) &&
	       recv(fd, name, event.size, MSG_WAITALL) == (ssize_t)event.size) {
		name[event.size] = '\0';
		atomic_load(&faults_callback)(name, event.code);
	}
	close(fd);
	subscribed = 0;
	return NULL;
}

int ubsmem_shmem_faults_register(shmem_faults_func callback)
{
	struct standin_request request = { .op = STANDIN_SUBSCRIBE };
	struct standin_welcome welcome;
	struct standin_answer answer;
	pthread_t thread;
	int fd, code = UBSM_OK;

	if (!callback)
		return UBSM_ERR_PARAM_INVALID;
	pthread_mutex_lock(&faults_lock);
	atomic_store(&faults_callback, callback);
	if (subscribed)
		goto out;
	code = UBSM_ERR_UBSE;
	fd = standin_dial(&welcome);
	if (fd < 0)
		goto out;
	if (send(fd, &request, sizeof(request), MSG_NOSIGNAL) != sizeof(request) ||
	    recv(fd, &answer, sizeof(answer), MSG_WAITALL) != sizeof(answer) || answer.code) {
		close(fd);
		goto out;
	}
	subscribed = 1;
	if (pthread_create(&thread, NULL, watch_faults, (void *)(intptr_t)fd)) {
		subscribed = 0;
		close(fd);
		goto out;
	}
	pthread_detach(thread);
	code = UBSM_OK;
out:
	pthread_mutex_unlock(&faults_lock);
	return code;
}
