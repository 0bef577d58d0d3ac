# SPDX-License-Identifier: Apache-2.0
"""What one check of `obmm.host.doctor` found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "error", "skipped"]


@dataclass(frozen=True, slots=True)
class Check:
    """`text` says what was seen, `fix` what to do unless `status` is "ok"; "skipped" says why it could not be looked at."""

    name: str
    status: Status
    text: str
    fix: str = ""
