# SPDX-License-Identifier: Apache-2.0
from glob import glob

from setuptools import Extension, setup

# libobmm_preload: a library for LD_PRELOAD, which no Python imports; built and installed as if one did
preload = Extension(
    "obmm.libobmm_preload",
    sources=sorted(glob("native/preload/*.c")),
    extra_compile_args=["-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-fvisibility=hidden"],
    extra_link_args=["-pthread", "-ldl"],
    py_limited_api=True,
)

setup(
    cffi_modules=["native/ffi/build.py:ffibuilder"],
    ext_modules=[preload] if preload.sources else [],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
