/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The trampoline: the only assembly of the guard.  obmm_guard_call() saves the
 * callee-saved registers on its stack and leaves the stack pointer with the
 * caller; after a fault the signal handler returns to obmm_guard_landing with
 * that stack pointer, and the call looks like one that returned -EFAULT.
 *
 * The kernel restores the signal mask and the alternate stack on that way,
 * which a longjmp out of a handler would not, and no C function returns twice.
 */
#include <assert.h>
#include <errno.h>

#include "guard_internal.h"

static_assert(EFAULT == 14, "the landings return -EFAULT as a literal");

extern const char obmm_guard_landing[] __attribute__((visibility("hidden")));

#if defined(__x86_64__)
__asm__(".text\n"
	".p2align 4\n"
	".hidden obmm_guard_call\n"
	".globl obmm_guard_call\n"
	".type obmm_guard_call, @function\n"
	"obmm_guard_call:\n"
	"	.cfi_startproc\n"
	"	pushq %rbp\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	.cfi_rel_offset %rbp, 0\n"
	"	pushq %rbx\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	.cfi_rel_offset %rbx, 0\n"
	"	pushq %r12\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	.cfi_rel_offset %r12, 0\n"
	"	pushq %r13\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	.cfi_rel_offset %r13, 0\n"
	"	pushq %r14\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	.cfi_rel_offset %r14, 0\n"
	"	pushq %r15\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	.cfi_rel_offset %r15, 0\n"
	"	subq $8, %rsp\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	movq %rsp, (%rdi)\n"
	"	movq %rsi, %rax\n"
	"	movq %rdx, %rdi\n"
	"	call *%rax\n"
	"1:	addq $8, %rsp\n"
	"	.cfi_remember_state\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	popq %r15\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	popq %r14\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	popq %r13\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	popq %r12\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	popq %rbx\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	popq %rbp\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	ret\n"
	".hidden obmm_guard_landing\n"
	".globl obmm_guard_landing\n"
	"obmm_guard_landing:\n"
	"	.cfi_restore_state\n"
	"	cld\n"
	"	movl $-14, %eax\n" /* -EFAULT */
	"	jmp 1b\n"
	"	.cfi_endproc\n"
	".size obmm_guard_call, .-obmm_guard_call\n");

void obmm_guard_land(ucontext_t *context, uintptr_t sp)
{
	obmm_guard_go(context, (uintptr_t)obmm_guard_landing);
	context->uc_mcontext.gregs[REG_RSP] = (greg_t)sp;
}

uintptr_t obmm_guard_pc(const ucontext_t *context)
{
	return (uintptr_t)context->uc_mcontext.gregs[REG_RIP];
}

void obmm_guard_go(ucontext_t *context, uintptr_t pc)
{
	context->uc_mcontext.gregs[REG_RIP] = (greg_t)pc;
}
#elif defined(__aarch64__)
__asm__(".text\n"
	".p2align 4\n"
	".hidden obmm_guard_call\n"
	".globl obmm_guard_call\n"
	".type obmm_guard_call, %function\n"
	"obmm_guard_call:\n"
	"	.cfi_startproc\n"
	"	stp x29, x30, [sp, #-160]!\n"
	"	.cfi_def_cfa_offset 160\n"
	"	.cfi_offset x29, -160\n"
	"	.cfi_offset x30, -152\n"
	"	mov x29, sp\n"
	"	stp x19, x20, [sp, #16]\n"
	"	stp x21, x22, [sp, #32]\n"
	"	stp x23, x24, [sp, #48]\n"
	"	stp x25, x26, [sp, #64]\n"
	"	stp x27, x28, [sp, #80]\n"
	"	.cfi_offset x19, -144\n"
	"	.cfi_offset x20, -136\n"
	"	.cfi_offset x21, -128\n"
	"	.cfi_offset x22, -120\n"
	"	.cfi_offset x23, -112\n"
	"	.cfi_offset x24, -104\n"
	"	.cfi_offset x25, -96\n"
	"	.cfi_offset x26, -88\n"
	"	.cfi_offset x27, -80\n"
	"	.cfi_offset x28, -72\n"
	"	stp d8, d9, [sp, #96]\n"
	"	stp d10, d11, [sp, #112]\n"
	"	stp d12, d13, [sp, #128]\n"
	"	stp d14, d15, [sp, #144]\n"
	"	mov x9, sp\n"
	"	str x9, [x0]\n"
	"	mov x9, x1\n"
	"	mov x0, x2\n"
	"	blr x9\n"
	"1:	ldp x19, x20, [sp, #16]\n"
	"	ldp x21, x22, [sp, #32]\n"
	"	ldp x23, x24, [sp, #48]\n"
	"	ldp x25, x26, [sp, #64]\n"
	"	ldp x27, x28, [sp, #80]\n"
	"	ldp d8, d9, [sp, #96]\n"
	"	ldp d10, d11, [sp, #112]\n"
	"	ldp d12, d13, [sp, #128]\n"
	"	ldp d14, d15, [sp, #144]\n"
	"	.cfi_remember_state\n"
	"	ldp x29, x30, [sp], #160\n"
	"	.cfi_restore x29\n"
	"	.cfi_restore x30\n"
	"	.cfi_def_cfa_offset 0\n"
	"	ret\n"
	".hidden obmm_guard_landing\n"
	".globl obmm_guard_landing\n"
	"obmm_guard_landing:\n"
	"	.cfi_restore_state\n"
	"	mov w0, #-14\n" /* -EFAULT */
	"	b 1b\n"
	"	.cfi_endproc\n"
	".size obmm_guard_call, .-obmm_guard_call\n");

void obmm_guard_land(ucontext_t *context, uintptr_t sp)
{
	obmm_guard_go(context, (uintptr_t)obmm_guard_landing);
	context->uc_mcontext.sp = sp;
}

uintptr_t obmm_guard_pc(const ucontext_t *context)
{
	return context->uc_mcontext.pc;
}

void obmm_guard_go(ucontext_t *context, uintptr_t pc)
{
	context->uc_mcontext.pc = pc;
}
#else
#error "obmm: guarded access knows x86-64 and aarch64 only"
#endif
