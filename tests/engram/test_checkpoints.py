# SPDX-License-Identifier: Apache-2.0
"""Checkpoints on disk: what is found in them, and in which words the others are refused."""

from __future__ import annotations

import json
import resource
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_checkpoints import deepseek, deepseek_config, numbers, qwen, write_file

from obmm.engram import Checkpoint, PackedRows, families_of, find_tables, plan
from obmm.errors import ObmmArgumentError

STEM = "layers.1.engram.embed."


def packed(path: Path, **options: int) -> dict[str, np.ndarray]:
    found = {}
    with Checkpoint(path) as checkpoint:
        for table in find_tables(checkpoint):
            found[table.name] = np.concatenate([b.copy() for _, b in PackedRows(checkpoint, table, **options)])
    return found


@pytest.mark.parametrize("prefix", ["", "model."])
@pytest.mark.parametrize("block_bytes", [1, 1000, 16 << 20])
def test_values_and_scales_of_two_files_are_packed_into_rows(tmp_path: Path, prefix: str, block_bytes: int) -> None:
    expected = deepseek(tmp_path, base=31, prefix=prefix)
    found = packed(tmp_path, block_bytes=block_bytes)
    assert found.keys() == expected.keys()
    for name, rows in expected.items():
        assert np.array_equal(found[name], rows)


def test_parts_of_a_table_follow_each_other_and_constants_are_kept(tmp_path: Path) -> None:
    expected = qwen(tmp_path, rows=1001, parts=4)
    assert np.array_equal(packed(tmp_path / "ple-fp8.safetensors")["layer5"], expected["layer5"])
    with Checkpoint(tmp_path) as checkpoint:
        (table,) = find_tables(checkpoint)
        assert table.constants["weight_scale"] == [0.5]
        assert table.constants["multipliers"] == [3, 5, 7]
        (spec,) = plan(checkpoint, [table]).specs
    assert (spec.row_bytes, spec.row_stride, spec.values, len(spec.head_offsets)) == (160, 160, 160, 4)


def test_the_columns_come_from_the_configuration(tmp_path: Path) -> None:
    deepseek(tmp_path)
    with Checkpoint(tmp_path) as checkpoint:
        planned = plan(checkpoint, find_tables(checkpoint))
    assert [len(spec.head_offsets) for spec in planned.specs] == [4, 4]
    assert planned.specs[1].base_offset == 2 << 20
    assert planned.specs[0].neutral_zero


def test_a_configuration_of_another_model_is_refused(tmp_path: Path) -> None:
    deepseek(tmp_path, base=101)
    (tmp_path / "config.json").write_text(json.dumps(deepseek_config(base=211)))
    with Checkpoint(tmp_path) as checkpoint, pytest.raises(ObmmArgumentError, match=r"config\.json asks for add up to"):
        plan(checkpoint, find_tables(checkpoint))


def test_other_models_are_described_by_a_map(tmp_path: Path) -> None:
    values, scales = numbers(1, 50, 24), numbers(2, 50, 4)
    write_file(
        tmp_path / "one.safetensors",
        {"enc.4.table.q": ("I8", (50, 24), values.tobytes()), "enc.4.table.s": ("F32", (50, 1), scales.tobytes())},
    )
    (tmp_path / "map.toml").write_text(
        "[[family]]\nname = 'mine'\nweight = 'enc\\.(?P<layer>\\d+)\\.table\\.q'\n"
        "scale = 'enc\\.(?P<layer>\\d+)\\.table\\.s'\nblock = 24\n"
    )
    with Checkpoint(tmp_path) as checkpoint:
        (table,) = find_tables(checkpoint, families_of(tmp_path / "map.toml"))
        ((at, rows),) = list(PackedRows(checkpoint, table))
    assert (table.name, at, table.row_bytes) == ("layer4", 0, 28)
    assert np.array_equal(rows, np.concatenate([values, scales], axis=1))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no \\[\\[family\\]\\]"),
        ("[[family]]\nname='x'", "a family with"),
        ("[[family]]\nname='x'\nweight='a'", "no group"),
        ("[[family]]\nname='x'\nweight='(?P<layer>'", "family 'x'"),
        ("[[family]]\nname='x'\nweight='(?P<layer>a)'\nblock=-1", "values per scale"),
        ("[[family]]\nname='x'\nweight='(?P<layer>a)'\ndtypes='F32'", "not strings"),
        ("[[family]]\nname='x'\nweight='(?P<layer>a)'\nconstants=3", "not strings"),
        ("not toml", "TOML"),
    ],
)
def test_a_map_that_says_nonsense_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "map.toml").write_text(text)
    with pytest.raises(ObmmArgumentError, match=words):
        families_of(tmp_path / "map.toml")


