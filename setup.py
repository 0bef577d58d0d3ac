# SPDX-License-Identifier: Apache-2.0
from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# a library for LD_PRELOAD, which no Python imports; built and installed as if one did
PRELOAD = Extension(
    "obmm.libobmm_preload",
    sources=sorted(glob("native/preload/*.c")),
    extra_compile_args=["-std=gnu11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-fvisibility=hidden"],
    extra_link_args=["-pthread", "-ldl"],
    py_limited_api=True,
)

# the SDK's interface on the emulator: programs take it only by its name
STANDIN = Extension(
    "obmm.libubsm_sdk_standin",
    sources=sorted(glob("native/sdk_standin/*.c")),
    extra_compile_args=["-std=gnu11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-fvisibility=hidden"],
    extra_link_args=["-pthread"],
    py_limited_api=True,
)


class BuildExtensions(build_ext):
    """`build_ext` that leaves Python's tag out of the names of libraries that no Python imports."""

    def get_ext_filename(self, fullname):
        name = super().get_ext_filename(fullname)
        return name.replace(".abi3", "") if fullname.endswith(("libobmm_preload", "libubsm_sdk_standin")) else name


setup(
    cffi_modules=["native/ffi/build.py:ffibuilder"],
    ext_modules=[PRELOAD, STANDIN],
    cmdclass={"build_ext": BuildExtensions},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
