# SPDX-License-Identifier: Apache-2.0
"""Files as people have them, odd ones too: what can be a table is one, byte for byte, and the rest is one sentence."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile

import numpy as np
import pytest

from obmm.errors import ObmmArgumentError
from obmm.files import open_arrays

ODD = {
    "no axis": np.array(3.5),
    "Fortran order": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "Fortran order, three axes, big-endian": np.asfortranarray(np.arange(24).reshape(2, 3, 4).astype(">i4")),
    "big-endian": np.arange(6, dtype=">f4"),
    "fields": np.zeros(4, [("a", "<f4"), ("b", ">i2", (3,)), ("c", "S5")]),
    "aligned fields": np.zeros(4, np.dtype([("a", "i1"), ("b", "f8")], align=True)),
    "no row": np.zeros((0, 7), order="F"),
    "empty rows": np.zeros((7, 0)),
    "texts": np.array(["a", "bcd"]),
    "dates": np.array(["2020-01-01"], "M8[D]"),
}


def read(source):
    return source.manifest.array(bytearray(b"".join(bytes(chunk) for chunk in source.chunks())))


def crafted(path, header, body=b""):
    text = header.encode() + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body)
    return path


def safetensors(path, header, body=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_an_odd_array_is_read_as_it_is(tmp_path, suffix, name):
    path = tmp_path / f"a{suffix}"
    if suffix == ".npy":
        np.save(path, ODD[name])
    else:
        np.savez(path, **{"layer/0 weight": ODD[name]})
    (source,) = open_arrays(path)
    got = read(source)
    assert (got.dtype, got.shape) == (ODD[name].dtype, ODD[name].shape)
    assert got.tobytes() == np.ascontiguousarray(ODD[name]).tobytes()


@pytest.mark.parametrize(
    "header",
    [
        "{'descr':'<f4','fortran_order':False,'shape':(True,7)}",
        "{'descr':'<f4','fortran_order':False,'shape':(-1,7)}",
        "{'descr':'|V0','fortran_order':False,'shape':(7,)}",
        f"{{'descr':'<f4','fortran_order':False,'shape':({2**70},)}}",
        "{'descr':'<f4','fortran_order':True,'shape':" + str((1,) * 65) + "}",
        "__import__('os').abort()",
    ],
    ids=["truth as length", "negative", "no bytes", "huge", "65 axes", "code"],
)
def test_a_header_that_numpy_does_not_write_is_refused_by_name(tmp_path, header):
    path = crafted(tmp_path / "odd.npy", header, b"\0" * 28)
    with pytest.raises(ObmmArgumentError, match=r"odd\.npy"):
        [list(source.chunks()) for source in open_arrays(path)]


def test_what_cannot_be_served_does_not_hide_the_rest_of_an_archive(tmp_path):
    path = tmp_path / "mixed.npz"
    np.savez(path, words=np.ones(3), objects=np.array([{}], object))
    (source,) = open_arrays(path, ["words"])
    assert (read(source) == 1).all()
    with pytest.raises(ObmmArgumentError, match=r"mixed\.npz: 'objects': .*Python objects"):
        open_arrays(path)


def test_two_arrays_of_one_name_are_refused(tmp_path):
    path = tmp_path / "twice.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for value in (1.0, 2.0):
            data = io.BytesIO()
            np.save(data, np.full(3, value))
            if value == 1.0:
                archive.writestr("words.npy", data.getvalue())
            else:
                with pytest.warns(UserWarning, match="Duplicate"):
                    archive.writestr("words.npy", data.getvalue())
    with pytest.raises(ObmmArgumentError, match="two arrays that are called 'words'"):
        open_arrays(path)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".pt"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path, suffix):
    os.mkfifo(tmp_path / f"pipe{suffix}")
    with pytest.raises(ObmmArgumentError, match="neither a file nor a folder"):
        open_arrays(tmp_path / f"pipe{suffix}")


def test_a_tensor_that_is_named_twice_is_served_once(tmp_path):
    np.savez(tmp_path / "a.npz", words=np.ones(3))
    assert len(open_arrays(tmp_path / "a.npz", ["words", "words"])) == 1


@pytest.mark.parametrize("code", ["F4", "F6_E2M3", "C64", "NOPE"])
def test_a_type_that_is_not_known_is_named(tmp_path, code):
    entry = {"dtype": code, "shape": [2], "data_offsets": [0, 2]}
    with pytest.raises(ObmmArgumentError, match=rf"'x/y' is of type '{code}', and known are .*BF16"):
        open_arrays(safetensors(tmp_path / "a.safetensors", {"x/y": entry}, b"ab"))


def test_a_header_with_one_name_twice_is_refused(tmp_path):
    entry = b'"x":{"dtype":"U8","shape":[1],"data_offsets":[%d,%d]}'
    header = b"{" + entry % (0, 1) + b"," + entry % (1, 2) + b"}"
    with pytest.raises(ObmmArgumentError, match="a name occurs twice"):
        open_arrays(safetensors(tmp_path / "a.safetensors", header, b"ab"))


@pytest.mark.parametrize("shape", [[], [0, 5], [5, 0]], ids=str)
def test_a_tensor_without_axes_or_rows_is_read(tmp_path, shape):
    size = 4 if not shape else 0
    entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}
    (source,) = open_arrays(safetensors(tmp_path / "a.safetensors", {"x": entry}, b"\0" * size))
    assert read(source).shape == tuple(shape)


@pytest.mark.parametrize(
    ("file", "problem"),
    [("gone.safetensors", "gone.safetensors: No such file"), ("../a", "outside"), ("/etc/passwd", "outside")],
)
def test_an_index_that_names_a_file_that_is_not_there(tmp_path, file, problem):
    entry = {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}
    safetensors(tmp_path / "one.safetensors", {"a": entry}, b"a")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": file}}))
    with pytest.raises(ObmmArgumentError, match=problem):
        open_arrays(index)


class Code:
    """Runs when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


