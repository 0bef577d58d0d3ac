/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs that start programs.  The node goes with them, whatever becomes of
 * the environment on the way: a machine's devices do not go away with a
 * variable either.  No allocation here: the caller may be a vfork's child.
 */
#include "preload.h"

#include <alloca.h>
#include <elf.h>
#include <errno.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY "libobmm_preload.so"
#define PRELOAD "LD_PRELOAD="
#define DEVICE "OBMM_DEVICE="
#define VARIABLE_MAX 4096

/* As they were when this program started: "NAME=value". */
static char preload[VARIABLE_MAX], device[VARIABLE_MAX];

static void remember(char *variable, const char *name)
{
	const char *value = getenv(name);

	if (value && strlen(name) + strlen(value) + 2 <= VARIABLE_MAX)
		strcpy(stpcpy(stpcpy(variable, name), "="), value);
}

void preload_remember_environment(void)
{
	remember(preload, "LD_PRELOAD");
	remember(device, "OBMM_DEVICE");
}

/* Whether an environment can be looked at; the kernel answers EFAULT otherwise. */
static int readable_environment(char *const *env)
{
	for (; env; env++)
		if (!preload_readable(env, sizeof(*env)) || (*env && !preload_readable_text(*env)))
			return 0;
		else if (!*env)
			break;
	return 1;
}

static const char *find_variable(char *const *env, const char *name)
{
	for (; env && *env; env++)
		if (!strncmp(*env, name, strlen(name)))
			return *env;
	return NULL;
}

/* How long an environment is with what it lacks, or 0 when it lacks nothing. */
static size_t longer(char *const *env)
{
	const char *has;
	size_t count = 0;

	if (!*preload || !*device || !preload_node() || !readable_environment(env))
		return 0;
	has = find_variable(env, PRELOAD);
	if (has && strstr(has, LIBRARY) && find_variable(env, DEVICE))
		return 0;
	while (env && env[count])
		count++;
	return count + 3;
}

/* `env` with this node's variables, in `out`; a LD_PRELOAD of the caller's own stays behind ours in `joined`. */
static char *const *with_node(char *const *env, char **out, char *joined)
{
	const char *has = find_variable(env, PRELOAD);
	size_t count = 0;

	joined[0] = 0;
	if (has && !strstr(has, LIBRARY) && strlen(preload) + strlen(has) < VARIABLE_MAX)
		strcpy(stpcpy(stpcpy(joined, preload), ":"), has + strlen(PRELOAD));
	for (; env && *env; env++)
		if (*env != has || strstr(has, LIBRARY))
			out[count++] = *env;
	if (!has || !strstr(has, LIBRARY))
		out[count++] = *joined ? joined : preload;
	if (!find_variable(env, DEVICE) && !find_variable(out, DEVICE))
		out[count++] = device;
	out[count] = NULL;
	return out;
}

/* Room on the caller's stack for the environment that goes on. */
#define HAND_ON(env)                                                                                        \
	({                                                                                                  \
		char *const *env_ = (env);                                                                  \
		size_t room_ = longer(env_);                                                                \
                                                                                                            \
		if (room_) {                                                                                \
			char **out_ = alloca(room_ * sizeof(*out_));                                        \
                                                                                                            \
			memset(out_, 0, room_ * sizeof(*out_));                                             \
			env_ = with_node(env_, out_, alloca(VARIABLE_MAX));                                 \
		}                                                                                           \
		env_;                                                                                       \
	})

static int read_at(int fd, void *to, size_t size, uint64_t offset)
{
	return raw_call(SYS_pread64, fd, (long)to, (long)size, (long)offset, 0, 0) == (long)size;
}

/* Why a program will not ask this library, or NULL: it is none, or it will. */
static const char *goes_past_libc(const char *path)
{
	static const unsigned char go[] = { 4, 0, 0, 0, 'G', 'o', 0, 0 }; /* type and name of the note in Go programs */
	const char *reason = NULL;
	int linked = 0, fd = raw_openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
	Elf64_Ehdr head;
	Elf64_Phdr part;
	char note[512];

	if (fd < 0)
		return NULL;
	if (!read_at(fd, &head, sizeof(head), 0) || memcmp(head.e_ident, ELFMAG, SELFMAG))
		goto out;
	if (head.e_ident[EI_CLASS] != ELFCLASS64) {
		reason = "is a 32-bit program and";
		goto out;
	}
	for (int i = 0; i < head.e_phnum; i++) {
		if (!read_at(fd, &part, sizeof(part), head.e_phoff + (size_t)i * sizeof(part)))
			goto out;
		linked |= part.p_type == PT_INTERP;
		if (part.p_type == PT_NOTE && read_at(fd, note, sizeof(note), part.p_offset) &&
		    memmem(note, sizeof(note), go, sizeof(go)))
			reason = "is a Go program: but for what it asks of libc through cgo, it";
	}
	if (!linked)
		reason = "is statically linked and";
out:
	raw_close(fd);
	return reason;
}

