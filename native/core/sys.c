/* SPDX-License-Identifier: Apache-2.0 */
#include "sys.h"

#include <assert.h>
#include <errno.h>

/* Where each member was when a program was compiled: a line is added for a new one, and none is ever changed. */
#define AT(member, offset) static_assert(offsetof(struct obmm_sys, member) == (offset), #member " has moved")

AT(size, 0);
AT(open, 8);
AT(ioctl, 16);
AT(mmap, 24);
AT(munmap, 32);
AT(close, 40);
AT(destroy, 48);
AT(root, 56);
AT(name, 64);

int obmm_sys_check(const struct obmm_sys *sys)
{
	return OBMM_SYS_HAS(sys, name) ? 0 : -ENOSYS;
}
