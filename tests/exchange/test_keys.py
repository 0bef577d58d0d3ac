# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hashlib
import os
import pickle
import random
import stat
from pathlib import Path

import pytest

from obmm import ObmmArgumentError
from obmm.exchange import Key
from obmm.exchange.keys import load_keys

GOOD = hashlib.sha256(b"a key for tests").hexdigest()  # the same in every process


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_generate_makes_a_key_that_loads(tmp_path: Path) -> None:
    key = Key.generate(tmp_path / "k")
    assert stat.S_IMODE((tmp_path / "k").stat().st_mode) == 0o600
    assert Key.load(tmp_path / "k").identity == key.identity


def test_generate_never_overwrites(tmp_path: Path) -> None:
    Key.generate(tmp_path / "k")
    with pytest.raises(ObmmArgumentError, match="File exists"):
        Key.generate(tmp_path / "k")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o644, 0o666])
def test_a_key_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ObmmArgumentError, match=f"mode {mode:04o} lets group or others in.*chmod 600"):
        Key.load(write(tmp_path / "k", GOOD, mode))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_key_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "k", GOOD)
    os.chown(path, 12345, 12345)
    with pytest.raises(ObmmArgumentError, match="belongs to uid 12345"):
        Key.load(path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "a key of 0 bytes"),
        (GOOD[:62], "a key of 31 bytes"),
        (random.Random(1).randbytes(129).hex(), "a key of 129 bytes"),
        ("00" * 32, "too regular"),
        ("0123456789abcdef" * 4, "too regular"),
        (GOOD[:-1], "something other than pairs of hexadecimal digits"),
        (GOOD + "zz", "something other than pairs of hexadecimal digits"),
        ("pässword", "something other than pairs of hexadecimal digits"),
    ],
)
def test_weak_and_malformed_keys_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ObmmArgumentError, match=problem) as caught:
        Key.load(write(tmp_path / "k", text))
    assert len(text) < 8 or text[:8] not in str(caught.value)


def test_white_space_does_not_matter(tmp_path: Path) -> None:
    plain = Key.load(write(tmp_path / "a", GOOD))
    spaced = Key.load(write(tmp_path / "b", f"{GOOD[:32]}\n{GOOD[32:].upper()}\r\n\n"))
    assert plain.identity == spaced.identity


@pytest.mark.parametrize("what", ["missing", "folder", "fifo"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, what: str) -> None:
    path = tmp_path / what
    if what == "folder":
        path.mkdir()
    if what == "fifo":
        os.mkfifo(path, 0o600)
    with pytest.raises(ObmmArgumentError):
        Key.load(path)


def test_a_key_shows_its_identity_only(tmp_path: Path) -> None:
    key = Key.load(write(tmp_path / "k", GOOD))
    assert key.identity in repr(key)
    assert GOOD[:8] not in repr(key)
    assert key.identity not in GOOD
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(key)


def test_at_most_two_keys(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in range(3)]
    for path in paths:
        Key.generate(path)
    assert len(load_keys(paths[:2], 2)) == 2
    with pytest.raises(ObmmArgumentError, match="3 keys"):
        load_keys(paths, 2)
    with pytest.raises(ObmmArgumentError, match="0 keys"):
        load_keys([], 2)
