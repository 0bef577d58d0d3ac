/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests over one unix socket per process (docs/emulator.md, "Wire
 * protocol").  Nothing here decides: the server answers, this file executes.
 */
#include "connection.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

/* Out of the way of programs that dup2 to small numbers. */
#define DESCRIPTOR_FLOOR 200
/* A server that accepts but says nothing is stopped or none. */
#define WELCOME_SECONDS 10

struct obmm_connection {
	struct obmm_connection *next;
	unsigned int users;
	pthread_mutex_t lock; /* one request at a time */
	_Atomic pid_t pid;    /* whose connection `fd` is */
	_Atomic int fd;	      /* -1: none yet in this process */
	_Atomic ino_t inode;  /* of fd: programs that close everything close it too */
	uint32_t tag;	      /* of the fabric whose open files are ours */
	char socket_path[sizeof(((struct sockaddr_un *)0)->sun_path)];
	char node[OBMM_WIRE_NAME_MAX];
	char root[OBMM_WIRE_ROOT_MAX];
};

/*
 * Every connection of the process.  Global because fork is: the child must
 * close the descriptors that it inherits, or its life would hide its parent's
 * death from the server.  The lock also keeps fork away from a mapping that is
 * made but not yet marked DONTFORK.
 */
static struct obmm_connection *connections;
static pthread_mutex_t fork_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void before_fork(void)
{
	pthread_mutex_lock(&fork_lock);
}

static void after_fork_in_parent(void)
{
	pthread_mutex_unlock(&fork_lock);
}

static void disown(struct obmm_connection *c)
{
	/* another thread of the parent may have held the lock in the middle of a request */
	pthread_mutex_init(&c->lock, NULL);
	if (c->fd >= 0)
		close(c->fd);
	c->fd = -1;
	c->pid = getpid();
}

static void after_fork_in_child(void)
{
	for (struct obmm_connection *c = connections; c; c = c->next)
		disown(c);
	pthread_mutex_unlock(&fork_lock);
}

static void register_fork(void)
{
	pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* A handler that runs during a request must not start another on the same thread. */
struct quiet {
	sigset_t mask;
	int cancel;
};

static void be_quiet(struct quiet *quiet)
{
	sigset_t all;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &quiet->mask);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &quiet->cancel);
}

static void end_quiet(const struct quiet *quiet)
{
	pthread_setcancelstate(quiet->cancel, NULL);
	pthread_sigmask(SIG_SETMASK, &quiet->mask, NULL);
}

static int send_parts(int fd, struct iovec *parts, int count)
{
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = count };

	while (message.msg_iovlen) {
		ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);

		if (sent < 0) {
			if (errno == EINTR)
				continue;
			return errno == EFAULT ? -EFAULT : -ESHUTDOWN;
		}
		while (message.msg_iovlen && (size_t)sent >= message.msg_iov->iov_len) {
			sent -= message.msg_iov->iov_len;
			message.msg_iov++;
			message.msg_iovlen--;
		}
		if (message.msg_iovlen) {
			message.msg_iov->iov_base = (char *)message.msg_iov->iov_base + sent;
			message.msg_iov->iov_len -= sent;
		}
	}
	return 0;
}

/*
 * A frame of at most header + OBMM_WIRE_PAYLOAD_MAX is one socket buffer: on
 * EFAULT nothing of it was sent, and the request goes again without payload.
 */
static int send_request(int fd, struct obmm_wire_request *request, const void *payload)
{
	struct iovec parts[2] = {
		{ .iov_base = request, .iov_len = sizeof(*request) },
		{ .iov_base = (void *)payload, .iov_len = request->size },
	};
	int rc = send_parts(fd, parts, request->size ? 2 : 1);

	if (rc != -EFAULT)
		return rc;
	request->size = 0;
	request->flags |= OBMM_REQUEST_FAULT;
	parts[0] = (struct iovec){ .iov_base = request, .iov_len = sizeof(*request) };
	return send_parts(fd, parts, 1);
}

static int receive(int fd, void *buffer, size_t size)
{
	while (size) {
		ssize_t got = recv(fd, buffer, size, MSG_WAITALL);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && errno == EFAULT)
			return -EFAULT;
		if (got <= 0)
			return -ESHUTDOWN;
		buffer = (char *)buffer + got;
		size -= got;
	}
	return 0;
}

