# SPDX-License-Identifier: Apache-2.0
"""Modules for torch whose weights lie in another node's memory.  Importing this needs torch."""

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError("obmm.nn is for models in torch: pip install torch") from error

from obmm.nn.embedding import Embedding
from obmm.nn.fp8_rows import dequantise, dequantised

__all__ = ["Embedding", "dequantise", "dequantised"]
