/* SPDX-License-Identifier: Apache-2.0 */
struct obmm_sys {
	int (*open)(struct obmm_sys *sys, const char *path, int flags);
	int (*ioctl)(struct obmm_sys *sys, int fd, unsigned long request, void *arg);
	void *(*mmap)(struct obmm_sys *sys, void *addr, size_t length, int prot, int flags, int fd, uint64_t offset);
	int (*munmap)(struct obmm_sys *sys, void *addr, size_t length);
	int (*close)(struct obmm_sys *sys, int fd);
	void (*destroy)(struct obmm_sys *sys);
	const char *root;
	const char *name;
	...;
};

struct obmm_sys *obmm_sys_kernel(void);

int obmm_rw_open(struct obmm_sys *sys);
int obmm_rw_close(struct obmm_sys *sys, int fd);
int obmm_rw_ioctl(struct obmm_sys *sys, int fd, uint64_t request, void *arg);
int obmm_rw_export(struct obmm_sys *sys, int fd, struct obmm_cmd_export *cmd);
int obmm_rw_export_useraddr(struct obmm_sys *sys, int fd, struct obmm_cmd_export_pid *cmd);
int obmm_rw_unexport(struct obmm_sys *sys, int fd, uint64_t mem_id, uint64_t flags);
int obmm_rw_import(struct obmm_sys *sys, int fd, struct obmm_cmd_import *cmd);
int obmm_rw_unimport(struct obmm_sys *sys, int fd, uint64_t mem_id, uint64_t flags);
int obmm_rw_declare_preimport(struct obmm_sys *sys, int fd, struct obmm_cmd_preimport *cmd);
int obmm_rw_undeclare_preimport(struct obmm_sys *sys, int fd, struct obmm_cmd_preimport *cmd);
int obmm_rw_query_pa(struct obmm_sys *sys, int fd, uint64_t mem_id, uint64_t offset, uint64_t *pa);
int obmm_rw_query_id(struct obmm_sys *sys, int fd, uint64_t pa, uint64_t *mem_id, uint64_t *offset);
int obmm_rw_shmdev_open(struct obmm_sys *sys, uint64_t mem_id, int flags);
int obmm_rw_map(struct obmm_sys *sys, int fd, void *addr, uint64_t offset, uint64_t length, int prot, int pmd, void **out);
int obmm_rw_unmap(struct obmm_sys *sys, void *addr, uint64_t length);
int obmm_rw_seal(struct obmm_sys *sys, void *addr, uint64_t length);
int obmm_rw_set_ownership(struct obmm_sys *sys, int fd, uint64_t start, uint64_t end, uint8_t mem_state, uint8_t cache_ops);
