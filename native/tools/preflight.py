# SPDX-License-Identifier: Apache-2.0
"""What `make` needs of this machine, looked at before anything is downloaded: Python, venv, headers, a C compiler.

    python3 native/tools/preflight.py .venv

Says everything that is missing at once, with the distribution's own package names; removes a virtual environment that was
made for another Python.  Must itself run on Python 3.6, to say that it is too old.
"""

import os
import shutil
import subprocess
import sys
import sysconfig

NEWEST_OLD = (3, 11)
PACKAGES = {  # {v}: 3 for the distribution's own Python, else 3.11; {w}: the same without a dot
    "debian": (
        "apt-get install",
        {
            "python": "python3.11 python3.11-venv python3.11-dev",
            "venv": "python{v}-venv",
            "headers": "python{v}-dev",
            "cc": "gcc",
            "libc": "libc6-dev",
        },
    ),
    "fedora": (
        "dnf install",
        {
            "python": "python3.11 python3.11-devel",
            "venv": "python{v}",
            "headers": "python{v}-devel",
            "cc": "gcc",
            "libc": "glibc-devel",
        },
    ),
    "suse": (
        "zypper install",
        {
            "python": "python311 python311-devel",
            "venv": "python{w}",
            "headers": "python{w}-devel",
            "cc": "gcc",
            "libc": "glibc-devel",
        },
    ),
    "arch": ("pacman -S", {"python": "python", "venv": "python", "headers": "python", "cc": "gcc", "libc": "glibc"}),
    "alpine": (
        "apk add",
        {"python": "python3", "venv": "python3", "headers": "python3-dev", "cc": "gcc", "libc": "musl-dev"},
    ),
}
FAMILIES = {
    "ubuntu": "debian",
    "rhel": "fedora",
    "centos": "fedora",
    "openeuler": "fedora",
    "opensuse": "suse",
    "sles": "suse",
}


def family():
    """Which distribution this is like, or None."""
    try:
        with open("/etc/os-release") as file:
            entries = dict(line.strip().split("=", 1) for line in file if "=" in line)
    except OSError:
        return None
    words = (entries.get("ID", "") + " " + entries.get("ID_LIKE", "")).replace('"', "").lower().split()
    for word in words:
        name = FAMILIES.get(word, word)
        if name in PACKAGES:
            return name
    return None


def named(package):
    """The package's name for this Python: a distribution's second Python has packages of its own."""
    version = "{}.{}".format(*sys.version_info)
    own = os.path.basename(os.path.realpath("/usr/bin/python3")) == "python" + version
    return package.format(v="3" if own else version, w="3" if own else version.replace(".", ""))


def missing():
    """(what, why) for everything that is not here."""
    if sys.version_info < NEWEST_OLD:
        have = "{}.{}".format(*sys.version_info)
        return [("python", f"Python {have} is too old, 3.11 or newer is needed (make PYTHON=python3.11 takes it)")]
    found = []
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        found.append(("venv", "the modules venv and ensurepip of Python"))
    headers = sysconfig.get_paths()["include"]
    if not os.path.exists(os.path.join(headers, "Python.h")):
        found.append(("headers", f"Python's headers ({headers}/Python.h)"))
    compiler = os.environ.get("CC", "gcc").split()[0]
    if shutil.which(compiler) is None:
        found.append(("cc", f"a C compiler ({compiler})"))
    elif subprocess.run(
        [compiler, "-x", "c", "-fsyntax-only", "-"], input=b"#include <stdlib.h>\n", stderr=subprocess.DEVNULL
    ).returncode:
        found.append(("libc", "the C library's headers (stdlib.h)"))
    return found


def remove_stale(folder):
    """A virtual environment of another Python builds nothing that this one can import."""
    config = os.path.join(folder, "pyvenv.cfg")
    if not os.path.exists(config):
        if os.path.isdir(folder) and os.listdir(folder):
            sys.exit(f"make: {folder} is there and is not a virtual environment: move it away, or make VENV=another")
        return
    with open(config) as file:
        entries = dict(line.strip().split(" = ", 1) for line in file if " = " in line)
    have = ".".join(entries.get("version", "?").split(".")[:2])
    now = "{}.{}".format(*sys.version_info)
    python = os.path.join(folder, "bin", "python")
    moved = os.path.exists(os.path.join(folder, "bin", "pip")) and not _belongs(folder)
    if have != now or not os.path.exists(python) or moved:
        why = f"is of Python {have}, this is {now}" if have != now else "was moved, or lost its Python"
        print(f"== {folder} {why}: made anew")
        shutil.rmtree(folder)


def _belongs(folder):
    """Whether its scripts point to itself: a copied or renamed clone has scripts of the old place."""
    with open(os.path.join(folder, "bin", "pip"), "rb") as file:
        first = file.readline(4096)
    return os.path.abspath(folder).encode() in first or not first.startswith(b"#!/") or b"/bin/sh" in first


if __name__ == "__main__":
    lacking = missing()
    if lacking:
        print("make: this machine lacks\n" + "\n".join(f"  * {why}" for _, why in lacking), file=sys.stderr)
        if family():
            install, names = PACKAGES[family()]
            print(f"fix: {install} " + " ".join(sorted({named(names[what]) for what, _ in lacking})), file=sys.stderr)
        sys.exit(1)
    remove_stale(sys.argv[1])
