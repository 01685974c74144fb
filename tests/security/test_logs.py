# SPDX-License-Identifier: Apache-2.0
"""Attacks by logs, archives and dumps, on `explain --log`."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import pickle
import socket
import subprocess
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest

from harness.diagnosis.evidence.flight_recorder import read_flight_dump
from harness.diagnosis.reader import log_archives
from tests.security.attempts import Attempt
from tests.security.hostile_calls import call, nest_folders, within

LOG = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. PRIVATE\n"


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A folder of the reader's with a log."""
    folder = tmp_path / "private"
    folder.mkdir()
    (folder / "launcher.log").write_text(LOG)
    return folder


def run_dir(tmp_path: Path, marker: str) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / marker).write_text("{}")
    return folder


@Attempt(
    "I40",
    "`logs` of a run directory is a link to a folder of the reader",
    "lines of the reader's log were printed",
    "SP001, no logs",
)
def test_linked_logs(tmp_path: Path, private: Path) -> None:
    run = run_dir(tmp_path, "spec.yaml")
    (run / "logs").symlink_to(private)
    said = call("explain", "--log", run)
    assert "PRIVATE" not in said
    assert "has no logs" in said


@Attempt(
    "I41",
    "A folder with nothing but `plan.json` and a link `job.log` to a file of the reader",
    "lines of the reader's log were printed",
    "SP001, no logs",
)
def test_linked_log_beside_a_plan(tmp_path: Path, private: Path) -> None:
    run = run_dir(tmp_path, "plan.json")
    (run / "job.log").symlink_to(private / "launcher.log")
    said = call("explain", "--log", run)
    assert "PRIVATE" not in said
    assert "has no logs" in said


@Attempt(
    "I42",
    "A run directory has folders nested 1,100 deep",
    "a crash log: RecursionError",
    "the logs above are read",
)
def test_deep_folders(tmp_path: Path) -> None:
    run = run_dir(tmp_path, "spec.yaml")
    (run / "job.log").write_text(LOG)
    nest_folders(run, 1100)
    try:
        assert "out of memory" in call("explain", "--log", run)
    finally:
        subprocess.run(["rm", "-rf", str(run / "d")], check=True)


@Attempt(
    "I43",
    "A log is a sparse file of 1 TB after its first line",
    "it took 4 s a GiB, more than an hour",
    "holes are left out: it ends at once, and the lines on both sides are read",
)
def test_sparse_log(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("start\n" + LOG)
    os.truncate(log, 2**40)
    with log.open("r+b") as file:
        file.seek(2**39)
        file.write(b"\nepoch 1 of 3\n")
    with within(5):
        assert "out of memory" in call("explain", "--log", log)


def dump(line: Any = 1, number: Any = 3) -> dict[str, Any]:
    frame = {"name": "f", "filename": "t.py", "line": line}
    entry = {
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "profiling_name": "nccl:all_reduce",
        "input_sizes": [[1]],
        "input_dtypes": ["F"],
        "state": "scheduled",
        "frames": [frame],
    }
    return {"version": "2.9", "pg_config": {"0": {"ranks": "[0, 1]", "desc": "default_pg"}}, "entries": [entry]}


@Attempt(
    "I44",
    "A flight-recorder dump of 25 bytes asks for a table of 2^31 objects",
    "4 GiB for 2^28; with 2^31 it would be 32 GiB",
    "refused within 256 MiB",
)
def test_table_of_a_dump() -> None:
    data = b"\x80\x02}q\x00X\x07\x00\x00\x00entriesq\x01Nr\xff\xff\xff\x0f."
    with pytest.raises(ValueError, match="too large"):
        read_flight_dump(data, "nccl_trace_rank_0", 0)
    assert read_flight_dump(pickle.dumps(dump(), 2), "nccl_trace_rank_0", 0).enqueued == {"0": 3}


@Attempt(
    "I45",
    "A number in a flight-recorder dump has 60,000 digits",
    "a crash log: ValueError, it cannot be printed",
    "the dump is refused, the others are read",
)
def test_number_of_a_dump(tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    folder.mkdir()
    for rank, body in enumerate((dump(line=1 << 200_000), dump(number=1 << 200_000), dump())):
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(body, 2))
    said = call("explain", "--log", folder)
    assert "larger than any count" in " ".join(said.split())


@Attempt(
    "I46",
    "A flight-recorder dump calls `os.system`",
    "refused, nothing ran",
    "refused, nothing runs",
)
def test_code_of_a_dump(tmp_path: Path) -> None:
    data = b"\x80\x02cos\nsystem\nX\x07\x00\x00\x00entries\x85R."
    with pytest.raises(ValueError, match="which no flight recorder writes"):
        read_flight_dump(data, str(tmp_path), 0)


@Attempt(
    "I47",
    "`job.log.gz` of 2 MB unpacks to 2 GiB",
    "cut at the ratio that no log has, with a note",
    "cut at the ratio that no log has, with a note",
)
def test_gzip_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_archives, "FREE_BYTES", 1 << 20)
    (tmp_path / "job.log.gz").write_bytes(gzip.compress(b"start\n" + bytes(8 << 20)))
    said = call("explain", "--log", tmp_path / "job.log.gz")
    assert "unpacks to more than" in " ".join(said.split())


