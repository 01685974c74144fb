# SPDX-License-Identifier: Apache-2.0
"""Attacks by whoever joins the process group of a run, on the gathers of Python objects."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from harness.checkpoints.manifest import FileRecord
from harness.findings import Finding, Fix, Label, Place
from harness.runtime.checkpoint.saver import CheckpointSaver
from harness.runtime.distributed import Distributed
from harness.workers import allreduce_worker
from tests.security.attempts import Attempt

pytestmark = pytest.mark.training


class Call:
    """Pickled as a call of a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.function, self.arguments


@pytest.fixture
def group() -> Iterator[dist.ProcessGroup]:
    """A group of this process alone."""
    store = dist.HashStore()  # type: ignore[attr-defined]  # torch documents it, and does not list it
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield dist.new_group(backend="gloo")
    finally:
        dist.destroy_process_group()


def ranks(group: Any, world_size: int = 1) -> Distributed:
    return Distributed(0, world_size, 0, torch.device("cpu"), group)


def answer_as_second_rank(monkeypatch: pytest.MonkeyPatch, payload: bytes) -> None:
    """The process group has a second rank, which sends `payload`."""

    def all_gather(rows: list[torch.Tensor], row: torch.Tensor, **_: Any) -> None:
        rows[0].copy_(row)
        sent = bytearray((len(payload).to_bytes(8, "little") + payload).ljust(len(row), b"\0"))
        rows[1].copy_(torch.frombuffer(sent, dtype=torch.uint8)[: len(row)])

    monkeypatch.setattr(dist, "all_gather", all_gather)
    monkeypatch.setattr(dist, "get_world_size", lambda *_: 2)


@Attempt(
    "S80",
    "Somebody who reaches the ports of a run joins it, and sends a pickle that calls `os.mkdir` where ranks gather "
    "findings, host names and flags",
    "every rank made the folder",
    "ConnectionError, nothing runs",
)
def test_pickle_of_another_rank(group: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    archive = tmp_path / "archive"
    torch.save({"a": Call(os.mkdir, str(marker))}, archive)
    for payload in (pickle.dumps(Call(os.mkdir, str(marker))), archive.read_bytes(), b"[" * 5000, b"PK", b""):
        answer_as_second_rank(monkeypatch, payload)
        with pytest.raises(ConnectionError, match="rank 1 sent bytes that are not an object"):
            ranks(group, 2).all_gather_object({"rank": 0})
        assert not marker.exists()


@Attempt(
    "S81",
    "The same while a save runs in the background, on its own process group",
    "torch's `all_gather_object` unpickled the call on every rank",
    "TypeError of the sender; what arrives is read as in S80",
)
def test_pickle_in_a_background_save(group: Any, tmp_path: Path) -> None:
    saver = CheckpointSaver(None, ranks(group), None, _group=group)  # type: ignore[arg-type]  # reads neither
    with pytest.raises(TypeError, match=r"cannot send each other a `tests\.security\.test_object_gather\.Call`"):
        saver._all_gather_object([1, (Call(os.mkdir, str(tmp_path / "marker")),)])
    assert not (tmp_path / "marker").exists()


@Attempt(
    "S82",
    "The same in `preflight --allreduce`, where ranks gather the names of their hosts",
    "torch's `all_gather_object` unpickled the call on every rank",
    "names travel as 256 bytes, and are decoded as text",
)
def test_host_names(group: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hostile = pickle.dumps(Call(os.mkdir, str(tmp_path / "marker")))

    def all_gather(rows: list[torch.Tensor], row: torch.Tensor, **_: Any) -> None:
        rows[0].copy_(row)
        rows[1].copy_(torch.frombuffer(bytearray(hostile.ljust(len(row), b"\0")), dtype=torch.uint8)[: len(row)])

    monkeypatch.setattr(dist, "all_gather", all_gather)
    monkeypatch.setattr(dist, "get_world_size", lambda *_: 2)
    names = allreduce_worker.gather_host_names(torch.device("cpu"))
    assert names[0] == socket.gethostname()
    assert "mkdir" in names[1]
    assert not (tmp_path / "marker").exists()


def test_all_that_ranks_send_arrives_unchanged(group: Any) -> None:
    place = Place("a.yaml", 1, 2, 3)
    finding = Finding("CK101", "error", "m", "k", place, "l", (Label(place, "x"),), ("n",), Fix("t", {"a.b": None}))
    for value in (
        None,
        {"losses": [1.5, float("inf")], "name": "\ud800", "steps": 2**70},
        (True, b"\0bytes", {1, 2}, {3: "x"}),
        ({"a": FileRecord(5, "ab", 1, 2)}, (None, "reason")),
        [finding],
    ):
        (found,) = ranks(group).all_gather_object(value)
        assert found == value
        assert type(found) is type(value)
    ((_, tensor),) = ranks(group).all_gather_object((1, torch.arange(3)))
    assert tensor.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ({"a": [np.float64(1.5)]}, "numpy.float64"),
        ((1, Path("x")), "pathlib.PosixPath"),
        (lambda: 1, "builtins.function"),
    ],
    ids=["number", "path", "function"],
)
def test_another_type_fails_where_it_is_sent(group: Any, value: object, name: str) -> None:
    with pytest.raises(TypeError, match=f"ranks cannot send each other a `{name}`"):
        ranks(group).all_gather_object(value)
