# SPDX-License-Identifier: Apache-2.0
"""What keeps a store of blocks from being opened or used at all.

A block that cannot be had is never an error: it is a miss, with a reason (`obmm.blocks.Reason`).
"""

from __future__ import annotations

import errno

from obmm.errors import ObmmArgumentError, ObmmError


class BlockStoreError(ObmmError):
    """The owner of a store cannot be used: another version, other sizes, no answer.

    >>> with obmm.serve({}, port=0, plain=True) as server, obmm.connect(server.addresses[0], plain=True) as peer:
    ...     obmm.blocks.BlockStore(peer, b, obmm.blocks.Namespace(model="m"))
    Traceback (most recent call last):
    obmm.exchange.errors.RequestRefusedError: ...
    >>> obmm.blocks.BlockStoreError.because(22, "another version", "upgrade").operation
    'BLOCKS'
    """

    @classmethod
    def because(cls, number: int, problem: str, fix: str) -> BlockStoreError:
        """The error with errno `number`: `problem` is what is wrong, `fix` what to do."""
        return cls(number, f"BLOCKS: {problem}; fix: {fix}", operation="BLOCKS")


def refused(problem: str, fix: str, number: int = errno.EINVAL) -> ObmmArgumentError:
    """An argument that cannot be right."""
    return ObmmArgumentError.because("BLOCKS", number, problem, fix, "docs/blocks.md")
