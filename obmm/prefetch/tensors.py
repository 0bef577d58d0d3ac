# SPDX-License-Identifier: Apache-2.0
"""float32 rows as the array type that a caller of the source project's interface expects; torch is optional."""

from __future__ import annotations

import errno
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from obmm.errors import ObmmArgumentError
from obmm.mapping.buffers import array_here
from obmm.prefetch.bfloat16 import to_bfloat16_bits

Float = Literal["float32", "bfloat16"]


def float_name(dtype: Any) -> Float:
    """ "float32" or "bfloat16", from a name, a NumPy type or a torch type."""
    name = dtype if isinstance(dtype, str) else str(dtype).rpartition(".")[2]
    if name == "bfloat16":
        return "bfloat16"
    if name.removeprefix("class ").strip("<>'") == "float32":
        return "float32"
    raise ObmmArgumentError.because(
        "POOL", errno.EINVAL, f"dtype {dtype!r}", "use float32 or bfloat16", "Engram specification 8.1"
    )


def as_float32(table: Any) -> NDArray[np.float32]:
    """A table ``[rows, dim]`` from a torch tensor (any device, any float type), an array, or nested lists."""
    if hasattr(table, "detach"):
        table = table.detach().cpu().float().numpy()
    array = np.ascontiguousarray(array_here(table), dtype=np.float32)
    if array.ndim != 2 or not array.size:
        raise ObmmArgumentError.because(
            "POOL", errno.EINVAL, f"a table of shape {array.shape}", "pass [rows, dim]", "Engram specification 8.1"
        )
    return array


def as_ids(row_ids: Any) -> NDArray[np.int64]:
    """Row numbers from a torch tensor, an array or a list, flat and contiguous."""
    if hasattr(row_ids, "detach"):
        row_ids = row_ids.detach().cpu()
        if row_ids.is_floating_point():
            if row_ids.numel():  # torch.tensor([]) is float32
                raise _not_whole(row_ids.dtype)  # bfloat16 has no NumPy type to say this with
            row_ids = row_ids.long()
        row_ids = row_ids.numpy()
    ids = array_here(row_ids)
    if ids.size and ids.dtype.kind not in "iu":
        raise _not_whole(ids.dtype)
    return np.ascontiguousarray(ids.ravel(), dtype=np.int64)


def as_result(rows: NDArray[np.float32], dtype: Any, device: Any = None) -> Any:
    """`rows` as `dtype` on `device`: a torch tensor where torch is installed, float32 on the CPU without a copy.

    Without torch: the float32 array itself, or for bfloat16 its bits as uint16.
    """
    wanted = float_name(dtype)
    try:
        import torch
    except ImportError:
        if device is not None and str(device) != "cpu":
            raise ObmmArgumentError.because(
                "POOL", errno.EINVAL, f"device {device!r} without torch", "install torch", "Engram specification 8.1"
            ) from None
        return rows if wanted == "float32" else to_bfloat16_bits(rows)
    # the rounding is done here: half as many bytes go to the device
    tensor = torch.from_numpy(rows).to(getattr(torch, wanted))
    return tensor if device is None else tensor.to(device)


def _not_whole(kind: Any) -> ObmmArgumentError:
    return ObmmArgumentError.because(
        "POOL", errno.EINVAL, f"row ids of type {kind}", "pass whole numbers", "Engram specification 8.1"
    )
