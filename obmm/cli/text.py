# SPDX-License-Identifier: Apache-2.0
"""Texts that others wrote, shown as what they are: text."""

from __future__ import annotations

import unicodedata

from rich.text import Text

MOST = 256


def shown(text: object, most: int = MOST) -> str:
    """The text with everything that a terminal would act on made visible, cut after ``most`` characters.

    >>> shown("a\\x1b[31mb")
    'a\\\\x1b[31mb'
    """
    out = "".join(_visible(each) for each in str(text)[: most + 1])
    return out if len(out) <= most else out[: most - 3] + "..."


def in_lines(text: object) -> str:
    """Several lines, each as `shown` would show it, and whole.

    >>> in_lines("two\\nlines\\x1b[2J")
    'two\\nlines\\\\x1b[2J'
    """
    return "\n".join("".join(map(_visible, line)) for line in str(text).split("\n"))


def cell(text: object, style: str = "") -> Text:
    """For a table of rich: no markup of the text's own counts."""
    return Text(shown(text), style=style)


def _visible(character: str) -> str:
    # controls, formats (also what turns the direction of writing), surrogates, private and unassigned, line separators
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        return character.encode("unicode_escape", "surrogatepass").decode("ascii")
    return character
