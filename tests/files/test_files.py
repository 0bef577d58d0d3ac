# SPDX-License-Identifier: Apache-2.0
"""Tables as people have them: what is written in one format is read back, and what is not such a file is refused by name."""

from __future__ import annotations

import json
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from obmm.errors import ObmmArgumentError
from obmm.exchange import ArrayManifest
from obmm.exchange.dtypes import NAMED, named
from obmm.files import array_writer, open_arrays

TABLE = np.arange(3000, dtype="<f4").reshape(100, 30)


def read(source):
    data = bytearray(b"".join(bytes(chunk) for chunk in source.chunks()))
    return source.manifest.array(data)


def write(path, array, name="table"):
    with array_writer(path, ArrayManifest(array.dtype, array.shape), name) as file:
        file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".pt"])
def test_what_is_written_is_read_back(tmp_path, suffix):
    if suffix == ".pt":
        pytest.importorskip("torch", reason="pip install torch")
    path = tmp_path / f"out{suffix}"
    write(path, TABLE)
    (source,) = open_arrays(path)
    assert source.manifest == ArrayManifest(TABLE.dtype, TABLE.shape)
    assert (read(source) == TABLE).all()
    assert sorted(each.name for each in tmp_path.iterdir()) == [path.name]


def test_numpy_reads_what_is_written(tmp_path):
    write(tmp_path / "a.npz", TABLE, "words")
    assert (np.load(tmp_path / "a.npz")["words"] == TABLE).all()


def test_the_safetensors_library_reads_what_is_written(tmp_path):
    library = pytest.importorskip("safetensors.numpy", reason="pip install 'obmm[files]'")
    write(tmp_path / "a.safetensors", TABLE, "words")
    assert (library.load_file(tmp_path / "a.safetensors")["words"] == TABLE).all()


def test_tensors_of_the_safetensors_library_are_read(tmp_path):
    library = pytest.importorskip("safetensors.numpy", reason="pip install 'obmm[files]'")
    library.save_file({"a.weight": TABLE, "b": TABLE[:3].astype("<i8")}, tmp_path / "m.safetensors")
    assert {each.name for each in open_arrays(tmp_path / "m.safetensors")} == {"a.weight", "b"}
    (chosen,) = open_arrays(tmp_path / "m.safetensors", ["b"])
    assert (read(chosen) == TABLE[:3]).all()


def test_a_sharded_checkpoint_is_read_by_its_index(tmp_path):
    write(tmp_path / "one.safetensors", TABLE, "first")
    write(tmp_path / "two.safetensors", TABLE * 2, "second")
    index = {"weight_map": {"first": "one.safetensors", "second": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    for place in (tmp_path, tmp_path / "model.safetensors.index.json"):
        (source,) = open_arrays(place, ["second"])
        assert (read(source) == TABLE * 2).all()


@pytest.mark.parametrize("name", sorted(NAMED))
def test_small_floats_keep_their_name(name):
    pytest.importorskip("ml_dtypes", reason="pip install 'obmm[files]'")
    manifest = ArrayManifest(named(name), (3, 4))
    assert manifest.to_json()["dtype"] == name
    assert ArrayManifest.parse(json.loads(json.dumps(manifest.to_json()))) == manifest


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_small_floats_survive_a_file(tmp_path, name, suffix):
    pytest.importorskip("ml_dtypes", reason="pip install 'obmm[files]'")
    if suffix == ".pt":
        pytest.importorskip("torch", reason="pip install torch")
    array = np.arange(12).reshape(3, 4).astype(named(name))
    write(tmp_path / f"a{suffix}", array)
    (source,) = open_arrays(tmp_path / f"a{suffix}")
    assert source.manifest.dtype == array.dtype
    assert (read(source).view(np.uint8) == array.view(np.uint8)).all()


def test_a_small_float_is_not_written_as_something_else(tmp_path):
    pytest.importorskip("ml_dtypes", reason="pip install 'obmm[files]'")
    with pytest.raises(ObmmArgumentError, match=r"\.npy format has no bfloat16"):
        write(tmp_path / "a.npy", np.zeros(3, named("bfloat16")))
    assert list(tmp_path.iterdir()) == []


def test_M9_a_type_that_no_reader_could_tell_is_refused_by_the_writer():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="pip install 'obmm[files]'")
    with pytest.raises(ObmmArgumentError, match="has no name in a manifest"):
        ArrayManifest(np.dtype(ml_dtypes.int4), (3,))
    with pytest.raises(ObmmArgumentError, match="has no name in a manifest"):
        ArrayManifest(np.dtype([("x", ml_dtypes.bfloat16)]), (3,))


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".pt"])
@pytest.mark.parametrize(
    "dtype",
    [
        "?", "i1", "<u2", "<u4", "<u8", "<f8", "<c8", "<c16", ">f4", ">i2", "S3", "<U2", "V5", "<M8[s]", "<m8[ns]", "<f2,<i4",
        *sorted(NAMED),
    ],
)  # fmt: skip
def test_M9_a_format_keeps_a_type_or_refuses_it(tmp_path, suffix, dtype):
    if suffix == ".pt":
        pytest.importorskip("torch", reason="pip install torch")
    if dtype in NAMED:
        pytest.importorskip("ml_dtypes", reason="pip install 'obmm[files]'")
    kind = named(dtype) if dtype in NAMED else np.dtype(dtype)
    raw = np.arange(6 * kind.itemsize, dtype=np.uint8)
    try:
        write(tmp_path / f"a{suffix}", (raw % 2 if dtype == "?" else raw).view(kind).reshape(3, 2))
    except ObmmArgumentError as error:
        assert str(error).count("fix:") == 1
        assert list(tmp_path.iterdir()) == []
        return
    (source,) = open_arrays(tmp_path / f"a{suffix}")
    assert source.manifest.dtype == kind
    assert read(source).tobytes() == (raw % 2 if dtype == "?" else raw).tobytes()


