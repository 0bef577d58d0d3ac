# SPDX-License-Identifier: Apache-2.0
"""Puts this clone on the path of the environment whose Python runs this: ``.venv/bin/python native/tools/name_the_clone.py``.

pip's editable installation finds the package by a hook behind all others.  That loses to a folder: from above a clone that is
called obmm, ``import obmm`` would find the clone itself, as a package without anything in it.
"""

import pathlib
import sysconfig

clone = pathlib.Path(__file__).resolve().parents[2]
place = pathlib.Path(sysconfig.get_path("purelib"), "obmm-clone.pth")
place.write_text(f"{clone}\n")