class TestTorch:
    """What torch.save wrote."""

    @pytest.fixture
    def torch(self):
        return pytest.importorskip("torch", reason="pip install torch")

    @pytest.fixture
    def saved(self, torch, tmp_path):
        def save(value, **options):
            torch.save(value, tmp_path / "x.pt", **options)
            return tmp_path / "x.pt"

        return save

    def test_code_in_a_file_never_runs(self, saved, torch, tmp_path):
        paths = [saved({"words": torch.ones(2), "more": Code(tmp_path / "ran")}), tmp_path / "raw.pt"]
        paths[1].write_bytes(pickle.dumps(Code(tmp_path / "ran")))
        for path in paths:
            with pytest.raises(ObmmArgumentError, match="are not run"):
                open_arrays(path)
        assert not (tmp_path / "ran").exists()

    @pytest.mark.filterwarnings("ignore::UserWarning")  # torch is about to retire quantised tensors
    @pytest.mark.parametrize("kind", ["sparse", "compressed", "without data", "quantised", "two in a byte"])
    def test_what_is_no_table_is_refused_and_the_rest_is_read(self, saved, torch, kind):
        odd = {
            "sparse": lambda: torch.eye(3).to_sparse(),
            "compressed": lambda: torch.eye(3).to_sparse_csr(),
            "without data": lambda: torch.empty(3, device="meta"),
            "quantised": lambda: torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.qint8),
            "two in a byte": lambda: torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
        }[kind]()
        path = saved({"words": torch.ones(2), "odd": odd})
        (source,) = open_arrays(path, ["words"])
        assert (read(source) == 1).all()
        with pytest.raises(ObmmArgumentError, match="'odd'"):
            open_arrays(path)

    def test_tensors_in_lists_are_read_by_number(self, saved, torch):
        path = saved({"layers": [torch.zeros(2), torch.ones(2)]})
        assert [each.name for each in open_arrays(path)] == ["layers.0", "layers.1"]

    def test_views_are_read_in_order(self, saved, torch):
        table = torch.arange(12.0).reshape(3, 4)
        views = {"turned": table.t(), "steps": table[:, ::2], "spread": table.expand(2, 3, 4)}
        for source in open_arrays(saved(views)):
            assert (read(source) == views[source.name].numpy()).all()

    def test_a_conjugate_that_was_not_made_yet_is_made(self, saved, torch):
        value = torch.tensor([1 + 2j, 3 - 1j]).conj()
        (source,) = open_arrays(saved({"x": value}))
        assert (read(source) == value.resolve_conj().numpy()).all()

    def test_the_old_format_is_read(self, saved, torch):
        (source,) = open_arrays(saved({"words": torch.ones(3)}, _use_new_zipfile_serialization=False))
        assert (read(source) == 1).all()

    def test_two_tensors_of_one_name_are_refused(self, saved, torch):
        with pytest.raises(ObmmArgumentError, match=r"two arrays that are called 'a\.b'"):
            open_arrays(saved({"a.b": torch.ones(1), "a": {"b": torch.ones(2)}}))
