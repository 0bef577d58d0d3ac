/* SPDX-License-Identifier: Apache-2.0 */
struct obmm_emulator_window {
	uint8_t owner_eid[16];
	uint32_t owner_cna;
	uint32_t tokenid;
	uint64_t uba;
	uint64_t length;
	uint64_t pa;
	uint32_t local_cna;
	uint32_t cache;
};

int obmm_sys_emulator(const char *socket_path, const char *node, struct obmm_sys **out);
int obmm_emulator_program(struct obmm_sys *sys, const struct obmm_emulator_window *window, uint64_t *pa);
int obmm_emulator_unprogram(struct obmm_sys *sys, uint64_t pa);
int obmm_emulator_release(struct obmm_sys *sys, uint64_t *pa);
int obmm_emulator_mprotect(struct obmm_sys *sys, void *addr, size_t length, int prot);
void *obmm_emulator_mremap(struct obmm_sys *sys, void *addr, size_t old_length, size_t new_length, int flags, void *new_addr);
int obmm_emulator_madvise(struct obmm_sys *sys, void *addr, size_t length, int advice);
int obmm_emulator_msync(struct obmm_sys *sys, void *addr, size_t length, int flags);
int64_t obmm_emulator_file(struct obmm_sys *sys, int fd, int operation, uint64_t a, uint64_t b, uint64_t c);
int obmm_emulator_chmod(struct obmm_sys *sys, const char *path, unsigned int mode);
int obmm_emulator_chown(struct obmm_sys *sys, const char *path, unsigned int uid, unsigned int gid);
int obmm_emulator_is_open(struct obmm_sys *sys, int fd);
int obmm_emulator_descriptor(struct obmm_sys *sys);
void obmm_emulator_vacate(struct obmm_sys *sys, int fd);