@Attempt(
    "I48",
    "An archive of logs has members `../../x.log` and `/etc/x.log`, links and devices",
    "texts were read, nothing was written and no link followed",
    "texts are read, nothing is written and no link followed",
)
def test_members_of_archives(tmp_path: Path, private: Path) -> None:
    inside = tmp_path / "a/b"
    inside.mkdir(parents=True)
    with zipfile.ZipFile(inside / "logs.zip", "w") as archive:
        archive.writestr("../../x.log", "start\n")
        archive.writestr("/etc/x.log", "start\n")
    with tarfile.open(inside / "logs.tar", "w") as archive_:
        for name, kind, target in (
            ("l.log", tarfile.SYMTYPE, str(private / "launcher.log")),
            ("h.log", tarfile.LNKTYPE, str(private / "launcher.log")),
            ("p.log", tarfile.FIFOTYPE, ""),
            ("d.log", tarfile.CHRTYPE, ""),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            archive_.addfile(member)
        member = tarfile.TarInfo("../../y.log")
        member.size = 6
        archive_.addfile(member, io.BytesIO(b"start\n"))
    for name in ("logs.zip", "logs.tar"):
        with within(5):
            assert "PRIVATE" not in call("explain", "--log", inside / name)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "private"]


@Attempt(
    "I49",
    "A log is xz data that needs 1.5 GiB of memory",
    "refused by the decompressor's limit",
    "refused by the decompressor's limit",
)
def test_memory_of_xz(tmp_path: Path) -> None:
    head = bytearray(lzma.compress(b"start\n", preset=0))
    size = (head[12] + 1) * 4
    place = head.index(bytes([0x21, 0x01]), 12) + 2
    head[place] = 37  # a dictionary of 1.5 GiB
    head[12 + size - 4 : 12 + size] = zlib.crc32(bytes(head[12 : 12 + size - 4])).to_bytes(4, "little")
    (tmp_path / "job.log.xz").write_bytes(bytes(head))
    said = " ".join(call("explain", "--log", tmp_path / "job.log.xz").split())
    assert "Memory usage limit exceeded" in said


@Attempt(
    "I50",
    "torchelastic's `error.json` is nested 100,000 deep, and one has a message of a wrong type",
    "read as a text",
    "read as a text",
)
def test_error_file(tmp_path: Path) -> None:
    (tmp_path / "error.json").write_text('{"message":' + "[" * 100_000 + "]" * 100_000 + "}")
    assert "Traceback" not in call("explain", "--log", tmp_path / "error.json")
    (tmp_path / "error.json").write_text(json.dumps({"message": [1, {"extraInfo": 3}]}))
    assert "Traceback" not in call("explain", "--log", tmp_path / "error.json")


@Attempt(
    "I51",
    "A folder of logs has a pipe, a socket and a device's link by the name of a log",
    "they were left out",
    "they are left out",
)
def test_pipes_in_a_folder(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.log")
    (tmp_path / "b.log").symlink_to("/dev/zero")
    (tmp_path / "job.log").write_text(LOG)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "c.log"))
        with within(5):
            assert "1 line read" in call("explain", "--log", tmp_path)
