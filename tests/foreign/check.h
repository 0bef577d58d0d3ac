/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FOREIGN_CHECK_H
#define FOREIGN_CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                    \
	do {                                                                                                \
		if (!(condition)) {                                                                         \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, strerror(errno)); \
			exit(1);                                                                            \
		}                                                                                           \
	} while (0)

/* The call must fail, and with this errno. */
#define REFUSED(call, number)                                                                               \
	do {                                                                                                \
		errno = 0;                                                                                  \
		if ((long)(call) != -1 || errno != (number)) {                                              \
			fprintf(stderr, "%s:%d: %s: %s instead of %s\n", __FILE__, __LINE__, #call,         \
				strerror(errno), strerror(number));                                         \
			exit(1);                                                                            \
		}                                                                                           \
	} while (0)

#endif
