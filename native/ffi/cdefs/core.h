/* SPDX-License-Identifier: Apache-2.0 */
struct obmm_sys {
	size_t size;
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

uint32_t obmm_bell_count(const uint32_t *bell);
void obmm_bell_ring(uint32_t *bell);
int obmm_bell_wait(const uint32_t *bell, uint32_t seen, int64_t timeout_ns);

/* core/owned.h */
struct obmm_node {
	struct obmm_sys *sys;
	int fd;
	int pid;
};
struct obmm_owned {
	uint64_t mem_id;
};
void obmm_node_init(struct obmm_node *node);
int obmm_node_open(struct obmm_node *node);
void obmm_node_close(struct obmm_node *node);
void obmm_node_abandon(struct obmm_node *node);
int obmm_owned_export(struct obmm_node *node, struct obmm_cmd_export *cmd, struct obmm_owned *owned);
int obmm_owned_export_useraddr(struct obmm_node *node, struct obmm_cmd_export_pid *cmd, struct obmm_owned *owned);
int obmm_owned_import(struct obmm_node *node, struct obmm_cmd_import *cmd, struct obmm_owned *owned);
int obmm_owned_unexport(struct obmm_node *node, struct obmm_owned *owned);
int obmm_owned_unimport(struct obmm_node *node, struct obmm_owned *owned);

/* core/descriptor.h */
struct obmm_descriptor {
	int fd_plus_one;
};
int obmm_descriptor_eventfd(struct obmm_descriptor *descriptor);
int obmm_descriptor_memfd(struct obmm_descriptor *descriptor, const char *name);
int obmm_descriptor_open(struct obmm_descriptor *descriptor, const char *path, int flags, unsigned int mode);
int obmm_descriptor_dup(struct obmm_descriptor *descriptor, int fd);
void obmm_descriptor_close(struct obmm_descriptor *descriptor);
