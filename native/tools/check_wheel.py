# SPDX-License-Identifier: Apache-2.0
"""Says what a wheel is, refuses one that is not what a release needs, and puts it into a folder under its manylinux tag.

    python native/tools/check_wheel.py build/wheel/obmm-*.whl dist

Checked: the tag is abi3 for CPython 3.11 and newer; auditwheel finds a manylinux policy that its libraries fulfil; the
stub, the type marker, the C headers and the examples are inside, the stub names what the package's own has; all machine
code is for the architecture of the tag.
"""

import io
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STUB = "obmm/_native.pyi"
NEEDED = (
    "obmm/py.typed",
    STUB,
    "obmm/_native.abi3.so",
    "obmm/libobmm_preload.so",
    "obmm/libubsm_sdk_standin.so",
    "obmm/liburma_standin.so",
    "obmm/c/include/obmm/obmm.h",
    "obmm/c/lib/libobmm.a",
    "obmm/c/lib/pkgconfig/obmm.pc",
)
MACHINES = {62: "x86_64", 183: "aarch64"}  # e_machine of the ELF header


def machine_of(elf: bytes) -> str:
    """The architecture that an ELF file's header names."""
    if elf[:4] != b"\x7fELF":
        return "no ELF file"
    number = int.from_bytes(elf[18:20], "little")
    return MACHINES.get(number, f"machine {number}")


def members(archive: bytes) -> Iterator[tuple[str, bytes]]:
    """(name, content) of each object of an ``ar`` archive."""
    stream = io.BytesIO(archive)
    stream.read(len(b"!<arch>\n"))
    while header := stream.read(60):
        size = int(header[48:58])
        content = stream.read(size + size % 2)[:size]
        name = header[:16].decode().strip()
        if name not in ("/", "//", "/SYM64/"):  # the index and the long names
            yield name, content


def machines(wheel: zipfile.ZipFile) -> dict[str, str]:
    """Each file with machine code -> its architecture."""
    found = {}
    for name in wheel.namelist():
        if name.endswith(".so"):
            found[name] = machine_of(wheel.read(name))
        elif name.endswith(".a"):
            found |= {f"{name}({member})": machine_of(content) for member, content in members(wheel.read(name))}
    return found


def check(path: Path, examples: set[str], stub: str) -> str:
    """The manylinux tag that fits.  SystemExit with the reason for a wheel that no release can use."""
    tag = re.search(r"-cp311-abi3-linux_(\w+)\.whl$", path.name)
    if not tag:
        sys.exit(f"{path.name}: the tag is not cp311-abi3-linux_MACHINE")
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        shipped = {name.partition("/share/doc/obmm/examples/")[2] for name in names} - {""}
        lacking = [name for name in NEEDED if name not in names] + sorted(examples - shipped)
        if lacking:
            sys.exit(f"{path.name} lacks {', '.join(lacking)}")
        foreign = {name: machine for name, machine in machines(wheel).items() if machine != tag[1]}
        if foreign:
            sys.exit(f"{path.name}: not for {tag[1]}: {foreign}")
        if wheel.read(STUB).decode() != stub:
            sys.exit(f"{path.name}: {STUB} is not the one of the module that was built here")
    said = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", str(path)], capture_output=True, text=True, check=True
    )
    policy = re.search(r'"((?:many|musl)linux_[\w]+)"', said.stdout)
    if policy is None or not policy[1].endswith(tag[1]):
        sys.exit(f"{path.name}: no manylinux policy fits:\n{said.stdout}")
    headers = sum(name.endswith(".h") for name in names)
    print(f"  {policy[1]}: abi3, {len(names)} files, {headers} C headers, {len(shipped)} examples")
    return policy[1]


def main() -> None:
    wheel, folder = Path(sys.argv[1]), Path(sys.argv[2])
    there = {path.relative_to(ROOT / "examples").as_posix() for path in (ROOT / "examples").rglob("*.[pc]*")}
    policy = check(wheel, {name for name in there if name.endswith((".py", ".c"))}, (ROOT / STUB).read_text())
    for old in folder.glob(f"obmm-*_{policy.rpartition('_')[2]}.whl"):
        old.unlink()
    command = (sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", policy, wheel)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (tagged,) = wheel.parent.glob("*.whl")
    print(f"  {tagged.replace(folder / tagged.name)}")


if __name__ == "__main__":
    main()
