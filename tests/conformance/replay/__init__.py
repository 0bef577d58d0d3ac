# SPDX-License-Identifier: Apache-2.0
"""Replays recorded answers of the real driver against a backend.

Standard library and the native module only: the same files run in a guest
kernel.  `transcript` reads the cases, `agent` performs one process's steps,
`replay` walks a case over a `port`, `judge` compares.
"""
