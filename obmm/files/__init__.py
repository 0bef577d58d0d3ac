# SPDX-License-Identifier: Apache-2.0
"""Tables as people have them: .safetensors (one file, an index, a folder), .npy, .npz, .pt; read and written in pieces."""

from obmm.files.exporting import export_for, fill
from obmm.files.opening import SUFFIXES, open_arrays
from obmm.files.source import ArraySource
from obmm.files.writing import array_writer

__all__ = ["SUFFIXES", "ArraySource", "array_writer", "export_for", "fill", "open_arrays"]
