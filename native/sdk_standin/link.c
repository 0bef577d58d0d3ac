/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connection to the daemon.  A worker thread sends and receives, so that a
 * round trip wakes as many threads as the real library's (SDK specification
 * 16.2); callers wait on a condition.  When the daemon ends, the worker dials
 * until it is back, and then tells what this process still uses (5).
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "standin.h"

struct trip {
	struct trip *next;
	struct standin_request request;
	const void *payload;
	void *body;
	size_t size;
	unsigned int connection;
	int code;
	int sent, done;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct trip *trips;
static uint32_t next_id;
static unsigned int connection; /* which one; its trips die with it */
static int alive, stopping;
static int sock = -1, wake = -1; /* the worker's, while there is one */
static struct standin_settings settings;
static pthread_t worker;

static struct trip *find(uint32_t id)
{
	struct trip *trip = trips;

	while (trip && trip->request.id != id)
		trip = trip->next;
	return trip;
}

static int send_one(const struct standin_request *request, const void *payload)
{
	return standin_send(sock, request, sizeof(*request)) ||
	       (request->size && standin_send(sock, payload, request->size));
}

static int send_waiting(void)
{
	uint64_t n;
	int rc = 0;

	if (read(wake, &n, sizeof(n)) < 0)
		return -1;
	pthread_mutex_lock(&lock);
	for (struct trip *trip = trips; trip && !rc; trip = trip->next) {
		if (trip->sent || trip->connection != connection)
			continue;
		trip->sent = 1;
		rc = send_one(&trip->request, trip->payload);
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

	if (standin_receive(sock, &answer, sizeof(answer)))
		return -1;
	if (answer.size) {
		body = malloc(answer.size);
		if (!body || standin_receive(sock, body, answer.size)) {
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

/* Until the connection or the process's use of it ends.  Whether to connect again. */
static int exchange(void)
{
	struct pollfd events[2] = { { .fd = sock, .events = POLLIN }, { .fd = wake, .events = POLLIN } };
	int again;

	for (;;) {
		if (poll(events, 2, -1) < 0) {
			if (errno == EINTR)
				continue;
			break;
		}
		if (events[1].revents && send_waiting())
			break;
		if (events[0].revents && receive_answer())
			break;
	}
	pthread_mutex_lock(&lock);
	alive = 0;
	again = !stopping;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	return again;
}

/* One round trip of the worker's own. */
static int tell(enum standin_op op, void *list, size_t size)
{
	struct standin_request request = { .op = op, .size = size };
	struct standin_answer answer;
	int rc = send_one(&request, list) || standin_receive(sock, &answer, sizeof(answer)) || answer.size;

	standin_count_trip();
	free(list);
	return rc;
}

static int come_back(void)
{
	struct standin_welcome welcome;
	void *list;
	size_t size;

	sock = standin_dial(&settings, 1, &welcome);
	if (sock < 0)
		return -1;
	list = standin_table_leases(&size);
	if (!tell(STANDIN_STILL_LEASES, list, size)) {
		list = standin_table_names(&size);
		if (!tell(STANDIN_STILL_OBJECTS, list, size))
			return 0;
	}
	close(sock);
	sock = -1;
	return -1;
}

/* Whether there is a connection again; else the process wants none any more. */
static int reconnect(void)
{
	struct pollfd event = { .fd = wake, .events = POLLIN };
	uint64_t n;
	int stop;

	close(sock);
	sock = -1;
	do {
		/* about every second (5) */
		if (poll(&event, 1, settings.second_ms) > 0 && read(wake, &n, sizeof(n)) < 0)
			return 0;
		pthread_mutex_lock(&lock);
		stop = stopping;
		pthread_mutex_unlock(&lock);
	} while (!stop && come_back());
	pthread_mutex_lock(&lock);
	connection++;
	alive = !stop;
	pthread_mutex_unlock(&lock);
	return !stop;
}

static void *work(void *unused)
{
	(void)unused;
	while (exchange() && reconnect())
		;
	return NULL;
}

static void close_all(void)
{
	if (sock >= 0)
		close(sock);
	if (wake >= 0)
		close(wake);
	sock = wake = -1;
}

int standin_link_connect(const struct standin_settings *wanted, struct standin_welcome *welcome)
{
	int code = UBSM_ERR_MEMLIB;

	sock = standin_dial(wanted, 0, welcome);
	if (sock < 0)
		return code;
	pthread_mutex_lock(&lock);
	settings = *wanted;
	stopping = 0;
	connection++;
	wake = eventfd(0, EFD_CLOEXEC);
	alive = wake >= 0 && !pthread_create(&worker, NULL, work, NULL);
	if (alive)
		code = UBSM_OK;
	else
		close_all();
	pthread_mutex_unlock(&lock);
	return code;
}

void standin_link_disconnect(void)
{
	const uint64_t one = 1;

	pthread_mutex_lock(&lock);
	stopping = 1;
	pthread_mutex_unlock(&lock);
	if (write(wake, &one, sizeof(one)) == sizeof(one))
		pthread_join(worker, NULL);
	close_all();
}

int standin_link_call(const struct standin_request *request, const void *payload, void **body, size_t *size)
{
	struct trip trip = { .request = *request, .payload = payload };
	const uint64_t one = 1;
	struct timespec until;

	pthread_mutex_lock(&lock);
	if (!alive) {
		pthread_mutex_unlock(&lock);
		return UBSM_ERR_NET;
	}
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += settings.timeout_s;
	trip.request.id = ++next_id;
	trip.connection = connection;
	trip.next = trips;
	trips = &trip;
	standin_count_trip();
	if (write(wake, &one, sizeof(one)) < 0)
		trip.connection--; /* it will not be sent */
	while (alive && trip.connection == connection && !trip.done)
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
	*body = trip.body;
	*size = trip.size;
	return trip.code;
}
