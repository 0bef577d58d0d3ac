/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All that a C11 or C++17 program needs to export, import and touch memory;
 * docs/c-api.md shows two nodes.  The other rooms (gather/, engine/, blocks/,
 * ...) have headers of their own.
 */
#ifndef OBMM_H
#define OBMM_H

#include "abi/lp64.h"

#include "abi/obmm_abi.h"
#include "access/copy.h"
#include "access/gate.h"
#include "access/guard.h"
#include "access/held.h"
#include "access/order.h"
#include "core/bell.h"
#include "core/obmm_rw.h"
#include "core/owned.h"
#include "core/sys.h"
#include "core/topology.h"
#include "core/version.h"
#include "emulator/client.h"

#endif