/* An answer's header and the descriptors that travel with it. */
static int receive_answer(int fd, struct obmm_wire_answer *answer, int *descriptors, unsigned int *count, int flags)
{
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(OBMM_WIRE_DESCRIPTORS_MAX * sizeof(int))];
	} control;
	struct iovec part = { .iov_base = answer, .iov_len = sizeof(*answer) };
	struct msghdr message = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	ssize_t got;

	*count = 0;
	do
		got = recvmsg(fd, &message, MSG_WAITALL | flags);
	while (got < 0 && errno == EINTR);
	if (got <= 0)
		return -ESHUTDOWN;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		*count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		memcpy(descriptors, CMSG_DATA(c), *count * sizeof(int));
	}
	if ((size_t)got < sizeof(*answer))
		return receive(fd, (char *)answer + got, sizeof(*answer) - got);
	return 0;
}

static int map_piece(const struct obmm_wire_action *action, int fd)
{
	void *address = (void *)(uintptr_t)action->address;
	int rc = 0;

	pthread_mutex_lock(&fork_lock);
	if (mmap(address, action->length, action->prot, MAP_SHARED | MAP_FIXED, fd, action->offset) == MAP_FAILED ||
	    madvise(address, action->length, MADV_DONTFORK) || madvise(address, action->length, MADV_DONTDUMP))
		rc = -errno;
	pthread_mutex_unlock(&fork_lock);
	return rc;
}

static int execute(const struct obmm_wire_action *action, const int *descriptors, unsigned int count)
{
	void *address = (void *)(uintptr_t)action->address;

	switch (action->kind) {
	case OBMM_ACTION_MAP:
		/* the kernel drops descriptors that exceed this process's limit */
		if (action->descriptor >= count)
			return -EMFILE;
		return map_piece(action, descriptors[action->descriptor]);
	case OBMM_ACTION_PROTECT:
		return mprotect(address, action->length, action->prot) ? -errno : 0;
	case OBMM_ACTION_UNMAP:
		return munmap(address, action->length) ? -errno : 0;
	default:
		return -EPROTO;
	}
}

/* The answer's actions in order, up to the first that fails: its errno goes to *failed. */
static int receive_actions(int fd, const struct obmm_wire_answer *answer, const int *descriptors,
			   unsigned int count, int *failed)
{
	struct obmm_wire_action actions[OBMM_WIRE_ACTIONS_MAX];
	int rc;

	if (answer->actions > OBMM_WIRE_ACTIONS_MAX)
		return -ESHUTDOWN;
	rc = receive(fd, actions, answer->actions * sizeof(*actions));
	for (unsigned int i = 0; !rc && !*failed && i < answer->actions; i++)
		*failed = execute(&actions[i], descriptors, count);
	return rc;
}

/* Straight to the caller's pointer; what the kernel refuses to store there is still taken off the stream. */
static int receive_copy_back(int fd, const struct obmm_wire_answer *answer, int *failed)
{
	uint64_t left = answer->length;
	char *to = (char *)(uintptr_t)answer->address;
	char drain[512];

	while (left) {
		size_t part = left;
		ssize_t got;

		if (*failed && part > sizeof(drain))
			part = sizeof(drain);
		got = recv(fd, *failed ? drain : to, part, 0);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && errno == EFAULT && !*failed) {
			*failed = -EFAULT;
			continue;
		}
		if (got <= 0)
			return -ESHUTDOWN;
		to += got;
		left -= got;
	}
	return 0;
}

static int converse(struct obmm_connection *c, struct obmm_call *call)
{
	int descriptors[OBMM_WIRE_DESCRIPTORS_MAX];
	struct obmm_wire_answer answer;
	unsigned int count;
	int failed = 0;	  /* an action: the server takes the call's effects back */
	int unstored = 0; /* the copy-back: the call's effects stay (rule D5) */
	int rc = send_request(c->fd, &call->request, call->payload);

	while (!rc) {
		int flags = call->request.call == OBMM_CALL_OPEN && !call->keep_flags ? 0 : MSG_CMSG_CLOEXEC;
		struct obmm_wire_request more = { .call = OBMM_CALL_MEMORY };

		rc = receive_answer(c->fd, &answer, descriptors, &count, flags);
		if (rc)
			break;
		rc = receive_actions(c->fd, &answer, descriptors, count, &failed);
		if (call->request.call == OBMM_CALL_OPEN && answer.descriptors == 1 && !answer.error) {
			call->descriptor = count == 1 ? descriptors[0] : -EMFILE;
			count = 0;
		}
		while (count)
			close(descriptors[--count]);
		if (rc)
			break;

		switch (answer.kind) {
		case OBMM_ANSWER_NEED:
			if (answer.length > OBMM_WIRE_PAYLOAD_MAX)
				return -ESHUTDOWN;
			more.size = answer.length;
			rc = send_request(c->fd, &more, (void *)(uintptr_t)answer.address);
			break;
		case OBMM_ANSWER_MORE:
			break;
		case OBMM_ANSWER_FOREIGN:
			return OBMM_CALL_FOREIGN;
		case OBMM_ANSWER_DONE:
			rc = receive_copy_back(c->fd, &answer, &unstored);
			if (!rc && failed) {
				struct obmm_call undo = {
					.request = { .call = OBMM_CALL_UNDO, .arg = { -failed } },
				};

				rc = converse(c, &undo);
				return rc == -ESHUTDOWN ? rc : failed;
			}
			call->answered = !rc;
			if (rc || unstored)
				return rc ? rc : unstored;
			call->value = answer.value;
			return -answer.error;
		default:
			return -ESHUTDOWN;
		}
	}
	return rc;
}

