# SPDX-License-Identifier: Apache-2.0
"""``python -m obmm.bench`` is ``obmm bench``."""

from obmm.cli.bench import bench

bench(prog_name="obmm bench")