@given(st.one_of(arrays.scalar_dtypes(), arrays.array_dtypes(max_size=3), arrays.byte_string_dtypes()))
def test_M9_writer_and_reader_agree_on_every_type(dtype):
    try:
        manifest = ArrayManifest(dtype, (2,))
    except ObmmArgumentError:
        return
    assert ArrayManifest.parse(json.loads(json.dumps(manifest.to_json()))).dtype == dtype


def test_M9_field_names_beyond_latin_1_survive(tmp_path):
    array = np.zeros(3, [("größe", "<f4"), ("名", "<i2")])
    np.save(tmp_path / "theirs.npy", array)
    (source,) = open_arrays(tmp_path / "theirs.npy")
    assert source.manifest.dtype == array.dtype
    write(tmp_path / "ours.npy", array)
    assert np.load(tmp_path / "ours.npy").dtype == array.dtype


def test_M9_a_long_header_is_read(tmp_path):
    array = np.zeros(2, [(f"column_number_{number}", "<f4") for number in range(1000)])
    np.save(tmp_path / "wide.npy", array)
    (source,) = open_arrays(tmp_path / "wide.npy")
    assert source.manifest.dtype == array.dtype


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".pt"])
@given(garbage=st.binary(max_size=300))
def test_garbage_is_refused_by_name(tmp_path_factory, suffix, garbage):
    if suffix == ".pt":
        pytest.importorskip("torch", reason="pip install torch")
    path = tmp_path_factory.mktemp("garbage") / f"x{suffix}"
    path.write_bytes(garbage)
    with pytest.raises(ObmmArgumentError, match=path.name):
        list(open_arrays(path)[0].chunks())


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
def test_every_cut_of_a_file_is_refused(tmp_path, suffix):
    whole = tmp_path / f"whole{suffix}"
    write(whole, TABLE[:4])
    data = whole.read_bytes()
    cut = tmp_path / f"cut{suffix}"
    for length in range(0, len(data), 7):
        cut.write_bytes(data[:length])
        with pytest.raises(ObmmArgumentError):
            [list(source.chunks()) for source in open_arrays(cut)]


def test_a_missing_tensor_is_named_with_what_there_is(tmp_path):
    write(tmp_path / "m.safetensors", TABLE, "words")
    with pytest.raises(ObmmArgumentError, match=r"no tensor 'nothing'.*choose of: words"):
        open_arrays(tmp_path / "m.safetensors", ["nothing"])


def test_a_file_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(ObmmArgumentError, match="No such file"):
        open_arrays(tmp_path / "none.npy")


def test_objects_in_an_archive_are_refused(tmp_path):
    np.savez(tmp_path / "o.npz", objects=np.array([{}], object))
    with pytest.raises(ObmmArgumentError, match="Python objects"):
        open_arrays(tmp_path / "o.npz")


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.npz"
    write(path, TABLE)
    before = path.read_bytes()
    with pytest.raises(RuntimeError), array_writer(path, ArrayManifest(TABLE.dtype, TABLE.shape)):
        raise RuntimeError
    assert path.read_bytes() == before
    assert zipfile.is_zipfile(path)
    assert [each.name for each in tmp_path.iterdir()] == ["a.npz"]


def test_one_name_in_two_files_of_a_folder_is_refused(tmp_path):
    write(tmp_path / "a.safetensors", TABLE, "words")
    write(tmp_path / "b.safetensors", TABLE * 2, "words")
    with pytest.raises(ObmmArgumentError, match=r"'words' in a\.safetensors and in b\.safetensors"):
        open_arrays(tmp_path)


def test_a_refusal_is_said_once(tmp_path):
    write(tmp_path / "m.safetensors", TABLE, "words")
    with pytest.raises(ObmmArgumentError) as caught:
        open_arrays(tmp_path / "m.safetensors", ["wrods"])
    assert str(caught.value).count("fix:") == 1
    (tmp_path / "program.py").write_text("print(1)")
    with pytest.raises(ObmmArgumentError, match="not a kind of file"):
        open_arrays(tmp_path / "program.py")
