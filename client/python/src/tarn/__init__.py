# SPDX-License-Identifier: Apache-2.0
"""tarn: Tensors At Remote Nodes, a key-value store for tensors without a server in its data path.

    import numpy, tarn
    c = tarn.Client()                       # $TARN_REDIS
    c.put("prefix/42", numpy.arange(8.0))   # torch tensors, GPU memory, any strides
    a = c.get("prefix/42")
    c.close()
"""
from __future__ import annotations

from . import _tarn
from ._channels import Channel, Listener, Peer
from ._client import Client
from ._connector import Connector
from ._errors import (
    Again,
    AuthError,
    BatchError,
    Busy,
    Canceled,
    Closed,
    ConfigError,
    DirectoryError,
    Error,
    Exists,
    Forked,
    FormatError,
    Full,
    InDoubt,
    Invalid,
    NodeDown,
    NoMemory,
    NotFound,
    NotReachable,
    Protocol,
    SizeMismatch,
    Stale,
    SystemFailure,
    TensorMismatch,
    Timeout,
    TooLarge,
    Unavailable,
    Unsupported,
    VersionError,
    error_of,
)
from ._manage import Copy, Event, NodeInfo, ObjectInfo, PoolInfo, Transport, transports
from ._tarn import (
    HIT,
    MISS,
    NODE_DOWN,
    Hits,
    Layout,
    Lease,
    Operation,
    Pages,
    Piece,
    PutSession,
    Registration,
    Table,
    TensorInfo,
    WindowMemory,
    lib_version,
)
from ._windows import Notification, Reach, Window

__version__ = "0.1.0"
dtypes = _tarn.dtypes

# Listed, since type checkers read it.
__all__ = [
    "Again", "AuthError", "BatchError", "Busy", "Canceled", "Channel", "Client", "Closed", "ConfigError", "Connector",
    "Copy", "DirectoryError", "Error", "Event", "Exists", "Forked", "FormatError", "Full", "HIT", "Hits", "InDoubt",
    "Invalid", "Layout", "Lease", "Listener", "MISS", "NODE_DOWN", "NoMemory", "NodeDown", "NodeInfo", "NotFound",
    "NotReachable", "Notification", "ObjectInfo", "Operation", "Pages", "Peer", "Piece", "PoolInfo", "Protocol",
    "PutSession", "Reach", "Registration", "SizeMismatch", "Stale", "SystemFailure", "Table", "TensorInfo",
    "TensorMismatch", "Timeout", "TooLarge", "Transport", "Unavailable", "Unsupported", "VersionError", "Window",
    "WindowMemory", "dtypes", "error_of", "lib_version", "transports",
]
