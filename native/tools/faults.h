/* SPDX-License-Identifier: Apache-2.0 */
#ifndef OBMM_FAULTS_H
#define OBMM_FAULTS_H

/*
 * body(argument) with SIGBUS and SIGSEGV caught: 0, or the signal that ended
 * it.  One at a time, one thread.
 */
int faults_catch(void (*body)(void *), void *argument);

#endif
