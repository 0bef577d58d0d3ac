/* SPDX-License-Identifier: Apache-2.0 */
uint32_t obmm_bell_count(const uint32_t *bell);
void obmm_bell_ring(uint32_t *bell);
int obmm_bell_wait(const uint32_t *bell, uint32_t seen, int64_t timeout_ns);
