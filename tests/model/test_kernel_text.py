# SPDX-License-Identifier: Apache-2.0
"""The kernel's parsers, against their definitions."""

from __future__ import annotations

import errno
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from obmm.emulator.model.calls import KernelError
from obmm.emulator.model.kernel_text import kstrtobool, kstrtoint, memparse, parameters

from .harness import refusal


@pytest.mark.parametrize(
    ("text", "size", "rest"),
    [
        ("16M", 16 << 20, ""),
        ("16MB", 16 << 20, "B"),
        ("16MiB", 16 << 20, "iB"),
        ("010", 8, ""),
        ("08", 0, "8"),
        ("0x1g", 1 << 30, ""),
        ("0xg", 0, "xg"),
        ("0X10k", 16 << 10, ""),
        ("1t", 1 << 40, ""),
        ("1P", 1 << 50, ""),
        ("15e", 15 << 60, ""),
        ("16E", 0, ""),
        ("1_000", 1, "_000"),
        ("0b11", 0, "b11"),
        (" 1", 0, " 1"),
        ("+1", 0, "+1"),
        ("-1", 0, "-1"),
        ("", 0, ""),
        ("M", 0, ""),
        ("18446744073709551617", 1, ""),
        ("1KK", 1 << 10, "K"),
    ],
)
def test_memparse(text: str, size: int, rest: str) -> None:
    assert memparse(text) == (size, rest)


@pytest.mark.parametrize(
    ("text", "value"),
    [("10", 10), ("010", 8), ("0x10", 16), ("+7", 7), ("-7", -7), ("-+7", -7), ("7\n", 7), ("-2147483648", -(1 << 31))],
)
def test_kstrtoint(text: str, value: int) -> None:
    assert kstrtoint(text) == value


@pytest.mark.parametrize(
    "text", ["", "+", "-", "+-7", "--7", "++7", " 7", "7 ", "7\n\n", "1_0", "0b1", "0o7", "08", "0x", "7k"]
)
def test_kstrtoint_refuses(text: str) -> None:
    assert refusal(lambda: kstrtoint(text)).errno == errno.EINVAL


@pytest.mark.parametrize("text", ["2147483648", "-2147483649", "0x80000000", "99999999999999999999"])
def test_kstrtoint_has_32_bits(text: str) -> None:
    assert refusal(lambda: kstrtoint(text)).errno == errno.ERANGE


@pytest.mark.parametrize("text", ["y", "Y", "yes", "yup", "t", "True", "1", "10", "on", "ON", "One", "once"])
def test_kstrtobool_yes(text: str) -> None:
    assert kstrtobool(text) is True


@pytest.mark.parametrize("text", ["n", "N", "no", "never", "f", "false", "0", "01", "of", "off", "OFF"])
def test_kstrtobool_no(text: str) -> None:
    assert kstrtobool(text) is False


@pytest.mark.parametrize("text", ["", "o", "ok", "2", " y", "maybe", "-1", "+1"])
def test_kstrtobool_refuses(text: str) -> None:
    assert refusal(lambda: kstrtobool(text)).errno == errno.EINVAL


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("a=1 b=2", [("a", "1"), ("b", "2")]),
        ("  a=1\tb\n", [("a", "1"), ("b", None)]),
        ('a="x y" b', [("a", "x y"), ("b", None)]),
        ('"a=x y"', [("a", "x y")]),
        ("a=b=c", [("a", "b=c")]),
        ("a-b=c-d", [("a_b", "c-d")]),
        ("a= b=1", [("a", ""), ("b", "1")]),
        ("a=1 -- b=2", [("a", "1")]),
        ('a="x', [("a", "x")]),
    ],
)
def test_parameter_line(line: str, words: list[tuple[str, str | None]]) -> None:
    assert list(parameters(line)) == words


@given(st.text(st.sampled_from("0123456789abfxXkKmMgG+-_ \n"), max_size=8))
def test_kstrtoint_takes_what_its_grammar_says(text: str) -> None:
    grammar = re.fullmatch(r"(-?)\+?(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)\n?", text)
    if grammar is None:
        with pytest.raises(KernelError):
            kstrtoint(text)
        return
    digits = grammar[2]
    base = 16 if digits[:2].lower() == "0x" else 8 if digits[0] == "0" else 10
    value = int(digits, base) * (-1 if grammar[1] else 1)
    if abs(value) < 1 << 31:
        assert kstrtoint(text) == value
