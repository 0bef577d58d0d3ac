# SPDX-License-Identifier: Apache-2.0
"""The guest's initramfs: a base that rarely changes (busybox, Python, kernel modules) and the payload behind it."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import time
from pathlib import Path

from .build import ROOT, Build
from .packages import CONTENTS, LIBRARIES, Archive, whole
from .packages import PYTHON as PYTHON_PACKAGES

HERE = Path(__file__).resolve().parent
PYTHON = "usr/lib/python3.11"
LEFT_OUT = ("test", "idlelib", "tkinter", "ensurepip", "lib2to3", "pydoc_data", "distutils", "turtledemo", "venv")

#: Loaded by init in this order: the fabric and the network of a pair.
KERNEL_MODULES = ("virtio_pci", "virtio_net")


class Image:
    """Builds the initramfs of one architecture."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self.build = Build(archive)
        self._folder = archive.folder

    def make(self) -> Path:
        """One file of two cpio archives, which the kernel unpacks one after the other."""
        target = self._folder / "initramfs"
        started = time.monotonic()
        with target.open("wb") as out:
            for part in (self._base(), self._payload()):
                out.write(part.read_bytes())
        print(
            f"== {self.archive.architecture.name}: Linux {self.archive.version}, "
            f"image of {target.stat().st_size >> 20} MiB in {time.monotonic() - started:.1f} s",
            flush=True,
        )
        return target

    def _base(self) -> Path:
        made_of = (LIBRARIES, PYTHON_PACKAGES, KERNEL_MODULES, (self.archive.root / CONTENTS).read_text())
        contents = hashlib.sha256(repr(made_of).encode()).hexdigest()[:8]
        target = self._folder / f"base-{self.archive.version}-{contents}.cpio"
        if target.exists():
            return target
        root = self._fresh("base")
        unpacked = self.archive.root
        for folder in ("bin", "dev", "proc", "sys", "tmp", "mods", "usr/bin", "usr/lib"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        shutil.copy2(unpacked / "bin/busybox", root / "bin/busybox")
        (root / "bin/sh").symlink_to("busybox")
        shutil.copy2(unpacked / "usr/bin/python3.11", root / "usr/bin/python3")
        skip = shutil.ignore_patterns("__pycache__", *LEFT_OUT, "config-3.11-*")
        shutil.copytree(unpacked / PYTHON, root / PYTHON, symlinks=True, ignore=skip)
        self._copy_libraries(unpacked, root)
        for index, module in enumerate(self.archive.modules_for(*KERNEL_MODULES)):
            shutil.copy2(module, root / "mods" / f"{index:02}-{module.name}")
        _compile(root / PYTHON)
        return _pack(root, target)

    def _copy_libraries(self, unpacked: Path, root: Path) -> None:
        triplet = self.archive.architecture.triplet
        for folder in (f"lib/{triplet}", f"usr/lib/{triplet}"):
            for library in (unpacked / folder).glob("*.so*"):
                if library.is_file() or library.is_symlink():
                    place = root / folder / library.name
                    place.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(library, place, follow_symlinks=False)
        for loader in [*(unpacked / "lib64").glob("ld-*"), *(unpacked / "lib").glob("ld-*")]:
            place = root / loader.relative_to(unpacked)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(loader, place)

    def _payload(self) -> Path:
        root = self._fresh("payload")
        payload = root / "payload"
        payload.mkdir(parents=True)
        shutil.copy2(HERE / "guest" / "init", root / "init")
        (root / "init").chmod(0o755)
        skip = shutil.ignore_patterns("__pycache__", "*.so", "*.md")
        shutil.copytree(ROOT / "obmm", payload / "obmm", ignore=skip)
        for package in ("tests/kernel", "tests/conformance"):
            shutil.copytree(ROOT / package, payload / package, ignore=skip)
        (payload / "tests/__init__.py").touch()
        shutil.copy2(self.build.extension(), payload / "obmm" / "_native.abi3.so")
        shutil.copy2(self.build.module(), payload)
        shutil.copy2(self.build.probe(), payload)
        shutil.copy2(self.build.smoke(), payload)
        shutil.copy2(self.build.storm(), payload)
        wheels = self.archive.wheels("cffi", "numpy", "click", "rich")
        shutil.copytree(
            wheels,
            payload,
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("__pycache__", "tests", "*.dist-info", "*.pyi"),
        )
        _compile(payload)
        return _pack(root, self._folder / "payload.cpio")

    def _fresh(self, name: str) -> Path:
        root = self._folder / name
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        return root


def _compile(folder: Path) -> None:
    """Byte code that is valid whatever the file times: they do not survive an initramfs."""
    interpreter = next((path for path in map(Path, ("/usr/bin/python3.11", sys.executable)) if path.exists()), None)
    subprocess.run(
        [str(interpreter), "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", str(folder)],
        stdout=subprocess.DEVNULL,
        timeout=300,
        check=False,
    )


def _pack(root: Path, target: Path) -> Path:
    names = "\n".join(sorted(str(path.relative_to(root)) for path in root.rglob("*")))
    with whole(target) as beside, beside.open("wb") as out:
        subprocess.run(
            ["cpio", "-o", "-H", "newc", "-R", "0:0", "--quiet"],
            cwd=root,
            input=names.encode(),
            stdout=out,
            timeout=300,
            check=True,
        )
    return target
