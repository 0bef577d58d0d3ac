# SPDX-License-Identifier: Apache-2.0
"""What a step hands to the engine."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


class RowsStatus(enum.Enum):
    """Where the bytes of a `Rows` come from."""

    OK = "ok"
    REPLICA = "replica"
    """From the local replica: complete and right."""
    ZEROED = "zeroed"
    """Rows of `Rows.failed_tokens` are zero, which the model tolerates; the others are right."""
    FAILED = "failed"
    """All zero.  `drain` will raise: publish no token of this step."""
    EMPTY = "empty"
    """All zero because no step was begun: a profiling or warm-up forward."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one layer for one step.

    `buffer`: uint8 ``[padded_tokens, columns, row_bytes]``, zero behind `n_tokens`; valid until `drain` or `cancel`.
    `failed_tokens`: bool ``[n_tokens]`` with ZEROED, else None.

    `status` says where they come from.
    """

    buffer: Any
    n_tokens: int
    status: RowsStatus
    failed_tokens: NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True)
class StepReport:
    """What happened in drained step `step` of `n_tokens` tokens; times in seconds, one entry per layer.

    `phase` as `begin` was told, `generation` the content version, `statuses` what came, `blocked` how long `consume` waited,
    `gather` how long gathers took, `unused` the layers that were not consumed.
    """

    step: int
    phase: str
    n_tokens: int
    generation: int
    statuses: dict[int, RowsStatus]
    blocked: dict[int, float]
    gather: dict[int, float]
    unused: tuple[int, ...]
    """Layers that were gathered for nothing."""
