/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connection to the daemon.  A worker thread sends and receives, so that a
 * round trip wakes as many threads as the real library's (SDK specification
 * 16.2); callers wait on a condition.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "standin.h"

struct trip {
	struct trip *next;
	struct standin_request request;
	const void *payload;
	void *body;
	size_t size;
	int code;
	int sent, done;
};

static pthread_mutex_t lifetime = PTHREAD_MUTEX_INITIALIZER; /* connect and disconnect */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct trip *trips;
static uint32_t next_id;
static int alive, stopping;
static int sock = -1, wake = -1;
static pid_t owner;
static pthread_t worker;
static int has_worker;
static struct obmm_sys *sys;
static unsigned long timeout_s = 60;
static atomic_uint_fast64_t round_trips, system_calls;

struct obmm_sys *standin_sys(void)
{
	return sys;
}

void standin_count_calls(unsigned int n)
{
	system_calls += n;
}

void ubsmem_standin_counters(uint64_t *trips_done, uint64_t *calls_done)
{
	*trips_done = round_trips;
	*calls_done = system_calls;
}

static int send_all(int fd, const void *data, size_t size)
{
	for (const char *at = data; size;) {
		ssize_t n = send(fd, at, size, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return -1;
		at += n;
		size -= n;
	}
	return 0;
}

static int receive_all(int fd, void *data, size_t size)
{
	for (char *at = data; size;) {
		ssize_t n = recv(fd, at, size, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return -1;
		at += n;
		size -= n;
	}
	return 0;
}

/* "uid:gid" that the daemon takes instead of the peer credentials: an emulated cluster belongs to one user. */
static void read_identity(uint64_t arg[2])
{
	const char *text = getenv("OBMM_SDK_STANDIN_USER");
	char *end;

	arg[0] = arg[1] = UINT64_MAX;
	if (!text)
		return;
	arg[0] = strtoul(text, &end, 10);
	arg[1] = *end == ':' ? strtoul(end + 1, NULL, 10) : arg[0];
}

int standin_dial(struct standin_welcome *welcome)
{
	const char *path = getenv("OBMM_SDK_STANDIN"), *node = getenv("OBMM_SDK_STANDIN_NODE");
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct standin_request hello = { .op = STANDIN_HELLO };
	struct standin_answer answer;
	int fd, error = ECONNREFUSED;

	if (!path || strlen(path) >= sizeof(address.sun_path))
		return -ENOENT;
	strcpy(address.sun_path, path);
	strncpy(hello.name, node ? node : "", sizeof(hello.name) - 1);
	read_identity(hello.arg);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (connect(fd, (struct sockaddr *)&address, sizeof(address))) {
		error = errno;
		goto fail;
	}
	if (send_all(fd, &hello, sizeof(hello)) || receive_all(fd, &answer, sizeof(answer)) || answer.code ||
	    answer.size != sizeof(*welcome) || receive_all(fd, welcome, sizeof(*welcome)))
		goto fail;
	return fd;
fail:
	close(fd);
	return -error;
}

static struct trip *find(uint32_t id)
{
	struct trip *trip = trips;

	while (trip && trip->request.id != id)
		trip = trip->next;
	return trip;
}

static int send_waiting(void)
{
	uint64_t n;
	int rc = 0;

	if (read(wake, &n, sizeof(n)) < 0)
		return -1;
	pthread_mutex_lock(&lock);
	for (struct trip *trip = trips; trip && !rc; trip = trip->next) {
		if (trip->sent)
			continue;
		trip->sent = 1;
		rc = send_all(sock, &trip->request, sizeof(trip->request)) ||
		     (trip->request.size && send_all(sock, trip->payload, trip->request.size));
	}
	if (stopping)
		rc = -1;
	pthread_mutex_unlock(&lock);
	return rc;
}

static int receive_answer(void)
{
	struct standin_answer answer;
	struct trip *trip;
	void *body = NULL;

	if (receive_all(sock, &answer, sizeof(answer)))
		return -1;
	if (answer.size) {
		body = malloc(answer.size);
		if (!body || receive_all(sock, body, answer.size)) {
			free(body);
			return -1;
		}
	}
	pthread_mutex_lock(&lock);
	trip = find(answer.id);
	if (trip) { /* else its caller's time was up */
		trip->code = answer.code;
		trip->body = body;
		trip->size = answer.size;
		trip->done = 1;
		body = NULL;
		pthread_cond_broadcast(&changed);
	}
	pthread_mutex_unlock(&lock);
	free(body);
	return 0;
}

static void *work(void *unused)
{
	struct pollfd events[2] = { { .fd = sock, .events = POLLIN }, { .fd = wake, .events = POLLIN } };

	(void)unused;
	for (;;) {
		if (poll(events, 2, -1) < 0 && errno != EINTR)
			break;
		if (events[1].revents && send_waiting())
			break;
		if (events[0].revents && receive_answer())
			break;
	}
	pthread_mutex_lock(&lock);
	alive = 0;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	return NULL;
}

/* With `lifetime` held and no worker alive. */
static void clear(void)
{
	if (has_worker)
		pthread_join(worker, NULL);
	has_worker = 0;
	if (sock >= 0)
		close(sock);
	if (wake >= 0)
		close(wake);
	sock = wake = -1;
}

int standin_connect(void)
{
	const char *seconds = getenv("MXM_CHANNEL_TIMEOUT");
	struct standin_welcome welcome;
	int code = UBSM_ERR_MEMLIB, running;

	pthread_mutex_lock(&lifetime);
	pthread_mutex_lock(&lock);
	running = alive;
	pthread_mutex_unlock(&lock);
	if (running) {
		code = UBSM_OK;
		goto out;
	}
	clear();
	timeout_s = seconds && strtoul(seconds, NULL, 10) ? strtoul(seconds, NULL, 10) : 60;
	sock = standin_dial(&welcome);
	if (sock < 0)
		goto out;
	/* one node per process: mappings of an earlier connection still need its table */
	if (!sys && obmm_sys_emulator(welcome.socket, welcome.node, &sys))
		goto close;
	wake = eventfd(0, EFD_CLOEXEC);
	if (wake < 0)
		goto close;
	owner = getpid();
	stopping = 0;
	alive = 1;
	if (pthread_create(&worker, NULL, work, NULL)) {
		alive = 0;
		goto close;
	}
	has_worker = 1;
	code = UBSM_OK;
	goto out;
close:
	clear();
out:
	pthread_mutex_unlock(&lifetime);
	return code;
}

void standin_disconnect(void)
{
	const uint64_t one = 1;

	pthread_mutex_lock(&lifetime);
	if (has_worker && owner == getpid()) {
		pthread_mutex_lock(&lock);
		stopping = 1;
		pthread_mutex_unlock(&lock);
		if (write(wake, &one, sizeof(one)) < 0)
			shutdown(sock, SHUT_RDWR);
		clear();
	}
	pthread_mutex_unlock(&lifetime);
}

int standin_call(struct standin_request *request, const void *payload, void **body, size_t *size)
{
	struct trip trip = { .request = *request, .payload = payload };
	const uint64_t one = 1;
	struct timespec until;

	if (body)
		*body = NULL;
	if (size)
		*size = 0;
	pthread_mutex_lock(&lock);
	/* the real library blocks for ever in a forked child; nobody wants that of a stand-in */
	if (!alive || owner != getpid()) {
		pthread_mutex_unlock(&lock);
		return UBSM_ERR_NET;
	}
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += timeout_s;
	trip.request.id = ++next_id;
	trip.next = trips;
	trips = &trip;
	round_trips++;
	if (write(wake, &one, sizeof(one)) < 0)
		alive = 0;
	while (alive && !trip.done)
		if (pthread_cond_timedwait(&changed, &lock, &until))
			break;
	for (struct trip **at = &trips; *at; at = &(*at)->next) {
		if (*at == &trip) {
			*at = trip.next;
			break;
		}
	}
	pthread_mutex_unlock(&lock);
	if (!trip.done)
		return UBSM_ERR_NET;
	if (body)
		*body = trip.body;
	else
		free(trip.body);
	if (size)
		*size = trip.size;
	return trip.code;
}
