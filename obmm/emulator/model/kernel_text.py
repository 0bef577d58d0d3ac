# SPDX-License-Identifier: Apache-2.0
"""Texts as the kernel's own parsers read them: memparse, kstrtoint, kstrtobool, a module's parameter line.

Each follows its definition in lib/cmdline.c, lib/kstrtox.c and kernel/params.c of Linux 6.6. None of them knows
what Python's `int` accepts beyond it (underscores, blanks, `0b`, `0o`), and Python knows little of theirs.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator

from .calls import KernelError

_U64 = (1 << 64) - 1
_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1
_DIGITS = "0123456789abcdef"
_SHIFTS = {"k": 10, "m": 20, "g": 30, "t": 40, "p": 50, "e": 60}
_BLANKS = " \t\n\v\f\r\xa0"
"""isspace of the kernel, which counts the no-break space of Latin-1."""


def _radix(text: str) -> tuple[int, str]:
    """Base 0: the base of a number and its digits. `0x` counts only with a digit behind it."""
    if text[:1] != "0":
        return 10, text
    if text[1:2].lower() == "x" and text[2:3] and text[2].lower() in _DIGITS:
        return 16, text[2:]
    return 8, text


def _leading(text: str, base: int) -> tuple[int, int]:
    """The number at the start of `text` and how many digits it has; it may exceed 64 bits."""
    value = count = 0
    for letter in text:
        digit = _DIGITS.find(letter.lower())
        if not 0 <= digit < base:
            break
        value, count = value * base + digit, count + 1
    return value, count


def memparse(text: str) -> tuple[int, str]:
    """A size, and what is left over behind it. Never an error: no digits are 0, too many wrap at 64 bits."""
    base, digits = _radix(text)
    value, count = _leading(digits, base)
    rest = digits[count:]
    shift = _SHIFTS.get(rest[:1].lower(), 0)
    return (value << shift) & _U64, rest[1:] if shift else rest


def kstrtoint(text: str) -> int:
    """An int: one sign, one number in base 0, at most one newline. EINVAL for other texts, ERANGE beyond 32 bits."""
    negative = text[:1] == "-"
    unsigned = text[1:] if negative else text
    base, digits = _radix(unsigned[1:] if unsigned[:1] == "+" else unsigned)
    value, count = _leading(digits, base)
    if count and value > _U64:
        raise KernelError(errno.ERANGE, "12", f"{text!r} does not fit in 64 bits")
    if not count or digits[count:] not in ("", "\n"):
        raise KernelError(errno.EINVAL, "12", f"{text!r} is not a number")
    value = -value if negative else value
    if not _INT_MIN <= value <= _INT_MAX:
        raise KernelError(errno.ERANGE, "12", f"{text!r} does not fit in an int")
    return value


def kstrtobool(text: str) -> bool:
    """Yes or no, by the first letter; after an o, by the second. EINVAL for others."""
    first, second = text[:1].lower(), text[1:2].lower()
    if first in ("y", "t", "1") or (first, second) == ("o", "n"):
        return True
    if first in ("n", "f", "0") or (first, second) == ("o", "f"):
        return False
    raise KernelError(errno.EINVAL, "12", f"{text!r} is neither yes nor no")


def parameters(line: str) -> Iterator[tuple[str, str | None]]:
    """The words of a module's parameter line: name and value, None when it has none.

    Quotation marks hold blanks together and go when they stand around a value or a word; dashes in names are
    underscores; what follows ``--`` is not the module's.
    """
    at = 0
    while True:
        while at < len(line) and line[at] in _BLANKS:
            at += 1
        if at == len(line):
            return
        start, quoted, equals = at, False, -1
        while at < len(line) and (quoted or line[at] not in _BLANKS):
            if line[at] == "=" and equals < 0:
                equals = at
            if line[at] == '"':
                quoted = not quoted
            at += 1
        word, equals = line[start:at], equals - start if equals >= 0 else -1
        if word[:1] == '"':
            word, equals = word[1:].removesuffix('"'), equals - 1 if equals >= 0 else -1
        name, value = (word, None) if equals < 0 else (word[:equals], word[equals + 1 :])
        if value is not None and value[:1] == '"':
            value = value[1:].removesuffix('"')
        if name == "--" and value is None:
            return
        yield name.replace("-", "_"), value