static ino_t inode_of(int fd)
{
	struct stat st;

	return fstat(fd, &st) || !S_ISSOCK(st.st_mode) ? 0 : st.st_ino;
}

static int hello(struct obmm_connection *c, int fd)
{
	struct obmm_wire_hello hello = {
		.magic = OBMM_WIRE_MAGIC,
		.version = OBMM_WIRE_VERSION,
		.kind = OBMM_WIRE_CALLS,
	};
	struct obmm_wire_welcome welcome;
	struct iovec part = { .iov_base = &hello, .iov_len = sizeof(hello) };
	int rc;

	memcpy(hello.node, c->node, sizeof(hello.node));
	rc = send_parts(fd, &part, 1);
	if (!rc)
		rc = receive(fd, &welcome, sizeof(welcome));
	if (rc)
		return rc;
	if (welcome.magic != OBMM_WIRE_MAGIC)
		return -EPROTO;
	if (welcome.error)
		return -welcome.error;
	c->tag = welcome.tag;
	memcpy(c->node, welcome.node, sizeof(c->node));
	memcpy(c->root, welcome.root, sizeof(c->root));
	c->node[sizeof(c->node) - 1] = 0;
	c->root[sizeof(c->root) - 1] = 0;
	return 0;
}

static int establish(struct obmm_connection *c)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct timeval patience = { .tv_sec = WELCOME_SECONDS };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int high, rc;

	if (fd < 0)
		return -errno;
	high = fcntl(fd, F_DUPFD_CLOEXEC, DESCRIPTOR_FLOOR);
	if (high >= 0) {
		close(fd);
		fd = high;
	}
	memcpy(address.sun_path, c->socket_path, sizeof(address.sun_path));
	do
		rc = connect(fd, (struct sockaddr *)&address, sizeof(address)) ? -errno : 0;
	while (rc == -EINTR);
	if (!rc) {
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
		rc = hello(c, fd);
		patience.tv_sec = 0;
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	}
	if (rc) {
		close(fd);
		return rc;
	}
	c->fd = fd;
	c->inode = inode_of(fd);
	c->pid = getpid();
	return 0;
}

/* With c->lock held: a connection of this very process. */
static int ensure(struct obmm_connection *c)
{
	int rc;

	if (c->fd >= 0 && inode_of(c->fd) != c->inode)
		c->fd = -1; /* the program closed it, perhaps reused its number: not ours to close */
	if (c->fd >= 0)
		return 0;
	rc = establish(c);
	return rc == -ENOENT || rc == -ECONNREFUSED ? -ESHUTDOWN : rc;
}

int obmm_connection_call(struct obmm_connection *c, struct obmm_call *call)
{
	struct quiet quiet;
	int rc;

	if (c->pid != getpid())
		disown(c); /* a fork that ran no handlers: clone(2) by hand */
	be_quiet(&quiet);
	pthread_mutex_lock(&c->lock);
	rc = ensure(c);
	if (!rc)
		rc = converse(c, call);
	if (rc == -ESHUTDOWN && c->fd >= 0)
		shutdown(c->fd, SHUT_RDWR); /* never guess where the next answer starts */
	pthread_mutex_unlock(&c->lock);
	end_quiet(&quiet);
	return rc;
}

uint64_t obmm_connection_file(struct obmm_connection *c, int fd)
{
	struct stat st;

	return obmm_connection_device(c, fd, NULL, 0) && !fstat(fd, &st) ? st.st_ino : 0;
}

