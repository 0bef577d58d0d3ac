# SPDX-License-Identifier: Apache-2.0
from tests.two_nodes import a, b, fabric

__all__ = ["a", "b", "fabric"]
