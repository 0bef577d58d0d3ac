# SPDX-License-Identifier: Apache-2.0
"""Random lives of programs that use the package, until one breaks a promise: ``make chaos``."""
