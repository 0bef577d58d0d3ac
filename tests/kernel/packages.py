# SPDX-License-Identifier: Apache-2.0
"""Debian packages for the guests: tools are installed, what a guest boots is only downloaded and unpacked.

Versions are read from the archive, never written down here: image and headers
must match each other, and both change over time.  Names are Debian 12's, as the
module's Linux is; an archive without them is told so.  What is made here is made
beside its place and renamed when it is whole: what an interrupted run left is
never taken for the thing.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .architecture import Architecture

BUILD = Path(__file__).resolve().parents[2] / "build" / "kernel"

#: What the host needs to build and boot: a command or file that shows its presence, and its package.
TOOLS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-system-aarch64": "qemu-system-arm",
    "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu",
    "/usr/aarch64-linux-gnu/include/stdlib.h": "libc6-dev-arm64-cross",
    "cpio": "cpio",
    "depmod": "kmod",
    "make": "make",
    "gcc": "gcc",
}

#: The guest's user land, beside busybox.
PYTHON = ("python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib")
LIBRARIES = ("libc6", "libgcc-s1", "libstdc++6", "zlib1g", "libexpat1", "libffi8", "libssl3", "liblzma5", "libbz2-1.0")


#: How long another program may keep apt's or dpkg's lock.
LOCK_S = 600
_LOCKED = re.compile(r"Could not get lock|Unable to (acquire|lock)")


#: Beside what was unpacked: of which packages; written last.
CONTENTS = ".packages"


def apt(*arguments: str, cwd: Path | None = None) -> str:
    """The output of a command; waits while another program holds apt's lock."""
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    until = time.monotonic() + LOCK_S
    while True:
        result = subprocess.run(arguments, cwd=cwd, env=environment, text=True, capture_output=True, timeout=600)
        if not result.returncode:
            return result.stdout
        if arguments[0] != "apt-get" or not _LOCKED.search(result.stderr) or time.monotonic() > until:
            raise SystemExit(f"{' '.join(arguments)}\n{result.stdout}{result.stderr}")
        print("== waiting for another program that uses apt", flush=True)
        time.sleep(2)  # apt offers nothing to wait for: its locks are on several files, one after another


@contextmanager
def one_run(folder: Path = BUILD) -> Iterator[None]:
    """Only one run at a time in a clone: both would write the same folders and consoles."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("== waiting for another run in this clone", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def whole(target: Path) -> Iterator[Path]:
    """A place beside `target` for a file or a folder; it gets the name when the block ended well, and only then."""
    beside = target.with_name(target.name + ".new")
    _remove(beside)
    yield beside
    if target.is_dir():  # a folder is not replaced in one step; without the name it is made again
        _remove(target)
    beside.rename(target)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def require(packages: list[str], options: tuple[str, ...]) -> None:
    """Names the packages that this archive does not have, before any of them is asked for."""
    known = set(re.findall(r"^Package: (\S+)", apt_shown(packages, options), re.MULTILINE))
    lacking = sorted(set(packages) - known)
    if lacking:
        raise SystemExit(
            f"the archive of this host has no {', '.join(lacking)}: guests are made of Debian 12's packages "
            "(Linux 6.1, Python 3.11), because the module follows that kernel. Run on Debian 12, or add its archive to apt"
        )


def apt_shown(packages: list[str], options: tuple[str, ...]) -> str:
    """What apt-cache knows of these packages; it fails when it lacks one, and shows the others."""
    command = ["apt-cache", *options, "show", "--no-all-versions", *packages]
    return subprocess.run(command, text=True, capture_output=True, timeout=600).stdout


def install_tools(architectures: list[Architecture]) -> None:
    """Install what is missing on the host, or say what is missing when that needs another user."""
    unwanted = {
        "x86": ("qemu-system-x86",),
        "arm64": ("qemu-system-arm", "gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"),
    }
    names = {one.name for one in architectures}
    skipped = {package for name, packages in unwanted.items() if name not in names for package in packages}
    missing = sorted(
        package
        for sign, package in TOOLS.items()
        if package not in skipped and not (shutil.which(sign) or Path(sign).is_file())
    )
    headers = f"linux-headers-{kernel_version('cloud-amd64', ())}"
    if not Path("/usr/src", headers).is_dir():
        missing.append(headers)  # brings the headers common to all architectures and kbuild
    if not missing:
        return
    if os.geteuid() != 0:
        raise SystemExit(f"missing on this host: apt-get install --no-install-recommends {' '.join(missing)}")
    print(f"== installing {' '.join(missing)}", flush=True)
    apt("apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing)


def refresh_lists(options: tuple[str, ...] = (), stamp: Path | None = None) -> None:
    """Fetch package lists, at most once a day: the host's own, or those that `options` name."""
    stamp = stamp or BUILD / "lists"
    if stamp.exists() and time.time() - stamp.stat().st_mtime < 86_400:
        return
    if options or os.geteuid() == 0:
        apt("apt-get", *options, "-qq", "update")
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.touch()


