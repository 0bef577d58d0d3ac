# SPDX-License-Identifier: Apache-2.0
"""The reviewed list of recorded cases that the emulator answers differently."""

from __future__ import annotations

import tomllib
from pathlib import Path

_LIST = tomllib.loads(Path(__file__).with_name("data").joinpath("known.toml").read_text(encoding="utf-8"))

DIFFERS: dict[str, str] = _LIST["differs"]
NOT_RUN: dict[str, str] = _LIST["not_run"]
