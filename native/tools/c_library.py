# SPDX-License-Identifier: Apache-2.0
"""Lays out what a C or C++ program needs: headers, the static library, the file for pkg-config.

    python native/tools/c_library.py PREFIX OBJECT...

Below PREFIX: ``include/obmm``, ``lib/libobmm.a``, ``lib/pkgconfig/obmm.pc``.  The objects are those of the rooms in
native/, compiled as position-independent code; AR is the archiver (``ar``).  The standard library alone, any Python 3.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

NATIVE = Path(__file__).resolve().parents[1]

# what Python declares too, and what a C program wants besides
HEADERS = [
    *(name for name in (NATIVE / "ffi" / "includes.txt").read_text().split() if not name.startswith("device/")),
    *("obmm.h", "abi/lp64.h", "access/order.h", "core/topology.h", "core/version.h", "gather/hot.h"),
    *("sdk_standin/ubs_mem.h", "urma_standin/urma.h"),
]

# of the folder that it is in, so that the tree may be moved
PKG_CONFIG = """prefix=${{pcfiledir}}/../..
includedir=${{prefix}}/include
libdir=${{prefix}}/lib

Name: obmm
Description: another node's memory through openEuler's OBMM driver
Version: {version}
Cflags: -I${{includedir}} -pthread
Libs: -L${{libdir}} -lobmm -pthread
"""


def version():
    text = (NATIVE / "core" / "version.h").read_text()
    return ".".join(re.search(rf"OBMM_VERSION_{part} (\d+)", text)[1] for part in ("MAJOR", "MINOR", "PATCH"))


def lay_out(prefix, objects):
    shutil.rmtree(prefix / "include" / "obmm", ignore_errors=True)
    for header in HEADERS:
        place = prefix / "include" / "obmm" / header
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(NATIVE / header, place)
    library = prefix / "lib" / "libobmm.a"
    (library.parent / "pkgconfig").mkdir(parents=True, exist_ok=True)
    library.unlink(missing_ok=True)
    subprocess.run([os.environ.get("AR") or "ar", "rcsD", library, *objects], check=True)
    (library.parent / "pkgconfig" / "obmm.pc").write_text(PKG_CONFIG.format(version=version()))


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]), sys.argv[2:])
