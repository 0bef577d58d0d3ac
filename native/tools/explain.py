# SPDX-License-Identifier: Apache-2.0
"""Prints obmm's one table of explanations as C, for explain.c.  Needs no more than a bare Python."""

import json
import runpy
import sys
import types
from pathlib import Path

TABLE = Path(__file__).resolve().parents[2] / "obmm" / "explanations.py"


def main() -> None:
    sys.dont_write_bytecode = True
    # the package without its __init__, which needs more than a bare Python
    package = types.ModuleType("obmm")
    package.__path__ = [str(TABLE.parent)]
    sys.modules["obmm"] = package
    explanations = runpy.run_path(str(TABLE), run_name="obmm_explanations")["EXPLANATIONS"]
    print("/* made from obmm/explanations.py */")
    for (operation, errno), causes in explanations.items():
        if not operation.isupper():
            continue  # a function of the SDK or of liburma, which no C tool calls
        for cause in causes:
            texts = ", ".join(json.dumps(text) for text in (cause.rules, cause.meaning, cause.fix))
            print(f'{{ "{operation}", {errno}, {texts} }},')


main()
