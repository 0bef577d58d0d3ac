/* SPDX-License-Identifier: Apache-2.0 */
/* The broker's client against brokers that answer well, badly, or not at all. */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "../broker/broker.h"

#define PATH "/dev/obmm_shmdev7"

/* What the broker of one test does with its only connection. */
struct script {
	uint32_t magic;
	int32_t error;
	int descriptors; /* sent with the first byte, and again with the second */
	size_t size;	 /* bytes of the answer before it hangs up */
	int reads;	 /* whether it takes the request first */
	int chunked;	 /* byte by byte */

	char folder[32];
	struct sockaddr_un address;
	int listener;
	struct obmm_broker_request seen;
	pthread_t thread;
	struct obmm_sys *sys;
};

static void send_part(int fd, const char *data, size_t size, int descriptors)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(2 * sizeof(int))];
	} control = { 0 };
	struct iovec part = { (char *)data, size };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
	int ends[2];

	if (descriptors) {
		message.msg_control = &control;
		message.msg_controllen = CMSG_SPACE(descriptors * sizeof(int));
		control.head.cmsg_level = SOL_SOCKET;
		control.head.cmsg_type = SCM_RIGHTS;
		control.head.cmsg_len = CMSG_LEN(descriptors * sizeof(int));
		for (int i = 0; i < descriptors; i++)
			ends[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
		memcpy(CMSG_DATA(&control.head), ends, descriptors * sizeof(int));
	}
	CHECK(sendmsg(fd, &message, MSG_NOSIGNAL) == (ssize_t)size);
	for (int i = 0; i < descriptors; i++)
		close(ends[i]);
}

static void *broker(void *arg)
{
	struct script *script = arg;
	const struct obmm_broker_answer answer = { .magic = script->magic, .error = script->error };
	int fd = accept(script->listener, NULL, NULL);

	if (script->reads)
		CHECK(recv(fd, &script->seen, sizeof(script->seen), MSG_WAITALL) == sizeof(script->seen));
	for (size_t sent = 0; sent < script->size;) {
		size_t size = script->chunked ? 1 : script->size;

		send_part(fd, (const char *)&answer + sent, size, sent < 2 ? script->descriptors : 0);
		sent += size;
	}
	if (!script->reads)
		shutdown(fd, SHUT_RDWR);
	close(fd);
	return NULL;
}