def test_only_the_shards_with_tables_need_to_be_there(tmp_path: Path) -> None:
    expected = deepseek(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    entries = json.loads(index.read_text())
    entries["weight_map"]["lm_head.weight"] = "elsewhere.safetensors"
    index.write_text(json.dumps(entries))
    assert np.array_equal(packed(tmp_path)["layer1"], expected["layer1"])


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    deepseek(tmp_path)
    (tmp_path / "b.safetensors").unlink()
    with Checkpoint(tmp_path) as checkpoint, pytest.raises(ObmmArgumentError, match=r"b\.safetensors.*complete the"):
        find_tables(checkpoint)


@pytest.mark.parametrize("keep", [0, 4, 8, 100, -1])
def test_a_shard_that_is_cut_short_is_named(tmp_path: Path, keep: int) -> None:
    deepseek(tmp_path)
    path = tmp_path / "a.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with Checkpoint(tmp_path) as checkpoint, pytest.raises(ObmmArgumentError, match=r"a\.safetensors"):
        find_tables(checkpoint)


def test_a_shard_that_shrinks_while_it_is_read_is_named(tmp_path: Path) -> None:
    deepseek(tmp_path)
    with Checkpoint(tmp_path) as checkpoint:
        table = find_tables(checkpoint)[0]
        path = tmp_path / "a.safetensors"
        path.write_bytes(path.read_bytes()[:1000])
        with pytest.raises(ObmmArgumentError, match="ends inside"):
            list(PackedRows(checkpoint, table))


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    qwen(tmp_path, parts=4)
    path = tmp_path / "ple-fp8.safetensors"
    path.write_bytes(path.read_bytes().replace(b"shard_2.", b"shxrd_2."))
    with Checkpoint(tmp_path) as checkpoint, pytest.raises(ObmmArgumentError, match="none with number 2"):
        find_tables(checkpoint)


def test_a_wrong_type_of_rows_is_refused(tmp_path: Path) -> None:
    write_file(tmp_path / "x.safetensors", {f"{STEM}weight": ("BF16", (5, 4), bytes(40))})
    with Checkpoint(tmp_path) as checkpoint, pytest.raises(ObmmArgumentError, match="is BF16"):
        find_tables(checkpoint)


@pytest.mark.parametrize("shape", [(5, 3), (4, 2), (10,)])
def test_scales_that_do_not_fit_their_rows_are_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    scales = "F8_E8M0", shape, bytes(int(np.prod(shape)))
    write_file(tmp_path / "x.safetensors", {f"{STEM}weight": ("F8_E4M3", (5, 64), bytes(320)), f"{STEM}scale": scales})
    with Checkpoint(tmp_path) as checkpoint, pytest.raises(ObmmArgumentError, match="belong to"):
        find_tables(checkpoint)


def test_a_scale_that_is_no_number_is_refused(tmp_path: Path) -> None:
    scales = np.zeros((5, 2), np.uint8)
    scales[3, 1] = 255
    write_file(
        tmp_path / "x.safetensors",
        {f"{STEM}weight": ("F8_E4M3", (5, 64), bytes(320)), f"{STEM}scale": ("F8_E8M0", (5, 2), scales.tobytes())},
    )
    with Checkpoint(tmp_path) as checkpoint, pytest.raises(ObmmArgumentError, match="row 3 of"):
        list(PackedRows(checkpoint, find_tables(checkpoint)[0]))


def test_a_checkpoint_without_tables_is_refused(tmp_path: Path) -> None:
    write_file(tmp_path / "x.safetensors", {"lm_head.weight": ("F32", (1,), bytes(4))})
    with Checkpoint(tmp_path) as checkpoint, pytest.raises(ObmmArgumentError, match="no n-gram table"):
        find_tables(checkpoint)


@pytest.mark.parametrize("name", ["../a.safetensors", "/etc/passwd"])
def test_an_index_cannot_name_files_elsewhere(tmp_path: Path, name: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": name}}))
    with pytest.raises(ObmmArgumentError, match="outside of"):
        Checkpoint(tmp_path)


@given(st.binary(max_size=300))
def test_no_bytes_are_anything_but_refused_or_read(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "x.safetensors"
    path.write_bytes(data)
    with suppress(ObmmArgumentError):
        Checkpoint(path)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.text(max_size=8),
        _json | st.fixed_dictionaries({"dtype": _json, "shape": _json, "data_offsets": _json}),
        max_size=4,
    )
)
def test_no_header_is_anything_but_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, header: dict[str, object]
) -> None:
    text = json.dumps(header).encode()
    path = tmp_path_factory.mktemp("fuzz") / "x.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(16))
    with suppress(ObmmArgumentError):
        Checkpoint(path)


def test_packing_needs_the_same_memory_for_every_size(tmp_path: Path) -> None:
    """Sixty-four blocks of a megabyte: the process grows by a few, not by the table."""
    rows = 64 << 10
    with (tmp_path / "x.safetensors").open("wb") as file:
        head = json.dumps(
            {
                f"{STEM}weight": {"dtype": "F8_E4M3", "shape": [rows, 1024], "data_offsets": [0, rows << 10]},
                f"{STEM}scale": {"dtype": "F8_E8M0", "shape": [rows, 32], "data_offsets": [rows << 10, rows * 1056]},
            }
        ).encode()
        file.write(len(head).to_bytes(8, "little") + head)
        file.truncate(8 + len(head) + rows * 1056)
    with Checkpoint(tmp_path) as checkpoint:
        table = find_tables(checkpoint)[0]
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in PackedRows(checkpoint, table, block_bytes=1 << 20):
            pass
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 16 << 10  # KiB
