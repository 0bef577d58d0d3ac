# SPDX-License-Identifier: Apache-2.0
"""The driver model: what the OBMM driver would answer, without a process around it."""

from .calls import Action, Answer, Backing, KernelError, Map, Protect, Unmap, UserMemory
from .fabric import Fabric
from .files import OpenFile
from .host import Host
from .process import Process

__all__ = [
    "Action",
    "Answer",
    "Backing",
    "Fabric",
    "Host",
    "KernelError",
    "Map",
    "OpenFile",
    "Process",
    "Protect",
    "Unmap",
    "UserMemory",
]
