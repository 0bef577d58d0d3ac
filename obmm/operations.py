# SPDX-License-Identifier: Apache-2.0
"""The names of what can be refused: in errors (`ObmmError.operation`), in ``obmm explain`` and in the docs."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Operation(StrEnum):
    """What was asked for when an error was the answer.  A member is its own text: ``Operation.EXPORT == "EXPORT"``."""

    # the driver's: control node, then region nodes (driver specification 6 and 9)
    OPEN = "OPEN"
    EXPORT = "EXPORT"
    EXPORT_PID = "EXPORT_PID"
    UNEXPORT = "UNEXPORT"
    IMPORT = "IMPORT"
    UNIMPORT = "UNIMPORT"
    DECLARE_PREIMPORT = "DECLARE_PREIMPORT"
    UNDECLARE_PREIMPORT = "UNDECLARE_PREIMPORT"
    ADDR_QUERY = "ADDR_QUERY"
    SHMDEV_OPEN = "SHMDEV_OPEN"
    MMAP = "MMAP"
    MUNMAP = "MUNMAP"
    UPDATE_RANGE = "UPDATE_RANGE"
    # ways to them
    BROKER_OPEN = "BROKER_OPEN"
    PROGRAM_WINDOW = "PROGRAM_WINDOW"
    # the package's
    ACCESS = "ACCESS"
    BENCH = "BENCH"
    BLOCKS = "BLOCKS"
    BROKER_POLICY = "BROKER_POLICY"
    CALL = "CALL"
    CONNECT = "CONNECT"
    COPY = "COPY"
    DEVICE = "DEVICE"
    EMBEDDING = "EMBEDDING"
    ENGINE = "ENGINE"
    ENGRAM = "ENGRAM"
    EXCHANGE = "EXCHANGE"
    FABRIC = "FABRIC"
    FETCH = "FETCH"
    FILE = "FILE"
    GATHER = "GATHER"
    HANDLE = "HANDLE"
    HASH = "HASH"
    HISTORY = "HISTORY"
    JOURNAL = "JOURNAL"
    KEY = "KEY"
    MANIFEST = "MANIFEST"
    NPY = "NPY"
    POOL = "POOL"
    POPULATE = "POPULATE"
    PREFETCH = "PREFETCH"
    QUEUE = "QUEUE"
    SDK = "SDK"
    SERVE = "SERVE"
    TABLE = "TABLE"
    TLS = "TLS"
    URMA = "URMA"
    VIEW = "VIEW"
    WINDOWS = "WINDOWS"
    # functions of the SDK (SDK specification 6): printed as sdk.map
    SDK_INITIALIZE = "initialize"
    SDK_INIT_ATTRIBUTES = "init_attributes"
    SDK_FINALIZE = "finalize"
    SDK_SET_LOGGER_LEVEL = "set_logger_level"
    SDK_SET_LOGGER = "set_logger"
    SDK_LOOKUP_REGIONS = "lookup_regions"
    SDK_CREATE_REGION = "create_region"
    SDK_LOOKUP_REGION = "lookup_region"
    SDK_DESTROY_REGION = "destroy_region"
    SDK_ALLOCATE = "allocate"
    SDK_ALLOCATE_WITH_PROVIDER = "allocate_with_provider"
    SDK_DEALLOCATE = "deallocate"
    SDK_MAP = "map"
    SDK_UNMAP = "unmap"
    SDK_SET_OWNERSHIP = "set_ownership"
    SDK_WRITE_LOCK = "write_lock"
    SDK_READ_LOCK = "read_lock"
    SDK_UNLOCK = "unlock"
    SDK_LIST_OBJECTS = "list_objects"
    SDK_LOOKUP = "lookup"
    SDK_LEASE_MALLOC = "lease_malloc"
    SDK_LEASE_MALLOC_WITH_LOCATION = "lease_malloc_with_location"
    SDK_LEASE_FREE = "lease_free"
    SDK_CLUSTER = "cluster"
    SDK_LOCAL_SLOT = "local_slot"
    SDK_LOCAL_HOST = "local_host"
    SDK_REGISTER_FAULTS = "register_faults"
    # functions of liburma (URMA specification 6), then those of obmm.urma: printed as urma.import_seg
    URMA_INIT = "init"
    URMA_UNINIT = "uninit"
    URMA_GET_DEVICE_LIST = "get_device_list"
    URMA_GET_DEVICE_BY_NAME = "get_device_by_name"
    URMA_GET_EID_LIST = "get_eid_list"
    URMA_QUERY_DEVICE = "query_device"
    URMA_CREATE_CONTEXT = "create_context"
    URMA_DELETE_CONTEXT = "delete_context"
    URMA_CREATE_JFC = "create_jfc"
    URMA_DELETE_JFC = "delete_jfc"
    URMA_CREATE_JFR = "create_jfr"
    URMA_DELETE_JFR = "delete_jfr"
    URMA_CREATE_JETTY = "create_jetty"
    URMA_DELETE_JETTY = "delete_jetty"
    URMA_ALLOC_TOKEN_ID = "alloc_token_id"
    URMA_FREE_TOKEN_ID = "free_token_id"
    URMA_REGISTER_SEG = "register_seg"
    URMA_UNREGISTER_SEG = "unregister_seg"
    URMA_IMPORT_SEG = "import_seg"
    URMA_UNIMPORT_SEG = "unimport_seg"
    URMA_IMPORT_JETTY = "import_jetty"
    URMA_UNIMPORT_JETTY = "unimport_jetty"
    URMA_CONTEXT = "Context"
    URMA_REGISTER = "register"
    URMA_BUFFER = "buffer"
    URMA_SEGMENT_OF = "segment_of"
    URMA_QUEUE = "queue"
    URMA_TICKET = "ticket"
    URMA_ATTACH = "attach"
    URMA_FETCH = "fetch"
    URMA_POST = "post"
    URMA_READ = "read"
    URMA_READ_MANY = "read_many"
    URMA_WRITE_MANY = "write_many"
    URMA_MEMORY = "UrmaMemory"
    URMA_VIEW = "view"
    URMA_WRITE = "write"
    URMA_BEAT = "beat"
    URMA_BEGIN = "begin"
    URMA_COMMIT = "commit"

    @property
    def printed(self) -> str:
        """As errors and ``obmm explain`` print it: with its library's name before it, where the name is a library's."""
        library = self.name.partition("_")[0]
        return f"{library.lower()}.{self}" if self.name != library and library in ("SDK", "URMA") else str(self)


OF_THE_DRIVER: Final = tuple(list(Operation)[: list(Operation).index(Operation.ACCESS)])
"""Those that a kernel answers: the driver, the broker's, the emulator's."""

OF_THE_SDK: Final = tuple(each for each in Operation if each.name.startswith("SDK_"))
OF_LIBURMA: Final = tuple(
    list(Operation)[list(Operation).index(Operation.URMA_INIT) : list(Operation).index(Operation.URMA_CONTEXT)]
)
OF_URMA: Final = tuple(list(Operation)[list(Operation).index(Operation.URMA_CONTEXT) :])
"""Those of obmm.urma, over these functions of the library."""


def called(name: str) -> tuple[Operation, ...]:
    """The operations of this name, in any case, with or without their library's: the one that is exactly so first.

    `name`: as in `ObmmError.operation` or as an error prints it; empty when there is none.

    >>> called("import"), called("sdk.map"), [each.printed for each in called("queue")]
    ((<Operation.IMPORT: 'IMPORT'>,), (<Operation.SDK_MAP: 'map'>,), ['urma.queue', 'QUEUE'])
    """
    wanted = name.casefold()
    found = [each for each in Operation if wanted in (each.casefold(), each.printed.casefold())]
    return tuple(sorted(found, key=lambda each: each != name))
