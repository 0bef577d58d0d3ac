# SPDX-License-Identifier: Apache-2.0
"""The answers of a case in one short line."""

from __future__ import annotations

from typing import Any


def answers(steps: list[dict[str, Any]]) -> str:
    """One word a step: the errno or signal, the loaded value, what the call returned, or "-"; repeats are counted."""
    words: list[tuple[str, int]] = []
    for word in map(_word, steps):
        if words and words[-1][0] == word:
            words[-1] = (word, words[-1][1] + 1)
        else:
            words.append((word, 1))
    return " ".join(word if count == 1 else f"{word}x{count}" for word, count in words)


def _word(step: dict[str, Any]) -> str:
    for key in ("failure", "hang"):
        if key in step:
            return key
    if "signal" in step:
        return f"{step['signal']}/{step.get('si_code')}"
    if "errno" in step:
        return str(step["errno"])
    if "value" in step:
        value = step["value"]
        return value if isinstance(value, str) else hex(value)
    return str(step.get("ret", "-"))