/* A file of the node's is not a program; one that is linked statically will not ask this library. */
static int may_run(int dirfd, const char *path)
{
	struct obmm_sys *sys = preload_node();
	const char *reason;
	int saved = errno;

	if (preload_refuses(dirfd, path, FOLLOW, EACCES))
		return 0;
	reason = sys && preload_readable(path, 1) && *path == '/' ? goes_past_libc(path) : NULL;
	if (reason)
		dprintf(STDERR_FILENO, "obmm: %s %s runs beside %s, without its devices\n", path, reason,
			sys->name);
	errno = saved;
	return 1;
}

EXPORT int execve(const char *path, char *const argv[], char *const env[])
{
	return may_run(AT_FDCWD, path) ? NEXT(execve)(path, argv, HAND_ON(env)) : -1;
}

EXPORT int execv(const char *path, char *const argv[])
{
	return execve(path, argv, environ);
}

EXPORT int execvpe(const char *file, char *const argv[], char *const env[])
{
	if (strchr(file, '/') && !may_run(AT_FDCWD, file))
		return -1;
	return NEXT(execvpe)(file, argv, HAND_ON(env));
}

EXPORT int execvp(const char *file, char *const argv[])
{
	return execvpe(file, argv, environ);
}

EXPORT int execveat(int dirfd, const char *path, char *const argv[], char *const env[], int flags)
{
	if (flags & AT_EMPTY_PATH && preload_is_empty(path))
		REFUSE(dirfd, EACCES);
	else if (!may_run(dirfd, path))
		return -1;
	return (int)raw_call(SYS_execveat, dirfd, (long)path, (long)argv, (long)HAND_ON(env), flags, 0);
}

EXPORT int fexecve(int fd, char *const argv[], char *const env[])
{
	REFUSE(fd, EACCES);
	return NEXT(fexecve)(fd, argv, HAND_ON(env));
}

/* The arguments of an execl: gathered on the stack. */
#define GATHER(argv, first, more, env)                                                                      \
	do {                                                                                                \
		size_t count_ = 1;                                                                          \
                                                                                                            \
		va_start(more, first);                                                                      \
		while (va_arg(more, char *))                                                                \
			count_++;                                                                           \
		va_end(more);                                                                               \
		argv = alloca((count_ + 1) * sizeof(*argv));                                                \
		va_start(more, first);                                                                      \
		argv[0] = (char *)(uintptr_t)first;                                                         \
		for (size_t i_ = 1; i_ <= count_; i_++)                                                     \
			argv[i_] = va_arg(more, char *);                                                    \
		env = va_arg(more, char **);                                                                \
		va_end(more);                                                                               \
	} while (0)

EXPORT int execl(const char *path, const char *first, ...)
{
	char **argv, **none;
	va_list more;

	GATHER(argv, first, more, none);
	(void)none;
	return execve(path, argv, environ);
}

EXPORT int execlp(const char *file, const char *first, ...)
{
	char **argv, **none;
	va_list more;

	GATHER(argv, first, more, none);
	(void)none;
	return execvpe(file, argv, environ);
}

EXPORT int execle(const char *path, const char *first, ...)
{
	char **argv, **env;
	va_list more;

	GATHER(argv, first, more, env);
	return execve(path, argv, env);
}

EXPORT int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
		       const posix_spawnattr_t *attributes, char *const argv[], char *const env[])
{
	if (!may_run(AT_FDCWD, path))
		return errno;
	return NEXT(posix_spawn)(pid, path, actions, attributes, argv, HAND_ON(env));
}

EXPORT int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
			const posix_spawnattr_t *attributes, char *const argv[], char *const env[])
{
	if (strchr(file, '/') && !may_run(AT_FDCWD, file))
		return errno;
	return NEXT(posix_spawnp)(pid, file, actions, attributes, argv, HAND_ON(env));
}

/* The child opens inside libc: what stands for a file of the node's tree, but no device. */
EXPORT int posix_spawn_file_actions_addopen(posix_spawn_file_actions_t *actions, int fd, const char *path, int flags,
					    mode_t mode)
{
	struct preload_path found;

	preload_find(AT_FDCWD, path, flags & O_NOFOLLOW ? NOFOLLOW : FOLLOW, &found);
	if (found.place == PLACE_DEVICE || (found.place == PLACE_TREE && (flags & O_ACCMODE) != O_RDONLY))
		return ENOTSUP;
	return NEXT(posix_spawn_file_actions_addopen)(actions, fd, found.file, flags, mode);
}

EXPORT int posix_spawn_file_actions_addchdir_np(posix_spawn_file_actions_t *actions, const char *path)
{
	struct preload_path found;

	preload_find(AT_FDCWD, path, FOLLOW, &found);
	return NEXT(posix_spawn_file_actions_addchdir_np)(actions, found.file);
}

/* libc starts the shell itself, with the environment as it is. */
static void complete_environment(void)
{
	static const char *const names[] = { PRELOAD, DEVICE };
	const char *has = find_variable(environ, PRELOAD);

	if (!longer(environ))
		return;
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		if (!find_variable(environ, names[i]) || (!i && !strstr(has, LIBRARY)))
			putenv(i ? device : preload);
}

EXPORT int system(const char *command)
{
	complete_environment();
	return NEXT(system)(command);
}

EXPORT FILE *popen(const char *command, const char *type)
{
	complete_environment();
	return NEXT(popen)(command, type);
}

ALIAS(system, __libc_system);
ALIAS(popen, _IO_popen);
