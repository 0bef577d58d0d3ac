# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.kernel.guest PART ...``: run the parts one after another; the exit status counts the failed ones."""

from __future__ import annotations

import importlib
import sys
import time
import traceback


def main() -> int:
    failed = []
    for part in sys.argv[1:]:
        name, _, argument = part.partition(":")
        started = time.monotonic()
        print(f"== {part}", flush=True)
        try:
            module = importlib.import_module(f"tests.kernel.guest.{name}")
            good = module.main(*argument.split("+")) if argument else module.main()
        except BaseException:
            traceback.print_exc()
            good = False
        print(f"== {part}: {'passed' if good else 'FAILED'} in {time.monotonic() - started:.1f} s", flush=True)
        if not good:
            failed.append(part)
    return min(len(failed), 100)


if __name__ == "__main__":
    sys.exit(main())
