# SPDX-License-Identifier: Apache-2.0
"""`obmm engram publish`, `inspect` and `verify` on two emulated nodes."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_checkpoints import deepseek, numbers, qwen, write_file

import obmm
from obmm import emulator
from obmm.engram import Checkpoint, find_tables, plan, publish
from obmm.errors import ObmmArgumentError
from obmm.integrations.link import TableAddress, TableLink

Start = Callable[..., Any]
Run = Callable[..., Any]


@pytest.mark.parametrize("family", [deepseek, qwen])
def test_every_row_that_another_node_reads_is_the_checkpoints(
    tmp_path: Path, fabric: emulator.Fabric, publisher: Start, family: Callable[[Path], dict[str, np.ndarray]]
) -> None:
    expected = family(tmp_path / "model")
    served = publisher(tmp_path / "model")
    with TableLink(TableAddress.parse(served.source, plain=True, device=fabric.device("b"))) as link:
        for name, rows in expected.items():
            assert np.array_equal(link.store.gather(name, np.arange(len(rows))), rows)


def test_verify_compares_samples_or_all_rows(tmp_path: Path, engram: Run, publisher: Start) -> None:
    expected = deepseek(tmp_path / "model")
    served = publisher(tmp_path / "model")
    done = engram("verify", served.source, tmp_path / "model", "--plain", "--samples", 50, "--json")
    assert done.returncode == 0, done.stderr
    assert 50 <= json.loads(done.stdout)["rows"] <= 100
    done = engram("verify", served.source, tmp_path / "model", "--plain", "--all", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == sum(map(len, expected.values()))


def test_verify_finds_one_wrong_row(tmp_path: Path, engram: Run, publisher: Start) -> None:
    deepseek(tmp_path / "model")
    served = publisher(tmp_path / "model")
    with (tmp_path / "model" / "a.safetensors").open("r+b") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        file.seek(start + 17 * 64 + 3)
        before = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([before[0] ^ 1]))
    done = engram("verify", served.source, tmp_path / "model", "--plain", "--all")
    assert done.returncode == 1
    assert "1 of" in done.stderr
    assert "row 17 of layer1" in done.stderr


def test_verify_refuses_another_models_table(tmp_path: Path, engram: Run, publisher: Start) -> None:
    deepseek(tmp_path / "model")
    deepseek(tmp_path / "other", base=151)
    served = publisher(tmp_path / "model")
    done = engram("verify", served.source, tmp_path / "other", "--plain")
    assert done.returncode == 1
    assert "another model's tables" in done.stderr


def test_inspect_says_the_same_of_a_checkpoint_and_of_what_is_served(
    tmp_path: Path, engram: Run, publisher: Start
) -> None:
    deepseek(tmp_path / "model")
    served = publisher(tmp_path / "model")
    disk, here = (
        json.loads(engram("inspect", s, "--plain", "--json").stdout) for s in (tmp_path / "model", served.source)
    )
    assert disk["tables"] == here["tables"]
    assert (disk["family"], here["fingerprint"]) == ("deepseek-v41", served.facts["fingerprint"])
    shown = engram("inspect", tmp_path / "model")
    assert shown.returncode == 0
    assert "layer3" in shown.stdout


def test_the_fingerprint_is_of_the_content_and_not_of_the_files(tmp_path: Path, publisher: Start) -> None:
    deepseek(tmp_path / "one", prefix="")
    deepseek(tmp_path / "two", prefix="model.")
    deepseek(tmp_path / "three", seed=9)
    first, second, third = (publisher(tmp_path / name).facts["fingerprint"] for name in ("one", "two", "three"))
    assert first == second != third


@pytest.mark.parametrize("broken", ["missing", "cut", "nothing"])
def test_what_is_refused_allocates_nothing(tmp_path: Path, fabric: emulator.Fabric, engram: Run, broken: str) -> None:
    deepseek(tmp_path / "model")
    shard = tmp_path / "model" / "b.safetensors"
    if broken == "missing":
        shard.unlink()
    elif broken == "cut":
        shard.write_bytes(shard.read_bytes()[:-1])
    else:
        (tmp_path / "model" / "model.safetensors.index.json").write_text('{"weight_map": {}}')
        for path in (tmp_path / "model").glob("*.safetensors"):
            path.unlink()
    done = engram("publish", tmp_path / "model", "--plain", "--port", 0)
    assert done.returncode == 1
    assert "fix:" in done.stderr
    assert "Traceback" not in done.stderr
    nodes = fabric.status()["nodes"]
    assert not any(nodes[name]["regions"] for name in nodes)


def test_a_damaged_scale_leaves_nothing_exported(tmp_path: Path, fabric: emulator.Fabric) -> None:
    stem = "layers.1.engram.embed."
    scales = np.full((5, 2), 255, np.uint8)
    write_file(
        tmp_path / "x.safetensors",
        {f"{stem}weight": ("F8_E4M3", (5, 64), bytes(320)), f"{stem}scale": ("F8_E8M0", (5, 2), scales.tobytes())},
    )
    with Checkpoint(tmp_path) as checkpoint, obmm.open(fabric.device("a")) as device:
        with pytest.raises(ObmmArgumentError, match="not a number"):
            publish(device, checkpoint, plan(checkpoint, find_tables(checkpoint)), label="x")
        assert not fabric.status()["nodes"]["a"]["regions"]


def test_a_table_that_is_larger_than_the_memory_is_one_sentence(tmp_path: Path, fabric: emulator.Fabric) -> None:
    rows = 1 << 36
    head = json.dumps(
        {
            "layers.2.ple.ple_embedding.ngram_embedding.shard_0.weight": {
                "dtype": "BF16",
                "shape": [rows, 8],
                "data_offsets": [0, rows * 16],
            }
        }
    ).encode()
    with (tmp_path / "x.safetensors").open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        file.truncate(8 + len(head) + rows * 16)
    with Checkpoint(tmp_path) as checkpoint, obmm.open(fabric.device("a")) as device:
        with pytest.raises(ObmmArgumentError, match="does not have that much memory"):
            publish(device, checkpoint, plan(checkpoint, find_tables(checkpoint)), label="x")


def test_512_parts_fit_into_the_manifest(tmp_path: Path, publisher: Start) -> None:
    qwen(tmp_path / "model", rows=5120, parts=512)
    assert publisher(tmp_path / "model").facts["bytes"] == 5120 * 160


def test_rows_whose_width_is_no_multiple_of_eight_are_laid_apart(
    tmp_path: Path, fabric: emulator.Fabric, publisher: Start
) -> None:
    values, scales = numbers(3, 200, 64), numbers(4, 200, 2)
    stem = "layers.1.engram.embed."
    (tmp_path / "model").mkdir()
    write_file(
        tmp_path / "model" / "x.safetensors",
        {
            f"{stem}weight": ("F8_E4M3", (200, 64), values.tobytes()),
            f"{stem}scale": ("F8_E8M0", (200, 2), scales.tobytes()),
        },
    )
    served = publisher(tmp_path / "model")
    with TableLink(TableAddress.parse(served.source, plain=True, device=fabric.device("b"))) as link:
        spec = link.store.tables["layer1"]
        assert (spec.row_bytes, spec.row_stride) == (66, 72)
        assert np.array_equal(link.store.gather("layer1", np.arange(200)), np.concatenate([values, scales], axis=1))


@pytest.mark.parametrize("parts", [1, 3, 9])
def test_digests_are_in_the_order_of_tensors_however_many_are_read_at_a_time(
    tmp_path: Path, fabric: emulator.Fabric, parts: int
) -> None:
    expected = qwen(tmp_path, rows=1000, parts=parts)["layer5"]
    step = -(-1000 // parts)
    sums = [hashlib.sha256(expected[at : at + step].tobytes()).hexdigest()[:32] for at in range(0, 1000, step)]
    told: list[int] = []
    with Checkpoint(tmp_path) as checkpoint, obmm.open(fabric.device("a")) as device:
        planned = plan(checkpoint, find_tables(checkpoint))
        region, manifest = publish(
            device, checkpoint, planned, label="x", progress=lambda table, nbytes: told.append(nbytes)
        )
        region.close()
    assert manifest.model["engram"]["sums"]["layer5"] == sums
    assert sum(told) == planned.nbytes


def test_an_error_ends_all_tensors_that_are_read_at_a_time(tmp_path: Path, fabric: emulator.Fabric) -> None:
    qwen(tmp_path, rows=1000, parts=9)
    with Checkpoint(tmp_path) as checkpoint, obmm.open(fabric.device("a")) as device:
        planned = plan(checkpoint, find_tables(checkpoint))
        (file,) = tmp_path.glob("*.safetensors")
        with file.open("r+b") as opened:
            opened.truncate(file.stat().st_size // 2)
        with pytest.raises(ObmmArgumentError, match="ends inside"):
            publish(device, checkpoint, planned, label="x")
        assert not fabric.status()["nodes"]["a"]["regions"]
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("obmm-engram")]
