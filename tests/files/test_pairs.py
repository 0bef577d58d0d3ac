# SPDX-License-Identifier: Apache-2.0
"""Every format that `obmm serve` reads with every format that `obmm fetch` writes: equal bytes and type, or one sentence.

Files are written, and what was fetched is read, by their own libraries.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from obmm import emulator
from obmm.cli.fetch import fetch

torch = pytest.importorskip("torch", reason="the .pt format and its types: pip install torch")
pytest.importorskip("ml_dtypes", reason="pip install 'obmm[files]'")
library = pytest.importorskip("safetensors.torch", reason="pip install 'obmm[files]'")

TYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
NUMPY_HAS = {"f32", "f16"}
SHAPE = (7, 6)
SOURCES = ("single", "sharded", "npy", "npz", "pt")
TARGETS = (".safetensors", ".npy", ".npz", ".pt")
PAIRS = [
    (source, kind, target)
    for source in SOURCES
    for kind in TYPES
    if source not in ("npy", "npz") or kind in NUMPY_HAS  # a NumPy file has no name for the others
    for target in TARGETS
]


def table(source: str, kind: str) -> Any:
    seed = SOURCES.index(source) * 10 + [*TYPES].index(kind)
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)).to(TYPES[kind])


def as_bytes(tensor: Any) -> bytes:
    return bytes(tensor.contiguous().view(torch.uint8).numpy())


@contextmanager
def served(fabric: emulator.Fabric, *arguments: object) -> Iterator[str]:
    """`obmm serve` on node a; where it listens."""
    command = [sys.executable, "-P", "-m", "obmm.cli.main", "serve", *map(str, arguments)]
    command += ["--plain", "--port", "0", "--json", "--device", fabric.device("a")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            line = process.stdout.readline()
            assert line, process.stderr.read()
            yield json.loads(line)["addresses"][0]
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file or folder of each format, with every type that it has."""
    folder = tmp_path_factory.mktemp("files")
    tensors = {source: {f"{source}.{kind}": table(source, kind) for kind in TYPES} for source in SOURCES}
    library.save_file(tensors["single"], folder / "single.safetensors")
    (folder / "sharded").mkdir()
    names = sorted(tensors["sharded"])
    shards = {"model-1.safetensors": names[:2], "model-2.safetensors": names[2:]}
    for shard, within in shards.items():
        library.save_file({name: tensors["sharded"][name] for name in within}, folder / "sharded" / shard)
    index = {"weight_map": {name: shard for shard, within in shards.items() for name in within}}
    (folder / "sharded" / "model.safetensors.index.json").write_text(json.dumps(index))
    for kind in sorted(NUMPY_HAS):
        np.save(folder / f"npy.{kind}.npy", table("npy", kind).numpy())
    np.savez(folder / "many.npz", **{f"npz.{kind}": table("npz", kind).numpy() for kind in sorted(NUMPY_HAS)})
    torch.save(tensors["pt"], folder / "many.pt")
    return folder


@pytest.fixture(scope="module")
def address(fabric: emulator.Fabric, files: Path) -> Iterator[str]:
    """All of them, from one server."""
    index = files / "sharded" / "model.safetensors.index.json"
    arrays = sorted(files.glob("*.npy"))
    with served(fabric, files / "single.safetensors", index, *arrays, files / "many.npz", files / "many.pt") as where:
        yield where


def fetched(fabric: emulator.Fabric, address: str, name: str, target: Path) -> Any:
    arguments = [address, name, "--all", "-o", str(target), "--plain", "--device", fabric.device("b")]
    return CliRunner().invoke(fetch, arguments)


def read(target: Path, name: str) -> Any:
    """The tensor in a file, by the library that the format is of."""
    if target.suffix == ".safetensors":
        return library.load_file(target)[name]
    if target.suffix == ".pt":
        return torch.load(target, weights_only=True)[name]
    loaded = np.load(target)
    return torch.from_numpy(loaded[name] if target.suffix == ".npz" else loaded)


@pytest.mark.parametrize(("source", "kind", "target"), PAIRS)
def test_a_served_file_is_fetched_with_equal_bytes_and_type(source, kind, target, fabric, address, tmp_path):
    name, path = f"{source}.{kind}", tmp_path / f"out{target}"
    done = fetched(fabric, address, name, path)
    if target in (".npy", ".npz") and kind not in NUMPY_HAS:
        assert done.exit_code == 1
        assert done.output.startswith("Error: ")
        assert done.output.count("\n") == 1, "one sentence"
        assert f"has no {str(TYPES[kind]).removeprefix('torch.')}" in done.output
        assert not path.exists()
        return
    assert done.exit_code == 0, done.output
    tensor, expected = read(path, name), table(source, kind)
    assert (tensor.dtype, tuple(tensor.shape)) == (expected.dtype, SHAPE)
    assert as_bytes(tensor) == as_bytes(expected)


@pytest.mark.parametrize("target", TARGETS)
def test_one_tensor_of_a_file_is_served_alone(target, fabric, files, tmp_path):
    with served(fabric, files / "single.safetensors", "--tensor", "single.f16") as where:
        refused = fetched(fabric, where, "single.f32", tmp_path / "none.npy")
        assert refused.exit_code == 1
        assert "single.f16" in refused.output, "what there is is named"
        assert fetched(fabric, where, "single.f16", tmp_path / f"out{target}").exit_code == 0
    assert as_bytes(read(tmp_path / f"out{target}", "single.f16")) == as_bytes(table("single", "f16"))
