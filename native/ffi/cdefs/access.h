/* SPDX-License-Identifier: Apache-2.0 */
/* access/guard.h */
struct obmm_fault {
	uint64_t id;
	uint64_t offset;
	uint64_t address;
	int32_t signo;
	int32_t code;
};
int obmm_guard_add(const void *base, size_t length, uint64_t id);
int obmm_guard_remove(int slot);
int obmm_guard_covers(const void *address);
int obmm_guard_count(void);
int obmm_guard_check(void);
int obmm_guard_install(void);
int obmm_guard_displace(int signo, int ignored);
void obmm_guard_look(void);
void obmm_guard_distrust(void);

/* access/copy.h */
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

/* access/recheck.h */
struct obmm_recheck;
struct obmm_header_place {
	int fd;
	uint64_t start;
	uint64_t end;
	const uint64_t *version;
	struct obmm_gate *gate;
};
struct obmm_recheck *obmm_recheck_create(struct obmm_sys *sys, const struct obmm_header_place *place);
void obmm_recheck_free(struct obmm_recheck *recheck);
void obmm_recheck_hold(struct obmm_recheck *recheck);
void obmm_recheck_resume(struct obmm_recheck *recheck, int readonly);
int obmm_recheck_run(struct obmm_recheck *recheck, uint64_t *version, struct obmm_fault *fault);

struct obmm_gate {
	uint32_t state;
};

int obmm_gate_enter(struct obmm_gate *gate);
void obmm_gate_leave(struct obmm_gate *gate);
uint32_t obmm_gate_inside(const struct obmm_gate *gate);
int obmm_gate_shut(struct obmm_gate *gate, int64_t timeout_ms);
void obmm_gate_reopen(struct obmm_gate *gate);
int obmm_gated_copy_from(struct obmm_gate *gate, void *dst, uint64_t address, size_t length, int nc, struct obmm_fault *fault);
int obmm_gated_copy_to(struct obmm_gate *gate, uint64_t address, const void *src, size_t length, int nc, struct obmm_fault *fault);
struct obmm_loaded {
	uint64_t value;
	int64_t result;
};
struct obmm_loaded obmm_gated_load(struct obmm_gate *gate, uint64_t address, unsigned int width, struct obmm_fault *fault);
int obmm_gated_store(struct obmm_gate *gate, uint64_t address, unsigned int width, uint64_t value, struct obmm_fault *fault);
struct obmm_held {
	int fd;
	int slot;
	void *base;
	void *sealed;
	uint64_t length;
};

void obmm_held_init(struct obmm_held *held);
int obmm_held_open(struct obmm_sys *sys, struct obmm_held *held, uint64_t mem_id, int flags);
int obmm_held_map(struct obmm_sys *sys, struct obmm_held *held, void *addr, uint64_t offset, uint64_t length, int prot, int pmd);
int obmm_held_guard(struct obmm_held *held, uint64_t identity);
int obmm_held_release(struct obmm_sys *sys, struct obmm_held *held);
void obmm_held_end(struct obmm_node *node, struct obmm_held *held);
int obmm_held_seal(struct obmm_sys *sys, struct obmm_held *held);
