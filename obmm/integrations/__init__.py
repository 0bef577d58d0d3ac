# SPDX-License-Identifier: Apache-2.0
"""Doors into inference engines.

An engine finds its door by its own plug-in mechanism.  A door imports no engine before the engine calls it, and changes
nothing until its own setting names a source.
"""
