/* SPDX-License-Identifier: Apache-2.0 */
/* copy/guard.h */
struct obmm_fault {
	uint64_t id;
	uint64_t offset;
	uint64_t address;
	int32_t signo;
	int32_t code;
};
int obmm_guard_add(const void *base, size_t length, uint64_t id);
int obmm_guard_remove(int slot);
int obmm_guard_count(void);
int obmm_guard_check(void);
int obmm_guard_install(void);

/* copy/copy.h */
int obmm_copy_from(void *dst, const void *src, size_t length, struct obmm_fault *fault);
int obmm_copy_to(void *dst, const void *src, size_t length, struct obmm_fault *fault);
int obmm_copy_nc_from(void *dst, const void *src, size_t length, struct obmm_fault *fault);
int obmm_copy_nc_to(void *dst, const void *src, size_t length, struct obmm_fault *fault);
int obmm_fill(void *dst, int byte, size_t length, struct obmm_fault *fault);
int obmm_compare(const void *left, const void *right, size_t length, struct obmm_fault *fault);
int obmm_load(const void *src, unsigned int width, uint64_t *value, struct obmm_fault *fault);
int obmm_store(void *dst, unsigned int width, uint64_t value, struct obmm_fault *fault);
void obmm_fence_load(void);
void obmm_fence_store(void);
void obmm_fence_full(void);
