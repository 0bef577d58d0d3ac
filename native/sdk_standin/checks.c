/* SPDX-License-Identifier: Apache-2.0 */
/* Argument rules of SDK specification 4 and 6. */
#include <string.h>
#include <unistd.h>

#include "standin.h"

#define MIB (1UL << 20)

int standin_bad_name(const char *name)
{
	size_t length = name ? strnlen(name, UBSM_MAX_NAME + 1) : 0;

	return length < 1 || length > UBSM_MAX_NAME;
}

int standin_bad_size(size_t size)
{
	return !size || size % (4 * MIB);
}

int standin_bad_object_flags(uint64_t flags)
{
	static const uint64_t valid[] = { 0x0, 0x10, 0x1,  0x11, 0x2,  0x6,  0x12, 0x16,
					  0x8, 0xc,  0x18, 0x1c, 0x28, 0x2c, 0x38, 0x3c };

	for (size_t i = 0; i < sizeof(valid) / sizeof(valid[0]); i++)
		if (flags == valid[i])
			return 0;
	return 1;
}

size_t standin_page_round(size_t size)
{
	size_t page = sysconf(_SC_PAGESIZE);

	return (size + page - 1) & ~(page - 1);
}

size_t standin_pmd_size(void)
{
	return sysconf(_SC_PAGESIZE) == 65536 ? 512 * MIB : 2 * MIB;
}
