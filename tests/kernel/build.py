# SPDX-License-Identifier: Apache-2.0
"""What a guest runs, compiled for its architecture: the module, the extension, the C tools, the probe."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from .packages import Archive, whole

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "native"


def run(*command: str | Path, **more: object) -> None:
    result = subprocess.run(
        [str(word) for word in command],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=600,
        **more,  # type: ignore[call-overload]
    )
    if result.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{result.stdout}")


def newer(sources: list[Path], target: Path) -> bool:
    """Whether `target` must be made again."""
    return not target.exists() or any(path.stat().st_mtime > target.stat().st_mtime for path in sources)


class Build:
    """Everything compiled for one architecture, below build/kernel/<architecture>."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self.architecture = archive.architecture
        self.folder = archive.folder / "out"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._cc = self.architecture.cross + "gcc"

    def module(self) -> Path:
        """obmm_sim.ko, built from a copy: kbuild writes beside its sources."""
        sources = [*(NATIVE / "kmod").glob("*"), *(NATIVE / "abi").glob("*.h")]
        made = self.folder / "native" / "kmod" / "obmm_sim.ko"
        target = self.folder / made.name
        if newer(sources, target):
            for source in sources:
                place = self.folder / "native" / source.relative_to(NATIVE)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, place)
            command: list[str | Path] = [
                "make",
                "-s",
                "-C",
                self.archive.headers,
                f"M={made.parent}",
                f"ARCH={self.architecture.kernel}",
            ]
            if self.architecture.foreign:
                command.append(f"CROSS_COMPILE={self.architecture.cross}")
            run(*command, "modules", env=_without_make())
            with whole(target) as beside:
                shutil.copy2(made, beside)
                beside.touch()
        return target

    def extension(self) -> Path:
        """obmm._native: cffi writes the C on this host, the target's compiler does the rest."""
        target = self.folder / "_native.abi3.so"
        sources = [path for path in NATIVE.glob("**/*.[chp]*") if "kmod" not in path.parts]
        if newer(sources, target):
            generated = self.folder / "_native.c"
            command = [sys.executable, Path(__file__).with_name("extension.py"), generated]
            result = subprocess.run(
                [str(word) for word in command], cwd=ROOT, text=True, capture_output=True, timeout=300
            )
            if result.returncode:
                raise SystemExit(result.stdout + result.stderr)
            include = self.archive.root / "usr/include"
            with whole(target) as beside:
                run(
                    self._cc, "-shared", "-fPIC", f"-I{include}/python3.11", f"-I{include}",
                    *result.stdout.splitlines()[-1].split(), generated, "-o", beside, cwd=ROOT,
                )  # fmt: skip
        return target

    def probe(self) -> Path:
        """The conformance replay's probe."""
        source = ROOT / "tests/conformance/replay/probe.c"
        target = self.folder / "probe.so"
        if newer([source], target):
            with whole(target) as beside:
                run(
                    self._cc, "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC",
                    "-o", beside, source,
                )  # fmt: skip
        return target

    def storm(self) -> Path:
        """The program of make kernel-storm."""
        sources = list((ROOT / "tests/kernel/storm").glob("*.[ch]"))
        target = self.folder / "storm"
        if newer([*sources, *(NATIVE / "abi").glob("*.h")], target):
            with whole(target) as beside:
                run(
                    self._cc, "-std=gnu11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread",
                    "-o", beside, *(path for path in sources if path.suffix == ".c"),
                )  # fmt: skip
        return target

    def smoke(self) -> Path:
        """The loopback smoke test in C."""
        flavour = "aarch64" if self.architecture.foreign else "plain"
        run("make", "-s", "-C", NATIVE, f"FLAVOUR={flavour}", "smoke", env=_without_make())
        return ROOT / "build" / "c" / flavour / "smoke"


def _without_make() -> dict[str, str]:
    """The environment for a make of its own."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
