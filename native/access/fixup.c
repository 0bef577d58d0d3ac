/* SPDX-License-Identifier: Apache-2.0 */
#include "fixup.h"

#include <errno.h>

/* The linker makes these two for a section whose name is a C identifier. */
extern const struct obmm_fixup __start_obmm_fixups[] __attribute__((visibility("hidden"), weak));
extern const struct obmm_fixup __stop_obmm_fixups[] __attribute__((visibility("hidden"), weak));

uintptr_t obmm_fixup_find(uintptr_t pc)
{
	for (const struct obmm_fixup *f = __start_obmm_fixups; f < __stop_obmm_fixups; f++) {
		if (pc >= (uintptr_t)&f->from + (uintptr_t)(intptr_t)f->from &&
		    pc < (uintptr_t)&f->to + (uintptr_t)(intptr_t)f->to)
			return (uintptr_t)&f->landing + (uintptr_t)(intptr_t)f->landing;
	}
	return 0;
}

#if OBMM_FIXUPS
/* Labels 771 and 779 enclose the block. */
#define FIXUP                                           \
	"779:\n"                                        \
	".pushsection obmm_fixups, \"a\"\n"             \
	".balign 4\n"                                   \
	".long 771b - ., 779b - ., %l[faulted] - .\n"   \
	".popsection\n"

#if defined(__x86_64__)
/*
 * First and last `width` bytes wherever they lie, those between at borders of
 * dst.  length >= width.
 */
#define COPY(width, r0, r1, unaligned, aligned)                   \
	"771:\n\t"                                                \
	unaligned " (%[src]), " r0 "\n\t"                         \
	unaligned " " r0 ", (%[dst])\n\t"                         \
	"mov %[dst], %[step]\n\t"                                 \
	"and $(" width " - 1), %[step]\n\t"                       \
	"sub $" width ", %[step]\n\t"                             \
	"sub %[step], %[dst]\n\t"                                 \
	"sub %[step], %[src]\n\t"                                 \
	"add %[step], %[length]\n\t"                              \
	"sub $(2 * " width "), %[length]\n\t"                     \
	"jl 2f\n"                                                 \
	"1:\n\t"                                                  \
	unaligned " (%[src]), " r0 "\n\t"                         \
	unaligned " " width "(%[src]), " r1 "\n\t"                \
	aligned " " r0 ", (%[dst])\n\t"                           \
	aligned " " r1 ", " width "(%[dst])\n\t"                  \
	"add $(2 * " width "), %[src]\n\t"                        \
	"add $(2 * " width "), %[dst]\n\t"                        \
	"sub $(2 * " width "), %[length]\n\t"                     \
	"jge 1b\n"                                                \
	"2:\n\t"                                                  \
	"add $" width ", %[length]\n\t"                           \
	"jl 3f\n\t"                                               \
	unaligned " (%[src]), " r0 "\n\t"                         \
	aligned " " r0 ", (%[dst])\n"                             \
	"3:\n\t"                                                  \
	unaligned " (%[src],%[length]), " r0 "\n\t"               \
	unaligned " " r0 ", (%[dst],%[length])\n"

__attribute__((target("avx512f"))) static int copy_avx512(void *dst, const void *src, size_t length)
{
	size_t step;

	/* registers from 16 up leave nothing behind that slows SSE code */
	__asm__ volatile goto(COPY("64", "%%zmm16", "%%zmm17", "vmovdqu64", "vmovdqa64") FIXUP
			      : [dst] "+r"(dst), [src] "+r"(src), [length] "+r"(length), [step] "=&r"(step)
			      :
			      : "xmm16", "xmm17", "memory", "cc"
			      : faulted);
	return 0;
faulted:
	return -EFAULT;
}

static int copy_avx2(void *dst, const void *src, size_t length)
{
	size_t step;

	__asm__ volatile goto(COPY("32", "%%ymm0", "%%ymm1", "vmovdqu", "vmovdqa") "vzeroupper\n" FIXUP
			      : [dst] "+r"(dst), [src] "+r"(src), [length] "+r"(length), [step] "=&r"(step)
			      :
			      : "xmm0", "xmm1", "memory", "cc"
			      : faulted);
	return 0;
faulted:
	__asm__ volatile("vzeroupper" ::: "memory");
	return -EFAULT;
}

int obmm_fixup_copy(void *dst, const void *src, size_t length)
{
	if (length >= 64 && __builtin_cpu_supports("avx512f"))
		return copy_avx512(dst, src, length);
	return copy_avx2(dst, src, length);
}

