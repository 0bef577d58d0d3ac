# SPDX-License-Identifier: Apache-2.0
"""E9: every parser of files, texts and lines says what is wrong in its own words, or has a value; nothing else.

Each error is one that a program can catch as ours, is short, and holds no character that a terminal acts on.
"""

from __future__ import annotations

import json
import os
import tempfile
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from obmm import Handle, emulator
from obmm.bench.results import NotResults
from obmm.bench.results import read as read_results
from obmm.broker.policy import Policy
from obmm.emulator.topology import Topology, TopologyError
from obmm.engram.families import families_of
from obmm.errors import ObmmError
from obmm.exchange.access import Access
from obmm.exchange.held import held_by_others
from obmm.exchange.journal import LeaseJournal
from obmm.exchange.journal_lines import host_id
from obmm.exchange.keys import Key
from obmm.exchange.net import split_address
from obmm.exchange.tls import TlsFiles
from obmm.files import open_arrays
from obmm.files.safetensors import tensor_names
from obmm.sizes import parse_size

LONGEST = 2000
DIGITS = "9" * 5000  # more than int() takes
DEEP = "[" * 3000

# whole documents, and pieces that generated ones are made of
RULES = (
    '[[allow]]\nusers = [0]\ncontrol = true\n', '[[allow]]\nkeys = ["a"]\nregions = ["*"]\n', f"allow = {DIGITS}", f"a = {DEEP}",
    '[[key]]\nname = "\\u001b[31m"\nfile = "x"\n', '"\\u001b[2J" = 1\n', '[[allow]]\n"\\u001b[2J" = 1\n',
    '[[allow]]\nusers = ["\\u001b[2J"]\ncontrol = true\n', '[[allow]]\nusers = [0]\nregions = "\\u202e"\n', "a = 1979-05-27",
    'version = 2\n', "allow = 5", "allow = [1]", "allow = [[]]", "\x1b[31m", "a\x00b", 'family = [{name = "\\u001b"}]',
)  # fmt: skip


def in_file(parse: Callable[[Path], Any]) -> Callable[[bytes], Any]:
    """A parser of a file, as one of its content."""

    def parsed(data: bytes) -> Any:
        with tempfile.TemporaryDirectory(prefix="obmm") as folder:
            path = Path(folder) / "file"
            path.write_bytes(data)
            path.chmod(0o600)
            return parse(path)

    return parsed


def in_text(parse: Callable[[str], Any]) -> Callable[[bytes], Any]:
    return lambda data: parse(data.decode("utf-8", "surrogateescape"))


PARSERS: dict[str, Callable[[bytes], Any]] = {
    "broker's policy": in_file(Policy),
    "rules of access": in_file(Access.load),
    "key": in_file(Key.load),
    "families": in_file(families_of),
    "topology": in_file(Topology.load),
    "certificates": in_file(lambda path: TlsFiles(path, path, path, revoked=path).context(server=True)),
    "handle": Handle.unpack,
    "address": in_text(split_address),
    "size": in_text(parse_size),
}
OWN = (ObmmError, TopologyError)


def judge(name: str, data: bytes) -> None:
    try:
        PARSERS[name](data)
    except OWN as error:
        text = str(error)
    except ValueError as error:
        assert name == "size", error  # it is an argument's, and its callers name the argument
        text = str(error)
    else:
        return
    assert len(text) < LONGEST, text[:200]
    wild = {each for each in text if unicodedata.category(each) in ("Cc", "Cf", "Cs") and each != "\n"}
    assert not wild, ascii(text)


@pytest.mark.parametrize("name", PARSERS)
@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace"))))
def test_any_bytes_are_a_value_or_an_error_of_its_own(name: str, data: bytes) -> None:
    judge(name, data)


@pytest.mark.parametrize("name", PARSERS)
@given(st.lists(st.sampled_from([*RULES, "\n", "[[allow]]\n", "=", '"', "]", "#", "\\"]), min_size=1, max_size=4))
def test_broken_documents_are_a_value_or_an_error_of_its_own(name: str, pieces: list[str]) -> None:
    judge(name, "".join(pieces).encode())


