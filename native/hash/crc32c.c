/* SPDX-License-Identifier: Apache-2.0 */
#include "crc32c.h"

#include <string.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#define HWCAP_CRC32_BIT (1 << 7)
#endif

static uint32_t by_bit(uint32_t crc, const uint8_t *data, size_t length)
{
	for (; length; length--) {
		crc ^= *data++;
		for (int i = 0; i < 8; i++)
			crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
	}
	return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t crc, const uint8_t *data, size_t length)
{
	uint64_t wide = crc, word;

	for (; length >= 8; length -= 8, data += 8) {
		memcpy(&word, data, 8);
		wide = _mm_crc32_u64(wide, word);
	}
	crc = (uint32_t)wide;
	for (; length; length--)
		crc = _mm_crc32_u8(crc, *data++);
	return crc;
}

static int has_instruction(void)
{
	return __builtin_cpu_supports("sse4.2");
}
#elif defined(__aarch64__)
__attribute__((target("+crc"))) static uint32_t by_instruction(uint32_t crc, const uint8_t *data, size_t length)
{
	uint64_t word;

	for (; length >= 8; length -= 8, data += 8) {
		memcpy(&word, data, 8);
		crc = __builtin_aarch64_crc32cx(crc, word);
	}
	for (; length; length--)
		crc = __builtin_aarch64_crc32cb(crc, *data++);
	return crc;
}

static int has_instruction(void)
{
	return (getauxval(AT_HWCAP) & HWCAP_CRC32_BIT) != 0;
}
#endif

uint32_t obmm_crc32c(uint32_t crc, const void *data, size_t length)
{
	return ~(has_instruction() ? by_instruction : by_bit)(~crc, data, length);
}
