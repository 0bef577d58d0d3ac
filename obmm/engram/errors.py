# SPDX-License-Identifier: Apache-2.0
"""How a checkpoint or a table is refused: as a file, or for what an Engram needs of it."""

from __future__ import annotations

import errno

from obmm.errors import ObmmArgumentError

PAGE = "docs/engram-tables.md"


def refused(problem: str, fix: str, number: int = errno.EINVAL) -> ObmmArgumentError:
    """`problem` names the file or the tensor and what is wrong with it."""
    return ObmmArgumentError.because("ENGRAM", number, problem, fix, PAGE)


def refused_file(problem: str, fix: str, number: int = errno.EINVAL) -> ObmmArgumentError:
    """A file or folder that is not a safetensors checkpoint, or a cut one."""
    return ObmmArgumentError.because("FILE", number, problem, fix, "docs/files.md")
