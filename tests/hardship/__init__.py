# SPDX-License-Identifier: Apache-2.0
"""The emulator under processes that die anywhere and clients that do not speak its protocol."""