#define LOAD(type, value, at, moves) \
	__asm__ volatile goto("771: " moves "\n" FIXUP : [v] "=r"(value) : [a] "m"(*(const type *)(at)) : "memory" : faulted)
#define STORE(type, value, at, moves) \
	__asm__ volatile goto("771: " moves "\n" FIXUP : : [v] "r"(value), [a] "m"(*(type *)(at)) : "memory" : faulted)
#define LOAD1(v, a) LOAD(uint8_t, v, a, "movzbl %[a], %k[v]")
#define LOAD2(v, a) LOAD(uint16_t, v, a, "movzwl %[a], %k[v]")
#define LOAD4(v, a) LOAD(uint32_t, v, a, "movl %[a], %k[v]")
#define LOAD8(v, a) LOAD(uint64_t, v, a, "movq %[a], %[v]")
#define STORE1(v, a) STORE(uint8_t, v, a, "movb %b[v], %[a]")
#define STORE2(v, a) STORE(uint16_t, v, a, "movw %w[v], %[a]")
#define STORE4(v, a) STORE(uint32_t, v, a, "movl %k[v], %[a]")
#define STORE8(v, a) STORE(uint64_t, v, a, "movq %[v], %[a]")
#elif defined(__aarch64__)
/* Whole 64 bytes, then the last 64, which overlap them. */
int obmm_fixup_copy(void *dst, const void *src, size_t length)
{
	__asm__ volatile goto("771:\n\t"
		     "subs %[length], %[length], #64\n"
		     "1:\n\t"
		     "ldp q0, q1, [%[src]]\n\t"
		     "ldp q2, q3, [%[src], #32]\n\t"
		     "stp q0, q1, [%[dst]]\n\t"
		     "stp q2, q3, [%[dst], #32]\n\t"
		     "add %[src], %[src], #64\n\t"
		     "add %[dst], %[dst], #64\n\t"
		     "subs %[length], %[length], #64\n\t"
		     "b.hs 1b\n\t"
		     "add %[src], %[src], %[length]\n\t"
		     "add %[dst], %[dst], %[length]\n\t"
		     "ldp q0, q1, [%[src]]\n\t"
		     "ldp q2, q3, [%[src], #32]\n\t"
		     "stp q0, q1, [%[dst]]\n\t"
		     "stp q2, q3, [%[dst], #32]\n" FIXUP
		     : [dst] "+r"(dst), [src] "+r"(src), [length] "+r"(length)
		     :
		     : "v0", "v1", "v2", "v3", "memory", "cc"
		     : faulted);
	return 0;
faulted:
	return -EFAULT;
}

#define LOAD(value, at, moves) \
	__asm__ volatile goto("771: " moves "\n" FIXUP : [v] "=r"(value) : [a] "r"(at) : "memory" : faulted)
#define STORE(value, at, moves) \
	__asm__ volatile goto("771: " moves "\n" FIXUP : : [v] "r"(value), [a] "r"(at) : "memory" : faulted)
#define LOAD1(v, a) LOAD(v, a, "ldrb %w[v], [%[a]]")
#define LOAD2(v, a) LOAD(v, a, "ldrh %w[v], [%[a]]")
#define LOAD4(v, a) LOAD(v, a, "ldr %w[v], [%[a]]")
#define LOAD8(v, a) LOAD(v, a, "ldr %[v], [%[a]]")
#define STORE1(v, a) STORE(v, a, "strb %w[v], [%[a]]")
#define STORE2(v, a) STORE(v, a, "strh %w[v], [%[a]]")
#define STORE4(v, a) STORE(v, a, "str %w[v], [%[a]]")
#define STORE8(v, a) STORE(v, a, "str %[v], [%[a]]")
#endif

int obmm_fixup_load(const void *src, unsigned int width, uint64_t *value)
{
	uint64_t loaded;

	switch (width) {
	case 1:
		LOAD1(loaded, src);
		break;
	case 2:
		LOAD2(loaded, src);
		break;
	case 4:
		LOAD4(loaded, src);
		break;
	default:
		LOAD8(loaded, src);
	}
	*value = loaded;
	return 0;
faulted:
	return -EFAULT;
}

int obmm_fixup_store(void *dst, unsigned int width, uint64_t value)
{
	switch (width) {
	case 1:
		STORE1(value, dst);
		break;
	case 2:
		STORE2(value, dst);
		break;
	case 4:
		STORE4(value, dst);
		break;
	default:
		STORE8(value, dst);
	}
	return 0;
faulted:
	return -EFAULT;
}
#endif
