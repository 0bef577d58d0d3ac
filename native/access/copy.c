/* SPDX-License-Identifier: Apache-2.0 */
#include "copy.h"

#include <errno.h>
#include <string.h>

#include "fixup.h"
#include "guard_internal.h"
#include "nc.h"
#include "order.h"

struct span {
	void *dst;
	const void *src;
	size_t length;
	int byte;
};

static int do_copy(void *arg)
{
	struct span *span = arg;

	memcpy(span->dst, span->src, span->length);
	return 0;
}

static int do_nc_read(void *arg)
{
	struct span *span = arg;

	obmm_nc_read(span->dst, span->src, span->length);
	return 0;
}

static int do_nc_write(void *arg)
{
	struct span *span = arg;

	obmm_nc_write(span->dst, span->src, span->length);
	return 0;
}

static int do_fill(void *arg)
{
	struct span *span = arg;

	memset(span->dst, span->byte, span->length);
	return 0;
}

static int do_compare(void *arg)
{
	struct span *span = arg;

	return memcmp(span->dst, span->src, span->length) != 0;
}

static int copy_any(void *dst, const void *src, size_t length, struct obmm_fault *fault)
{
	struct span span = { .dst = dst, .src = src, .length = length };

	return obmm_guard_run(do_copy, &span, fault);
}

#if OBMM_FIXUPS
static int explained(int result, struct obmm_fault *fault)
{
	if (__builtin_expect(result != 0, 0) && fault)
		*fault = *obmm_last_fault();
	return result;
}
#endif

int obmm_copy_from(void *dst, const void *src, size_t length, struct obmm_fault *fault)
{
#if OBMM_FIXUPS
	if (__builtin_expect(obmm_fixup_can_copy(length), 1)) {
		obmm_guard_ready(length);
		return explained(obmm_fixup_copy(dst, src, length), fault);
	}
#endif
	return copy_any(dst, src, length, fault);
}

int obmm_copy_to(void *dst, const void *src, size_t length, struct obmm_fault *fault)
{
	return obmm_copy_from(dst, src, length, fault);
}

int obmm_copy_nc_from(void *dst, const void *src, size_t length, struct obmm_fault *fault)
{
	struct span span = { .dst = dst, .src = src, .length = length };

	obmm_order_full();
	return obmm_guard_run(do_nc_read, &span, fault);
}

int obmm_copy_nc_to(void *dst, const void *src, size_t length, struct obmm_fault *fault)
{
	struct span span = { .dst = dst, .src = src, .length = length };
	int result = obmm_guard_run(do_nc_write, &span, fault);

	obmm_order_full();
	return result;
}

int obmm_fill(void *dst, int byte, size_t length, struct obmm_fault *fault)
{
	struct span span = { .dst = dst, .length = length, .byte = byte };

	return obmm_guard_run(do_fill, &span, fault);
}

int obmm_compare(const void *left, const void *right, size_t length, struct obmm_fault *fault)
{
	struct span span = { .dst = (void *)left, .src = right, .length = length };

	return obmm_guard_run(do_compare, &span, fault);
}

#if !OBMM_FIXUPS
struct scalar {
	void *address;
	unsigned int width;
	uint64_t value;
};

static int do_load(void *arg)
{
	struct scalar *scalar = arg;

	switch (scalar->width) {
	case 1:
		scalar->value = __atomic_load_n((uint8_t *)scalar->address, __ATOMIC_RELAXED);
		break;
	case 2:
		scalar->value = __atomic_load_n((uint16_t *)scalar->address, __ATOMIC_RELAXED);
		break;
	case 4:
		scalar->value = __atomic_load_n((uint32_t *)scalar->address, __ATOMIC_RELAXED);
		break;
	case 8:
		scalar->value = __atomic_load_n((uint64_t *)scalar->address, __ATOMIC_RELAXED);
		break;
	}
	return 0;
}

static int do_store(void *arg)
{
	struct scalar *scalar = arg;

	switch (scalar->width) {
	case 1:
		__atomic_store_n((uint8_t *)scalar->address, (uint8_t)scalar->value, __ATOMIC_RELAXED);
		break;
	case 2:
		__atomic_store_n((uint16_t *)scalar->address, (uint16_t)scalar->value, __ATOMIC_RELAXED);
		break;
	case 4:
		__atomic_store_n((uint32_t *)scalar->address, (uint32_t)scalar->value, __ATOMIC_RELAXED);
		break;
	case 8:
		__atomic_store_n((uint64_t *)scalar->address, scalar->value, __ATOMIC_RELAXED);
		break;
	}
	return 0;
}
#endif

static int is_natural(const void *address, unsigned int width)
{
	return width && width <= 8 && !(width & (width - 1)) && !((uintptr_t)address & (width - 1));
}

int obmm_load(const void *src, unsigned int width, uint64_t *value, struct obmm_fault *fault)
{
	if (!is_natural(src, width))
		return -EINVAL;
#if OBMM_FIXUPS
	obmm_guard_ready(0);
	return explained(obmm_fixup_load(src, width, value), fault);
#else
	struct scalar scalar = { .address = (void *)src, .width = width };
	int result = obmm_guard_run(do_load, &scalar, fault);

	if (!result)
		*value = scalar.value;
	return result;
#endif
}

int obmm_store(void *dst, unsigned int width, uint64_t value, struct obmm_fault *fault)
{
	if (!is_natural(dst, width))
		return -EINVAL;
#if OBMM_FIXUPS
	obmm_guard_ready(0);
	return explained(obmm_fixup_store(dst, width, value), fault);
#else
	struct scalar scalar = { .address = dst, .width = width, .value = value };

	return obmm_guard_run(do_store, &scalar, fault);
#endif
}

void obmm_fence_load(void)
{
	obmm_order_load();
}

void obmm_fence_store(void)
{
	obmm_order_store();
}

void obmm_fence_full(void)
{
	obmm_order_full();
}
