# SPDX-License-Identifier: Apache-2.0
import os
import platform
import subprocess
import sys
from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# what an environment's own flags (CFLAGS) turn libc's names into is not for a library that defines these names
GLIBC_NAMES = ["-U_FORTIFY_SOURCE", "-U_FILE_OFFSET_BITS", "-U_TIME_BITS"]

# a library for LD_PRELOAD, which no Python imports; built and installed as if one did
PRELOAD = Extension(
    "obmm.libobmm_preload",
    sources=sorted(glob("native/preload/*.c")),
    extra_compile_args=[
        *["-std=gnu11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-fvisibility=hidden"],
        *GLIBC_NAMES,
    ],
    extra_link_args=["-pthread", "-ldl"],
    py_limited_api=True,
)

# the SDK's interface on the emulator: programs take it only by its name
STANDIN = Extension(
    "obmm.libubsm_sdk_standin",
    sources=sorted(glob("native/sdk_standin/*.c") + glob("native/standin/*.c")),
    extra_compile_args=["-std=gnu11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-fvisibility=hidden"],
    extra_link_args=["-pthread"],
    py_limited_api=True,
)

# the same for URMA's core library
URMA_STANDIN = Extension(
    "obmm.liburma_standin",
    sources=sorted(glob("native/urma_standin/*.c") + glob("native/standin/*.c")),
    extra_compile_args=["-std=gnu11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-fvisibility=hidden"],
    # the so-name of the library that it stands in for: programs find it where LD_LIBRARY_PATH leads them
    extra_link_args=["-pthread", "-Wl,-soname,liburma.so.0"],
    py_limited_api=True,
)
UNTAGGED = ("libobmm_preload", "libubsm_sdk_standin", "liburma_standin")


# the preload library replaces glibc's functions and the stand-ins use its locks: on another libc the package goes without
GLIBC = platform.libc_ver()[0] == "glibc"


class BuildExtensions(build_ext):
    """`build_ext` that leaves Python's tag out of the names of libraries that no Python imports, and writes the stub of the one that it does."""

    def run(self):
        super().run()
        native = next((extension for extension in self.extensions if extension.name == "obmm._native"), None)
        if native:
            self.lay_out_c_library(native)
        if self.extensions and not os.environ.get("OBMM_NO_STUB"):  # a module for another machine cannot be asked
            folder = "." if self.inplace else self.build_lib
            subprocess.run([sys.executable, "native/ffi/stub.py", folder], check=True)

    def lay_out_c_library(self, native):
        """obmm/c: headers, and the rooms' objects once more, as a library that C programs link."""
        rooms = [source for source in native.sources if source.startswith("native/")]
        objects = self.compiler.object_filenames(rooms, output_dir=self.build_temp)
        folder = os.path.join("." if self.inplace else self.build_lib, "obmm", "c")
        subprocess.run([sys.executable, "native/tools/c_library.py", folder, *objects], check=True)

    def get_ext_filename(self, fullname):
        name = super().get_ext_filename(fullname)
        return name.replace(".abi3", "") if fullname.endswith(UNTAGGED) else name


# `make` registers the package first and builds in place afterwards: once, and not once more per pip call
NATIVE = os.environ.get("OBMM_BUILD_NATIVE", "1") != "0"

setup(
    cffi_modules=["native/ffi/build.py:ffibuilder"] if NATIVE else [],
    ext_modules=[PRELOAD, STANDIN, URMA_STANDIN] if NATIVE and GLIBC else [],
    cmdclass={"build_ext": BuildExtensions},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
