# SPDX-License-Identifier: Apache-2.0
from setuptools import setup

setup(cffi_modules=["native/ffi/build.py:ffibuilder"], options={"bdist_wheel": {"py_limited_api": "cp311"}})
