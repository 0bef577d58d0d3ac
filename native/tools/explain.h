/* SPDX-License-Identifier: Apache-2.0 */
/* What an errno means for an operation: the table of obmm/explanations.py. */
#ifndef OBMM_EXPLAIN_H
#define OBMM_EXPLAIN_H

#include <stdio.h>

/*
 * "ENOMEM (Cannot allocate memory)" and, one a line, each known cause with its
 * rule and the fix.  operation as in `obmm explain` ("EXPORT", "MMAP").
 */
void explain(FILE *out, const char *operation, int error);

#endif
