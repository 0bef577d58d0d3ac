# SPDX-License-Identifier: Apache-2.0
"""Runs the test cases of one module: one line each, no plugins, which a guest without hardware help has no time for."""

from __future__ import annotations

import sys
import unittest


def run(name: str) -> bool:
    """True when all tests of module `name` pass."""
    tests = unittest.defaultTestLoader.loadTestsFromModule(sys.modules[name])
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=1).run(tests)
    print(f"TESTS {name.rpartition('.')[2]}: {result.testsRun} run, {len(result.failures) + len(result.errors)} failed")
    return result.wasSuccessful() and result.testsRun > 0
