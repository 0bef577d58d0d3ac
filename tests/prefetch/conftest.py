# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def vectors() -> dict[str, Any]:
    """Appendix A of the Engram specification."""
    loaded: dict[str, Any] = json.loads((DATA / "vectors.json").read_text())
    return loaded
