/* SPDX-License-Identifier: Apache-2.0 */
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
int obmm_held_seal(struct obmm_sys *sys, struct obmm_held *held);
