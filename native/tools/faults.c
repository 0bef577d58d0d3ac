/* SPDX-License-Identifier: Apache-2.0 */
#include "faults.h"

#include <setjmp.h>
#include <signal.h>
#include <string.h>

static sigjmp_buf back;

static void on_fault(int signal)
{
	siglongjmp(back, signal);
}

int faults_catch(void (*body)(void *), void *argument)
{
	struct sigaction action, old_bus, old_segv;
	int signal;

	memset(&action, 0, sizeof(action));
	action.sa_handler = on_fault;
	sigemptyset(&action.sa_mask);
	sigaction(SIGBUS, &action, &old_bus);
	sigaction(SIGSEGV, &action, &old_segv);
	signal = sigsetjmp(back, 1);
	if (!signal)
		body(argument);
	sigaction(SIGBUS, &old_bus, NULL);
	sigaction(SIGSEGV, &old_segv, NULL);
	return signal;
}
