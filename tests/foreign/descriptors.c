/* SPDX-License-Identifier: Apache-2.0 */
/* What programs do with descriptors and paths: close them all, replace them, exec, walk folders. */
#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "mem.h"

static int after_exec(const char *number)
{
	int fd = atoi(number);
	char *map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);

	CHECK(map != MAP_FAILED && !strcmp(map, "kept"));
	return 0;
}

static void daemon_style(void)
{
	/* close everything, and put files on every number that was free */
	for (int fd = 3; fd < 1024; fd++)
		close(fd);
	for (int fd = 3; fd < 400; fd++)
		CHECK(dup2(0, fd) == fd);
	for (int fd = 3; fd < 400; fd++)
		CHECK(!close(fd));
	closefrom(3);
}

static int is_region(const struct dirent *entry)
{
	return !strncmp(entry->d_name, "obmm_shmdev", 11);
}

/* Folders that this machine has too show both machines' entries. */
static void names(uint64_t id)
{
	struct dirent **list, *entry;
	int nulls = 0, controllers = 0;
	glob_t found;
	DIR *dir;

	CHECK(scandir("/dev", &list, is_region, alphasort) >= 1);
	CHECK(!glob("/dev/obmm_shmdev*", 0, NULL, &found) && found.gl_pathc >= 1);
	CHECK(strtoull(found.gl_pathv[0] + strlen("/dev/obmm_shmdev"), NULL, 10) <= id);
	globfree(&found);
	CHECK(!glob("/sys/devices/ub_bus_controller*/*/eid", 0, NULL, &found) && found.gl_pathc == 1);
	globfree(&found);
	dir = opendir("/dev");
	while ((entry = readdir(dir)))
		nulls += !strcmp(entry->d_name, "null");
	CHECK(!closedir(dir) && nulls == 1);
	dir = fdopendir(open("/sys/devices", O_RDONLY | O_DIRECTORY));
	while ((entry = readdir(dir)))
		controllers += !strcmp(entry->d_name, "ub_bus_controller0");
	CHECK(!closedir(dir) && controllers == 1);
}

static void paths(uint64_t id)
{
	char text[64], link[512], folder[128];
	struct dirent *entry;
	int files = 0, dir;
	struct stat st;
	DIR *list;

	snprintf(folder, sizeof(folder), "/sys/devices/obmm/obmm_shmdev%llu", (unsigned long long)id);
	list = opendir(folder);
	CHECK(list);
	while ((entry = readdir(list)))
		files += !strcmp(entry->d_name, "size") || !strcmp(entry->d_name, "export_info");
	closedir(list);
	CHECK(files == 2);
	CHECK(!chdir(folder) && !access("export_info/tokenid", R_OK));
	CHECK(!chdir("/") && !access("dev/obmm", R_OK) && !stat("dev/../dev//./obmm", &st) && S_ISCHR(st.st_mode));
	dir = open("/sys", O_RDONLY | O_DIRECTORY);
	CHECK(dir >= 0 && !faccessat(dir, "devices/obmm", F_OK, 0) && !close(dir));
	names(id);
	CHECK(realpath("/dev/./obmm", link) && !strcmp(link, "/dev/obmm"));
	CHECK(!mem_attribute(id, "export_info/memory_from_user", text, sizeof(text)) && !strcmp(text, "0"));
	REFUSED(mem_attribute(999, "size", text, sizeof(text)), ENOENT);
	CHECK(!stat("/proc/self", &st) && !stat("/dev/null", &st) && S_ISCHR(st.st_mode));
}

int main(int argc, char **argv)
{
	struct epoll_event event = { .events = EPOLLIN };
	struct mem_desc desc;
	int fd, epoll, status;
	char number[16], link[64];
	uint64_t id;
	char *map;
	pid_t child;
	FILE *file;

	if (argc == 2)
		return after_exec(argv[1]);
	daemon_style();
	id = mem_export(2UL << 20, &desc);
	CHECK(id);
	paths(id);
	fd = mem_open(id, O_RDWR);
	map = mmap(NULL, 2UL << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(map != MAP_FAILED);
	strcpy(map, "kept");
	daemon_style();
	CHECK(fcntl(fd, F_GETFD) == -1);
	REFUSED(mem_unexport(id), EBUSY); /* the mapping lives */
	CHECK(!munmap(map, 2UL << 20));

	fd = mem_open(id, O_RDWR);
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	CHECK(readlink(link, number, sizeof(number)) > 9 && !strncmp(number, "/dev/obmm", 9));
	epoll = epoll_create1(0);
	REFUSED(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), EPERM);
	snprintf(number, sizeof(number), "%d", fd);
	child = vfork();
	if (!child) {
		execl(argv[0], argv[0], number, NULL);
		_exit(127);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	file = fopen("/dev/obmm", "r+");
	CHECK(file && !fclose(file));
	CHECK(!close(fd) && !mem_unexport(id));
	puts("descriptors ok");
	return 0;
}
