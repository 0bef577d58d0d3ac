/* SPDX-License-Identifier: Apache-2.0 */
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