size_t obmm_connection_device(struct obmm_connection *c, int fd, char *device, size_t size)
{
	/* the server's files of memory are sealed against everything, and their names say whose and what they are */
	static const int sealed = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
	char path[32], link[300], prefix[128];
	int seals = fcntl(fd, F_GET_SEALS); /* a kernel may add one against execution (vm.memfd_noexec) */
	ssize_t length;
	char *end;

	if (seals < 0 || (seals & sealed) != sealed)
		return 0;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	length = readlink(path, link, sizeof(link) - 1);
	if (length < 0)
		return 0;
	link[length] = 0;
	snprintf(prefix, sizeof(prefix), "/memfd:obmm:%u:%s:", c->tag, c->node);
	end = strrchr(link, ' '); /* " (deleted)": such a file has no name in any folder */
	if (!end || strncmp(link, prefix, strlen(prefix)))
		return 0;
	*end = 0;
	if (size)
		snprintf(device, size, "%s", link + strlen(prefix));
	return strlen(link) - strlen(prefix);
}

int obmm_connection_descriptor(struct obmm_connection *c)
{
	int fd = c->fd;

	return fd >= 0 && c->pid == getpid() && inode_of(fd) == c->inode ? fd : -1;
}

void obmm_connection_vacate(struct obmm_connection *c, int fd)
{
	int moved;

	if (fd < 0 || fd != obmm_connection_descriptor(c))
		return;
	pthread_mutex_lock(&c->lock);
	moved = fcntl(fd, F_DUPFD_CLOEXEC, DESCRIPTOR_FLOOR);
	if (moved >= 0) {
		c->fd = moved;
		close(fd);
	}
	pthread_mutex_unlock(&c->lock);
}

const char *obmm_connection_node(struct obmm_connection *c)
{
	return c->node;
}

const char *obmm_connection_root(struct obmm_connection *c)
{
	return c->root;
}

/* Whether the fabric is still behind it; a child's connection that is not made yet counts. */
static int alive(struct obmm_connection *c)
{
	int fd = c->fd;
	char byte;

	return fd < 0 || inode_of(fd) != c->inode || recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 0;
}

/* With fork_lock held. */
static struct obmm_connection *find(const struct obmm_connection *like)
{
	for (struct obmm_connection *c = connections; c; c = c->next)
		if (!strcmp(c->socket_path, like->socket_path) && !strcmp(c->node, like->node) && alive(c))
			return c;
	return NULL;
}

static void discard(struct obmm_connection *c)
{
	if (c->fd >= 0 && inode_of(c->fd) == c->inode)
		close(c->fd);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

int obmm_connection_get(const char *socket_path, const char *node, struct obmm_connection **out)
{
	struct obmm_connection *c, *same;
	int rc;

	if (strlen(socket_path) >= sizeof(c->socket_path) || strlen(node) >= sizeof(c->node))
		return -ENAMETOOLONG;
	c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	pthread_once(&once, register_fork);
	pthread_mutex_init(&c->lock, NULL);
	memcpy(c->socket_path, socket_path, strlen(socket_path));
	memcpy(c->node, node, strlen(node));
	c->fd = -1;
	rc = establish(c);
	if (rc) {
		discard(c);
		return rc;
	}
	/* only the server knows a nameless node's name: look for a connection to share afterwards */
	pthread_mutex_lock(&fork_lock);
	same = find(c);
	if (same) {
		same->users++;
	} else {
		c->users = 1;
		c->next = connections;
		connections = c;
	}
	pthread_mutex_unlock(&fork_lock);
	if (same)
		discard(c);
	*out = same ? same : c;
	return 0;
}

/*
 * The connection owns the process's mappings: while some live, the server
 * refuses to let it go, and it waits in the list for the next user.
 */
void obmm_connection_put(struct obmm_connection *c)
{
	struct obmm_call leave = { .request = { .call = OBMM_CALL_LEAVE } };
	int last, made = c->fd >= 0;

	pthread_mutex_lock(&fork_lock);
	last = --c->users == 0;
	pthread_mutex_unlock(&fork_lock);
	if (!last || (made && obmm_connection_call(c, &leave) == -EBUSY))
		return;

	pthread_mutex_lock(&fork_lock);
	last = c->users == 0;
	for (struct obmm_connection **at = &connections; last && *at; at = &(*at)->next)
		if (*at == c) {
			*at = c->next;
			break;
		}
	pthread_mutex_unlock(&fork_lock);
	if (last)
		discard(c);
}