def kernel_version(flavour: str, options: tuple[str, ...]) -> str:
    """The version that the archive's current kernel package of this flavour depends on."""
    found = re.search(r"Depends: linux-image-(\S+)", apt("apt-cache", *options, "depends", f"linux-image-{flavour}"))
    if not found:
        raise SystemExit(f"linux-image-{flavour} is not in the package lists: apt-get update")
    return found[1]


class Archive:
    """Packages of one architecture, downloaded once into build/kernel and unpacked there."""

    def __init__(self, architecture: Architecture) -> None:
        self.architecture = architecture
        self.folder = BUILD / architecture.name
        self.root = self.folder / "unpacked"
        self._debs = self.folder / "deb"
        apt_folder = self.folder / "apt"
        for path in (self._debs, apt_folder / "lists/partial", apt_folder / "cache/archives/partial"):
            path.mkdir(parents=True, exist_ok=True)
        self._options: tuple[str, ...] = ("-o", "APT::Sandbox::User=root")
        if architecture.foreign:
            settings = {
                "Dir::State::Lists": apt_folder / "lists",
                "Dir::Cache": apt_folder / "cache",
                "APT::Architecture": architecture.debian,
                "APT::Architectures": architecture.debian,
            }
            for key, value in settings.items():
                self._options += ("-o", f"{key}={value}")
            refresh_lists(self._options, self.folder / "lists")
        self.version = kernel_version(architecture.flavour, self._options)

    def fetch(self) -> None:
        """Everything that a guest boots, and the headers that its module and extension are built with."""
        wanted = [f"linux-image-{self.version}", "busybox-static", "libpython3.11-dev", *PYTHON, *LIBRARIES]
        if self.architecture.foreign:
            wanted.append(f"linux-headers-{self.version}")
        missing = [package for package in wanted if not list(self._debs.glob(f"{package}_*.deb"))]
        if missing:
            require(missing, self._options)
            print(f"== downloading {len(missing)} {self.architecture.debian} packages", flush=True)
            self._download(missing)
        debs = [max(self._debs.glob(f"{package}_*.deb"), key=lambda deb: deb.stat().st_mtime) for package in wanted]
        contents = "\n".join(deb.name for deb in debs)
        if self._unpacked_as() == contents:
            return
        with whole(self.root) as root:
            for deb in debs:
                apt("dpkg-deb", "-x", str(deb), str(root))
            apt("depmod", "-b", str(root), self.version)
            (root / CONTENTS).write_text(contents)

    def _download(self, packages: list[str]) -> None:
        """Each package is moved to its place when apt has fetched and checked all of them."""
        with tempfile.TemporaryDirectory(dir=self.folder, prefix="deb-") as folder:
            apt("apt-get", *self._options, "-qq", "download", *packages, cwd=Path(folder))
            for deb in Path(folder).glob("*.deb"):
                deb.rename(self._debs / deb.name)

    def _unpacked_as(self) -> str:
        """Names of the packages that the folder was made of; nothing when it is not whole."""
        listing = self.root / CONTENTS
        return listing.read_text() if listing.exists() else ""

    @property
    def image(self) -> Path:
        return self.root / "boot" / f"vmlinuz-{self.version}"

    @property
    def headers(self) -> Path:
        """Where the module is built from."""
        if not self.architecture.foreign:
            return Path("/usr/src") / f"linux-headers-{self.version}"
        name = f"linux-kbuild-{'.'.join(self.version.split('.')[:2])}"
        kbuild = self.root / "usr/lib" / name
        if not kbuild.exists():
            kbuild.parent.mkdir(parents=True, exist_ok=True)
            kbuild.symlink_to(Path("/usr/lib") / name)  # the host's own, which runs here
        return self.root / "usr/src" / f"linux-headers-{self.version}"

    def modules_for(self, *names: str) -> list[Path]:
        """The files of these kernel modules and of what they need, in loading order."""
        files: list[Path] = []
        for name in names:
            listing = apt("modprobe", "-d", str(self.root), "-S", self.version, "--show-depends", name)
            for line in listing.splitlines():
                if line.startswith("insmod") and Path(line.split()[1]) not in files:
                    files.append(Path(line.split()[1]))
        return files

    def wheels(self, *names: str) -> Path:
        """Wheels for the guest's Python, unpacked into one folder."""
        target = self.folder / "wheels"
        if not target.is_dir() or any(name not in self._unpacked(target) for name in names):
            with tempfile.TemporaryDirectory(dir=self.folder, prefix="wheel-") as cache, whole(target) as beside:
                apt(
                    sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps",
                    "--only-binary=:all:", "--platform", self.architecture.wheels, "--python-version", "3.11",
                    "-d", cache, *names,
                )  # fmt: skip
                beside.mkdir()
                for wheel in Path(cache).glob("*.whl"):
                    apt(sys.executable, "-m", "zipfile", "-e", str(wheel), str(beside))
        return target

    @staticmethod
    def _unpacked(folder: Path) -> set[str]:
        return {path.name.split("-")[0] for path in folder.glob("*.dist-info")}
