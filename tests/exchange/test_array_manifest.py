# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from obmm import ObmmArgumentError
from obmm.exchange.array_manifest import ArrayManifest
from obmm.files.npy import NpyFile, npy_writer

DTYPES = st.one_of(
    hnp.scalar_dtypes(),
    hnp.array_dtypes(allow_subarrays=True),
    hnp.nested_dtypes(),
)


@settings(max_examples=50)
@given(DTYPES, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0))
def test_any_dtype_and_shape_survives_json(dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    if dtype.subdtype is not None:
        return  # an array never has such a dtype: its shape becomes part of the array's
    manifest = ArrayManifest(dtype, shape, "ab" * 32)
    assert ArrayManifest.parse(json.loads(json.dumps(manifest.to_json()))) == manifest


@pytest.mark.parametrize("dtype", ["O", [("a", "O")], [("a", [("b", "<f4"), ("c", "O")])]])
def test_object_dtypes_are_refused(dtype: Any) -> None:
    with pytest.raises(ObmmArgumentError, match="Python objects"):
        ArrayManifest(np.dtype(dtype), (3,))
    with pytest.raises(ObmmArgumentError, match=r"Python objects|not a plain type"):
        ArrayManifest.parse(
            {"format": "obmm-array", "version": 1, "dtype": json.loads(json.dumps(dtype)), "shape": [3]}
        )


@given(
    st.dictionaries(
        st.sampled_from(["format", "version", "dtype", "shape", "sha256"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("obmm-array"),
            lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
            max_leaves=12,
        ),
    )
)
def test_foreign_json_is_refused_and_nothing_else(manifest: dict[str, Any]) -> None:
    full = {"format": "obmm-array", "version": 1, "dtype": "<f4", "shape": [2]} | manifest
    for document in (manifest, full):
        with contextlib.suppress(ObmmArgumentError):
            ArrayManifest.parse(document)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"format": "other"}, "format 'other'"),
        ({"version": 2}, "version 2"),
        ({"shape": [-1]}, "shape"),
        ({"shape": [1.5]}, "list of integers"),
        ({"shape": [True]}, "list of integers"),
        ({"shape": "3"}, "list of integers"),
        ({"dtype": "i4,i4"}, "not a plain type"),
        ({"dtype": None}, "neither a type"),
        ({"dtype": [["a"]]}, "a field is not"),
        ({"sha256": "ab"}, "64 hexadecimal digits"),
    ],
)
def test_each_mistake_is_named(change: dict[str, Any], problem: str) -> None:
    good = {"format": "obmm-array", "version": 1, "dtype": "<f4", "shape": [2]}
    with pytest.raises(ObmmArgumentError, match=problem):
        ArrayManifest.parse(good | change)


def save(path: Path, array: np.ndarray[Any, Any]) -> NpyFile:
    np.save(path, array)
    return NpyFile(path)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24, dtype="<f4").reshape(2, 3, 4),
        np.asfortranarray(np.arange(24, dtype=">i2").reshape(4, 6)),
        np.array(7, dtype="<u8"),
        np.zeros((0, 5)),
        np.zeros((5, 0), "<c16"),
        np.array(["a", "bcd"]),
        np.array(["2026-01-01"], dtype="<M8[D]"),
        np.array([(1, [2, 3]), (4, [5, 6])], dtype=[("x", "<i4"), ("y", "<f8", (2,))]),
        np.asfortranarray(np.zeros((3, 4), dtype=[("x", "<i4"), ("y", "|b1")])),
        np.zeros(3, dtype=np.dtype({"names": ["a"], "formats": ["<i2"], "offsets": [6], "itemsize": 16})),
    ],
    ids=lambda array: f"{array.dtype}-{array.shape}",
)
def test_files_are_read_in_c_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, array: Any) -> None:
    monkeypatch.setattr("obmm.files.npy.CHUNK", 16)
    file = save(tmp_path / "a.npy", array)
    data = bytearray(b"".join(bytes(chunk) for chunk in file.chunks()))
    assert bytes(data) == array.tobytes()
    assert file.manifest.dtype == array.dtype
    assert file.manifest.array(data).tobytes() == array.tobytes()
    with npy_writer(tmp_path / "b.npy", file.manifest) as out:
        out.write(data)
    again = np.load(tmp_path / "b.npy", allow_pickle=False)
    assert again.dtype == array.dtype
    assert again.shape == array.shape
    assert again.tobytes() == array.tobytes()


def test_an_object_file_is_refused_unread(tmp_path: Path) -> None:
    np.save(tmp_path / "o.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ObmmArgumentError, match="holds Python objects"):
        NpyFile(tmp_path / "o.npy")


@pytest.mark.parametrize("fields", [2, 5000])
def test_a_written_file_equals_what_numpy_saves(tmp_path: Path, fields: int) -> None:
    array = np.ones(3, dtype=[(f"field{number}", "<f4") for number in range(fields)])
    with warnings.catch_warnings():  # NumPy tells when it needs version 2.0
        warnings.simplefilter("ignore", UserWarning)
        np.save(tmp_path / "a.npy", array)
    with npy_writer(tmp_path / "b.npy", ArrayManifest(array.dtype, array.shape)) as out:
        out.write(array.tobytes())
    assert (tmp_path / "b.npy").read_bytes() == (tmp_path / "a.npy").read_bytes()


def test_what_is_no_npy_file_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "z.npz", a=np.zeros(3))
    (tmp_path / "empty.npy").write_bytes(b"")
    for path, problem in (
        ("z.npz", "is not a .npy file"),
        ("empty.npy", "is not a .npy file"),
        ("gone.npy", "No such file"),
    ):
        with pytest.raises(ObmmArgumentError, match=problem):
            NpyFile(tmp_path / path)


def test_a_file_that_is_cut_short_is_refused_before_anything_is_exported(tmp_path: Path) -> None:
    save(tmp_path / "a.npy", np.arange(100))
    raw = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(raw[:-8])
    with pytest.raises(ObmmArgumentError, match="cut short: 8 bytes are missing"):
        NpyFile(tmp_path / "a.npy")


def test_a_file_that_shrinks_while_it_is_read_is_an_error_and_no_signal(tmp_path: Path) -> None:
    file = save(tmp_path / "a.npy", np.arange(100))
    with open(tmp_path / "a.npy", "r+b") as handle:
        handle.truncate(200)
    with pytest.raises(ObmmArgumentError, match="got shorter"):
        list(file.chunks())


def test_a_pipe_or_a_device_is_not_replaced(tmp_path: Path) -> None:
    """As root, --out /dev/null would take it from the whole machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    manifest = ArrayManifest(np.dtype("<f4"), (3,))
    with pytest.raises(ObmmArgumentError, match="not a regular file"), npy_writer(pipe, manifest):
        pass
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    manifest = ArrayManifest(np.dtype("<f4"), (3,))
    with pytest.raises(ZeroDivisionError), npy_writer(tmp_path / "x.npy", manifest) as out:
        out.write(b"1234")
        _ = 1 / 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shape", [[10**30], [5, 0, 10**30], [1 << 62, 4], [0, 1 << 62, 2]])
def test_a_shape_that_no_memory_has_is_refused(shape: list[int]) -> None:
    with pytest.raises(ObmmArgumentError, match="larger than any memory"):
        ArrayManifest.parse({"format": "obmm-array", "version": 1, "dtype": "<f4", "shape": shape})
