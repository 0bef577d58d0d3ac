# SPDX-License-Identifier: Apache-2.0
"""A rule of access for a region that is not served is told; the others are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from obmm.cli import serve


def test_a_rule_that_fits_no_region_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = tmp_path / "access.toml"
    rule = '[[allow]]\nidentities = ["{}"]\nregions = ["words*", "embedings", "*"]\n'
    rules.write_text(rule.format("a") + rule.format("b"))
    rules.chmod(0o600)
    told: list[str] = []
    monkeypatch.setattr(serve, "tell", told.append)
    serve._tell_of_idle_rules(str(rules), ["words-1", "embeddings"])
    serve._tell_of_idle_rules(None, ["words-1"])
    (said,) = told
    assert "embedings," in said
    assert "words-1, embeddings" in said