static int descriptors_open(void)
{
	int count = 0;

	for (int fd = 0; fd < 256; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

static void start(struct script *script)
{
	strcpy(script->folder, "/tmp/obmm-broker-XXXXXX");
	REQUIRE(mkdtemp(script->folder));
	script->address.sun_family = AF_UNIX;
	snprintf(script->address.sun_path, sizeof(script->address.sun_path), "%s/sock", script->folder);
	script->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	REQUIRE(!bind(script->listener, (struct sockaddr *)&script->address, sizeof(script->address)));
	REQUIRE(!listen(script->listener, 1));
	REQUIRE(!obmm_sys_broker(script->address.sun_path, obmm_sys_kernel(), &script->sys));
}

static void end(struct script *script)
{
	script->sys->destroy(script->sys);
	close(script->listener);
	unlink(script->address.sun_path);
	rmdir(script->folder);
}

/* The answer of one open, and that nothing but its descriptor stays behind. */
static int open_by(struct script script, int flags, struct obmm_broker_request *seen)
{
	int before = descriptors_open(), fd, error;

	start(&script);
	REQUIRE(!pthread_create(&script.thread, NULL, broker, &script));
	fd = script.sys->open(script.sys, PATH, flags);
	error = errno;
	pthread_join(script.thread, NULL);
	end(&script);
	if (seen)
		*seen = script.seen;
	CHECK_EQ(descriptors_open(), before + (fd >= 0));
	return fd >= 0 ? fd : -error;
}

static const struct script good = {
	.magic = OBMM_BROKER_MAGIC,
	.descriptors = 1,
	.size = sizeof(struct obmm_broker_answer),
	.reads = 1,
};

TEST(a_granted_descriptor_is_close_on_exec_as_asked)
{
	struct obmm_broker_request seen;
	int fd = open_by(good, O_RDWR | O_SYNC | O_CLOEXEC, &seen);

	REQUIRE(fd >= 0);
	CHECK_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
	close(fd);
	CHECK_EQ(seen.magic, OBMM_BROKER_MAGIC);
	CHECK_EQ(seen.version, OBMM_BROKER_VERSION);
	CHECK_EQ(seen.kind, OBMM_BROKER_OPEN);
	CHECK_EQ(seen.flags, O_RDWR | O_SYNC);
	CHECK_STR(seen.path, PATH);
	fd = open_by(good, O_RDONLY, NULL);
	REQUIRE(fd >= 0);
	CHECK_EQ(fcntl(fd, F_GETFD), 0);
	close(fd);
}

TEST(an_answer_in_single_bytes_is_one_answer)
{
	struct script script = good;
	int fd;

	script.chunked = 1;
	fd = open_by(script, O_RDONLY | O_CLOEXEC, NULL);
	CHECK(fd >= 0);
	close(fd);
}

TEST(more_descriptors_than_one_are_closed)
{
	struct script script = good;
	int fd;

	script.descriptors = 2;
	fd = open_by(script, O_RDONLY | O_CLOEXEC, NULL);
	CHECK(fd >= 0);
	close(fd);
}

TEST(a_refusal_is_its_errno_and_keeps_no_descriptor)
{
	struct script script = good;

	script.error = EACCES;
	CHECK_EQ(open_by(script, O_RDONLY, NULL), -EACCES);
	script.descriptors = 0;
	CHECK_EQ(open_by(script, O_RDONLY, NULL), -EACCES);
}

TEST(success_without_a_descriptor_is_no_success)
{
	struct script script = good;

	script.descriptors = 0;
	CHECK_EQ(open_by(script, O_RDONLY, NULL), -EPROTO);
}

TEST(another_protocol_is_refused_with_what_it_sent)
{
	struct script script = good;

	script.magic = 0x48545450;
	CHECK_EQ(open_by(script, O_RDONLY, NULL), -EPROTO);
}

TEST(a_broker_that_hangs_up_is_a_reset)
{
	struct script script = good;

	script.size = 5;
	CHECK_EQ(open_by(script, O_RDONLY, NULL), -ECONNRESET);
	script.size = 0;
	CHECK_EQ(open_by(script, O_RDONLY, NULL), -ECONNRESET);
}

TEST(a_full_broker_answers_before_it_reads)
{
	struct script script = good;

	script.reads = 0;
	script.descriptors = 0;
	script.error = EAGAIN;
	CHECK_EQ(open_by(script, O_RDONLY, NULL), -EAGAIN);
}

TEST(no_broker_and_impossible_names)
{
	struct obmm_sys *sys;
	char name[200];

	REQUIRE(!obmm_sys_broker("/nonexistent/broker.sock", obmm_sys_kernel(), &sys));
	CHECK_EQ(sys->open(sys, PATH, O_RDONLY), -1);
	CHECK_EQ(errno, ENOENT);
	memset(name, 'x', sizeof(name) - 1);
	name[sizeof(name) - 1] = 0;
	CHECK_EQ(sys->open(sys, name, O_RDONLY), -1);
	CHECK_EQ(errno, ENAMETOOLONG);
	CHECK_STR(sys->name, "broker:/nonexistent/broker.sock (kernel)");
	CHECK_PTR(obmm_sys_broker_base(sys), obmm_sys_kernel());
	sys->destroy(sys);
	CHECK_EQ(obmm_sys_broker(name, obmm_sys_kernel(), &sys), -ENAMETOOLONG);
}

TEST(everything_but_open_goes_to_the_table_behind)
{
	struct obmm_sys *sys;
	int fd = open("/dev/zero", O_RDWR | O_CLOEXEC);
	char *memory;

	REQUIRE(!obmm_sys_broker("/nonexistent/broker.sock", obmm_sys_kernel(), &sys));
	memory = sys->mmap(sys, NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
	REQUIRE(memory != MAP_FAILED);
	CHECK_EQ(memory[17], 0);
	CHECK_EQ(sys->munmap(sys, memory, 4096), 0);
	CHECK_EQ(sys->ioctl(sys, fd, 0, NULL), -1);
	CHECK_EQ(sys->close(sys, fd), 0);
	CHECK_EQ(fcntl(fd, F_GETFD), -1);
	sys->destroy(sys);
}
