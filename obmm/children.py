# SPDX-License-Identifier: Apache-2.0
"""How this package starts a module of its own as another process."""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = str(Path(__file__).resolve().parents[1])
# The package of the parent is found wherever it is, behind everything else: nothing beside it can stand in for the
# standard library, and the current folder, which another user may own, is not searched at all (-P).
_BOOT = "import runpy, sys; sys.path.append(sys.argv.pop(1)); runpy.run_module(sys.argv.pop(1), None, '__main__', True)"


def python_module(module: str, *arguments: object) -> list[str]:
    """The command line that runs ``module`` as `python -m` would, without a look into the current folder."""
    return [sys.executable, "-P", "-c", _BOOT, _ROOT, module, *map(str, arguments)]
