# SPDX-License-Identifier: Apache-2.0
"""Python objects of every rank on every rank, without a pickle that can run code.

Bytes of `torch.save` travel, and `torch.load(weights_only=True)` reads them: tensors, plain values, containers of them,
and the classes of `SENT_CLASSES`. A value that JSON gives back unchanged travels as JSON, in a tenth of the time. Who
reaches the ports of a run can disturb it here, and run nothing.
"""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from harness.checkpoints.manifest import FileRecord
from harness.findings import Finding, Fix, Label, Place

T = TypeVar("T")
SENT_CLASSES = (Finding, Fix, Label, Place, FileRecord)
"""All classes that ranks send each other. They hold values alone, and run nothing when they are built."""
_SINGLE_GATHER_BYTES = 1 << 13
"""Bytes of a value that are gathered without asking for its size first."""
_ALL_RANKS_BYTES = 1 << 24
"""The limit for these bytes of all ranks together, on each rank: of many thousand ranks, each gets fewer."""
_MIN_SINGLE_GATHER_BYTES = 1 << 8
_SIZE_BYTES = 8
_ARCHIVE = b"PK"
"""The start of what `torch.save` writes, a zip archive; no JSON text begins so."""
_allowing_classes = threading.Lock()
"""Held while torch allows the classes: a save in the background gathers too."""


class Gather(Protocol):
    """`Distributed.all_gather_object`, or the same on another process group."""

    def __call__(self, value: T, /) -> list[T]:
        """`value` of every rank, in rank order, on every rank."""


def all_gather_object(
    value: T,
    group: dist.ProcessGroup | None,
    host_wait: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> list[T]:
    """`value` of every rank of a gloo group, in rank order, on every rank. One collective for small values, where
    torch's own `all_gather_object` takes two. `host_wait` is entered for the time of each collective.

    Raises TypeError, before anything is sent, for a value of a type that ranks do not send; ConnectionError for bytes
    that no rank of the harness sends.
    """
    payload = _encode(value)
    with _allowed_classes():
        own_value: T = _decode_own(value, payload)
    size, single = _SIZE_BYTES + len(payload), single_gather_bytes(dist.get_world_size(group))
    buffer = torch.zeros(max(single, size), dtype=torch.uint8)
    head = len(payload).to_bytes(_SIZE_BYTES, "little")
    buffer[:size] = torch.frombuffer(bytearray(head + payload), dtype=torch.uint8)
    rows = _all_gather_bytes(buffer[:single], group, host_wait)
    sizes = [int.from_bytes(row[:_SIZE_BYTES].tobytes(), "little") for row in rows]
    longest = _SIZE_BYTES + max(sizes)
    if longest > single:
        buffer = torch.nn.functional.pad(buffer, (0, max(0, longest - len(buffer))))
        rest = _all_gather_bytes(buffer[single:longest].clone(), group, host_wait)
        rows = [np.concatenate(pair) for pair in zip(rows, rest, strict=True)]
    payloads = [row[_SIZE_BYTES : _SIZE_BYTES + n].tobytes() for row, n in zip(rows, sizes, strict=True)]
    own_rank = dist.get_rank(group)
    with _allowed_classes():
        return [own_value if rank == own_rank else _decode_received(rank, data) for rank, data in enumerate(payloads)]


def single_gather_bytes(world_size: int) -> int:
    """Bytes of each rank's value that the first collective gathers, the same on every rank."""
    return max(_MIN_SINGLE_GATHER_BYTES, min(_SINGLE_GATHER_BYTES, _ALL_RANKS_BYTES // world_size))


def _all_gather_bytes(
    row: torch.Tensor, group: dist.ProcessGroup | None, host_wait: Callable[[], AbstractContextManager[None]]
) -> list[np.ndarray]:
    """The same number of bytes of every rank, in rank order."""
    rows = [torch.empty_like(row) for _ in range(dist.get_world_size(group))]
    with host_wait():
        dist.all_gather(rows, row, group=group)
    return [rank_row.numpy() for rank_row in rows]


def _encode(value: object) -> bytes:
    """Raises TypeError for a value that cannot be pickled."""
    if _is_plain(value):
        return json.dumps(value).encode()
    file = io.BytesIO()
    try:
        torch.save(value, file)
    except Exception as error:  # `__reduce__` of a value's class may raise anything
        raise TypeError(f"ranks cannot send each other a `{_type_name(value)}`: {error}") from None
    return file.getvalue()


@contextmanager
def _allowed_classes() -> Iterator[None]:
    """In this context `_decode` builds `SENT_CLASSES`. torch keeps the allowed classes in one place for all threads."""
    with _allowing_classes, torch.serialization.safe_globals(list(SENT_CLASSES)):
        yield


def _decode(data: bytes) -> Any:
    """The value in these bytes. Runs no code of theirs; raises whatever torch raises for other bytes."""
    return torch.load(io.BytesIO(data), weights_only=True) if data.startswith(_ARCHIVE) else json.loads(data)


def _is_plain(value: object) -> bool:
    """Does JSON give it back unchanged, types included?"""
    if type(value) is list:
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(type(key) is str and _is_plain(part) for key, part in value.items())
    return value is None or type(value) in (bool, int, float, str)


def _decode_own(value: object, payload: bytes) -> Any:
    """The value as the other ranks get it. Raises TypeError where they would refuse it."""
    try:
        return _decode(payload)
    except Exception:
        name = _type_name(_find_refused_part(value))
        raise TypeError(
            f"ranks cannot send each other a `{name}`: send tensors and plain values, or add the class to"
            f" `SENT_CLASSES` of `{__name__}`"
        ) from None


def _decode_received(rank: int, data: bytes) -> Any:
    try:
        return _decode(data)
    except Exception as error:  # torch raises RuntimeError, UnpicklingError, ValueError, EOFError and others
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise ConnectionError(f"rank {rank} sent bytes that are not an object of the harness: {reason}") from None


def _find_refused_part(value: object) -> object:
    """The innermost part of a container that other ranks would refuse."""
    parts = value.items() if isinstance(value, Mapping) else value if isinstance(value, list | tuple | set) else ()
    for part in parts:
        try:
            _decode(_encode(part))
        except Exception:
            return _find_refused_part(part)
    return value


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
