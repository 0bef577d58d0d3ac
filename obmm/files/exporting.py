# SPDX-License-Identifier: Apache-2.0
"""Arrays of files into exported memory, in pieces."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable
from dataclasses import replace

from obmm.errors import ObmmError
from obmm.exchange.array_manifest import ArrayManifest
from obmm.files.source import ArraySource, refused
from obmm.region.device import Device
from obmm.region.exported import ExportedRegion
from obmm.region.header import RegionHeader


def export_for(device: Device, array: ArraySource, name: str, *, numa: int = 0, pmd: bool = False) -> ExportedRegion:
    """A region on `device` for an `array`, still empty, labelled `name`.  The caller closes it.

    `numa` and `pmd` as for `Device.export_region`.  ObmmArgumentError when no node has that much memory.

    >>> np.save(folder / "words.npy", np.zeros((10, 4), "<f4"))
    >>> (array,) = obmm.files.open_arrays(folder / "words.npy")
    >>> with obmm.files.export_for(a, array, "words") as region:
    ...     manifest = obmm.files.fill(region, array, progress=print)
    ...     len(manifest.sha256)
    160
    64
    """
    nbytes = array.manifest.nbytes
    if nbytes + RegionHeader.SIZE > 1 << 62:
        raise refused(array.path, f"{nbytes} bytes are more than any node has", "name a smaller table", errno.ENOMEM)
    try:
        return device.export_region(max(1, nbytes), numa=numa, pmd=pmd, label=name)
    except ObmmError as error:
        if error.errno not in (errno.ENOMEM, errno.ENOSPC):
            raise
        raise refused(
            array.path,
            f"{array.name!r} has {nbytes} bytes, and NUMA node {numa} of {device.backend} has not that much memory to "
            f"export: {error.strerror}",
            "another node with --numa, enlarge the pool, or split the table",
            error.errno,
        ) from error


def fill(
    region: ExportedRegion, array: ArraySource, progress: Callable[[int], object] = lambda _: None
) -> ArrayManifest:
    """Copy the array into the region and publish it -> its manifest, with the SHA-256 of what was copied.

    `progress` is called with the bytes copied so far.
    """
    digest = hashlib.sha256()
    with region.map("rw") as mapping:
        offset = 0
        with mapping.writing():
            for chunk in array.chunks():
                mapping.write(offset, chunk)
                digest.update(chunk)
                offset += len(chunk)
                progress(offset)
        mapping.publish()
    return replace(array.manifest, sha256=digest.hexdigest())