@pytest.mark.parametrize("name", PARSERS)
def test_each_known_hard_text_is_a_value_or_an_error_of_its_own(name: str) -> None:
    hard = (
        *RULES,
        DIGITS,
        DEEP,
        f"1:{DIGITS}",
        f"{DIGITS}MiB",
        "٣٣",
        "[::1]:" + "0" * 4400,
        "a:" + "0" * 4300 + "80",
        "\ud800",
    )
    for text in hard:
        judge(name, text.encode("utf-8", "surrogatepass"))


LOADERS: dict[str, Callable[[Any], Any]] = {
    "broker's policy": Policy, "rules of access": Access.load, "key": Key.load, "families": families_of, "topology": Topology.load,
    "topology of a fabric": lambda path: emulator.start(topology=path), "array": open_arrays, "results": read_results,
    "tables": lambda path: tensor_names(Path(path)), "private key": lambda path: TlsFiles(path, path, path).context(server=True),
    "journal": LeaseJournal,
}  # fmt: skip


@pytest.mark.parametrize("name", LOADERS)
def test_a_name_with_a_nul_is_refused_in_its_own_words(name: str, tmp_path: Path) -> None:
    """The system would see the first part only; where a file says the name, no argument of a command is checked before."""
    (tmp_path / "a").write_text("")
    with pytest.raises((*OWN, NotResults, OSError)):
        LOADERS[name](f"{tmp_path}/a\0b")


def test_nothing_is_made_under_the_first_half_of_a_name(tmp_path: Path) -> None:
    with pytest.raises(ObmmError):
        Key.generate(f"{tmp_path}/a\0b")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", LOADERS)
def test_what_is_no_file_is_refused_and_holds_nobody(name: str) -> None:
    """A pipe has no end that could be waited for, and /dev/zero none at all."""
    with tempfile.TemporaryDirectory(prefix="obmm") as folder:
        pipe = Path(folder) / "pipe"
        os.mkfifo(pipe, 0o600)
        for path in (pipe, Path("/dev/zero"), Path(folder)):
            with pytest.raises((*OWN, NotResults, OSError)) as caught:
                LOADERS[name](path)
            assert len(str(caught.value)) < LONGEST


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    (tmp_path / "held").mkdir()
    return tmp_path / "held" / f"{host_id()}-1-1.leases"


NOTE = {"lease": "00" * 16, "region": "r", "server": "127.0.0.1:1", "mode": "key", "files": ["k"], "server_name": None}
HEAD = {"format": 1, "boot": "00" * 16, "namespace": 1, "pid": 1, "start": 1}


@pytest.mark.parametrize(
    "lines",
    [
        [DIGITS], [DEEP], ["{}"], ["[]"], ["null"], [json.dumps(HEAD | {"pid": DIGITS})], [json.dumps(HEAD | {"boot": 5})],
        [json.dumps(HEAD), DEEP], [json.dumps(HEAD), DIGITS], [json.dumps(HEAD), "5"], [json.dumps(HEAD), '{"lease": 5}'],
        [json.dumps(HEAD), '{"over": "zz"}'], [json.dumps(HEAD), '{"lease": "00", "files": 5}'],
        [json.dumps(HEAD), '{"lease": "00", "device": {}}'],
        [json.dumps(HEAD).replace('"pid": 1', '"pid": 1e999')], [json.dumps(HEAD | {"pid": 1 << 80})],
        [json.dumps(HEAD | {"start": -1})], *([json.dumps(HEAD), json.dumps(NOTE | change)] for change in (
            {"files": []}, {"files": ["a", "b"]}, {"mode": "tls"}, {"mode": "tls", "files": ["a"] * 5}, {"mode": "plain"},
            {"mode": "quantum"}, {"server_name": 5}, {"files": [5]},
        )),
    ],
)  # fmt: skip
def test_notes_of_held_leases_that_nobody_can_read_are_left_out(notes: Path, lines: list[str]) -> None:
    notes.write_text("\n".join(lines) + "\n")
    for each in held_by_others(notes.parent.parent):
        assert each.leases == ()
