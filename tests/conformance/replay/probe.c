/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One load, store or call at a time, with the signal that it raises as the
 * result.  Compiled when the replay starts; knows nothing of what it probes.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>

static sigjmp_buf landing;
static volatile sig_atomic_t armed;
static volatile int last_signal, last_code;

static void caught(int signo, siginfo_t *info, void *context)
{
	(void)context;
	if (!armed) {
		signal(signo, SIG_DFL);
		raise(signo);
		return;
	}
	last_signal = signo;
	last_code = info->si_code;
	armed = 0;
	siglongjmp(landing, 1);
}

static void arm(void)
{
	static const int signals[] = { SIGSEGV, SIGBUS, SIGILL };
	struct sigaction action;
	size_t i;

	memset(&action, 0, sizeof(action));
	action.sa_sigaction = caught;
	action.sa_flags = SA_SIGINFO | SA_NODEFER;
	for (i = 0; i < sizeof(signals) / sizeof(*signals); i++)
		sigaction(signals[i], &action, NULL);
	last_signal = last_code = 0;
	armed = 1;
}

#define GUARDED(statement)                  \
	do {                                \
		arm();                      \
		if (!sigsetjmp(landing, 1)) \
			statement;          \
		armed = 0;                  \
	} while (0)

int probe_signal(void)
{
	return last_signal;
}

int probe_code(void)
{
	return last_code;
}

uint64_t probe_load(uintptr_t address, int width)
{
	volatile uint64_t value = 0;

	switch (width) {
	case 1:
		GUARDED(value = *(volatile uint8_t *)address);
		break;
	case 2:
		GUARDED(value = *(volatile uint16_t *)address);
		break;
	case 4:
		GUARDED(value = *(volatile uint32_t *)address);
		break;
	default:
		GUARDED(value = *(volatile uint64_t *)address);
	}
	return value;
}

void probe_store(uintptr_t address, int width, uint64_t value)
{
	switch (width) {
	case 1:
		GUARDED(*(volatile uint8_t *)address = (uint8_t)value);
		break;
	case 2:
		GUARDED(*(volatile uint16_t *)address = (uint16_t)value);
		break;
	case 4:
		GUARDED(*(volatile uint32_t *)address = (uint32_t)value);
		break;
	default:
		GUARDED(*(volatile uint64_t *)address = value);
	}
}

uint64_t probe_call(uintptr_t address)
{
	volatile uint64_t value = 0;

	GUARDED(value = ((uint64_t (*)(void))address)());
	return value;
}

/* 1 when every 8-byte word of [address, address + length) is `word`. */
int probe_all_equal(uintptr_t address, uint64_t length, uint64_t word)
{
	volatile int equal = 1;
	volatile uint64_t offset;

	for (offset = 0; offset < length && equal; offset += 8)
		if (*(volatile uint64_t *)(address + offset) != word)
			equal = 0;
	return equal;
}
