# SPDX-License-Identifier: Apache-2.0
"""Logs in any form get an answer or one clear line, and never a traceback. Needs nothing; seconds."""

from __future__ import annotations

import bz2
import gzip
import importlib
import io
import lzma
import os
import sys
import tarfile
import tracemalloc
import zipfile

import pytest

from harness.diagnosis import diagnose
from harness.diagnosis.reader import log_archives
from tests.diagnosis.reader.test_log_reader import OOM, STEP
from tests.support.tracebacks import diagnose_text

LOG = STEP * 200 + OOM + b"\n"


def pack_zip(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return stream.getvalue()


def pack_tar(files: dict[str, bytes], mode: str = "w") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


PACKED = {
    "gzip": gzip.compress(LOG),
    "two gzip members": gzip.compress(LOG[:5000]) + gzip.compress(LOG[5000:]),
    "bzip2": bz2.compress(LOG),
    "xz": lzma.compress(LOG),
    "zip": pack_zip({"job/rank_9.log": LOG, "job/model.bin": os.urandom(100)}),
    "tar": pack_tar({"job/rank_9.log": LOG, "job/empty.log": b""}),
    "tar.gz": pack_tar({"rank_9.log": LOG}, "w:gz"),
    "tar.xz": pack_tar({"slurm-812.out": LOG}, "w:xz"),
    "UTF-16": LOG.decode().encode("utf-16"),
    "UTF-16 of the other order": b"\xfe\xff" + LOG.decode().encode("utf-16-be"),
    "a byte order mark": b"\xef\xbb\xbf" + LOG,
    "gzip of UTF-16": gzip.compress(LOG.decode().encode("utf-16")),
}


@pytest.mark.parametrize("name", PACKED)
def test_a_packed_log_is_read(name):
    diagnosis = diagnose_text(PACKED[name])
    assert (diagnosis.state, diagnosis.cause, diagnosis.rank) == ("failed", "LG001", 9), diagnosis
    assert diagnosis.num_lines == 201


@pytest.mark.parametrize("name", ["gzip", "bzip2", "xz", "tar.gz"])
def test_a_packed_log_that_is_cut_is_read_up_to_there(name):
    packed = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress}
    noise = b"".join(b"%s\n" % os.urandom(40).hex().encode() for _ in range(15_000 if name == "bzip2" else 6000))
    log = OOM + b"\n" + noise
    data = pack_tar({"job.log": log}, "w:gz") if name == "tar.gz" else packed[name](log)
    diagnosis = diagnose_text(data[: len(data) * 3 // 4])
    assert diagnosis.cause == "LG001"
    assert any("damaged or cut" in note for note in diagnosis.notes), diagnosis.notes


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (gzip.compress(LOG)[:12], "damaged"),
        (b"\x1f\x8b\x08\x00" + bytes(3000), "damaged"),
        (b"BZh91AY&SY" + b"x" * 500, "damaged"),
        (b"\xfd7zXZ\x00" + b"x" * 500, "damaged"),
        (b"PK\x03\x04" + b"x" * 500, "zip"),
        (pack_zip({"archive/data.pkl": b"x", "archive/data/0": b"y"})[:-30], "zip"),
        (pack_zip({"weights.bin": b"x"}), "without logs"),
        (pack_tar({"weights.bin": b"x"}), "without logs"),
        (bytes(range(256)) * 40, "no text"),
        (b"\x7fELF" + bytes(5000), "no text"),
        (b"\x80\x02}q\x00(X\x07\x00\x00\x00entriesq\x01cos\nsystem\nq\x02.", "flight recorder"),
    ],
    ids=[f"{i}" for i in range(11)],
)
def test_what_cannot_be_read_is_refused_with_one_line(data, words):
    diagnosis = diagnose_text(data)
    assert (diagnosis.state, diagnosis.cause) == ("not text", "")
    assert words in diagnosis.title
    assert "\n" not in diagnosis.title
    assert diagnosis.change


def test_a_zip_archive_needs_a_file_to_seek_in():
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    assert "from a pipe" in diagnose([Pipe(PACKED["zip"])]).title
    assert diagnose([Pipe(PACKED["tar.gz"])]).cause == "LG001"


def test_a_bomb_is_read_in_little_memory_and_not_to_its_end(monkeypatch):
    monkeypatch.setattr(log_archives, "FREE_BYTES", 1 << 20)
    bomb = gzip.compress(OOM + b"\n" + b"x" * (64 << 20))
    tracemalloc.start()
    diagnosis = diagnose_text(bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert diagnosis.cause == "LG001"
    assert diagnosis.num_bytes < 40 << 20
    assert any("unpacks to more than 300 times its size" in note for note in diagnosis.notes)
    assert peak < 6e6


@pytest.fixture
def zstd():
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    return importlib.import_module(name)


def test_zstd_is_read_where_python_has_it(zstd):
    assert diagnose_text(zstd.compress(LOG)).cause == "LG001"
    assert "damaged" in diagnose_text(b"(\xb5/\xfd" + b"x" * 500).title


def test_without_zstd_the_answer_says_so(zstd, monkeypatch):
    for name in ("compression.zstd", "backports.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    diagnosis = diagnose_text(zstd.compress(LOG))
    assert diagnosis.state == "not text"
    assert "backports.zstd" in diagnosis.title


@pytest.mark.parametrize("character", [chr(code) for code in (0, 1, 7, 8, 11, 12, 27, 127, 0x85, 0x2028)])
def test_control_characters(character):
    text = f"{character}[rank3]: {character} step\n" * 50 + f"[rank3]: OSError: [Errno 28] No space left{character}\n"
    text += "[rank3]: OSError: [Errno 28] No space left on device\n"
    diagnosis = diagnose_text(text)
    assert diagnosis.state in ("failed", "not text")
    assert diagnosis.state != "failed" or (diagnosis.cause, diagnosis.rank) == ("LG050", 3)


def test_ten_thousand_ranks_of_which_one_is_missing():
    line = (
        "node{n}: [rank{r}]:[E301 10:16:22.1 ProcessGroupNCCL.cpp:632] [Rank {r}] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=51, OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, Timeout(ms)=600000) ran for 600023 "
        "milliseconds before timing out.\n"
    )
    text = "".join(line.format(n=r // 8, r=r) for r in range(10_000) if r != 7777)
    diagnosis = diagnose_text(text)
    assert (diagnosis.cause, diagnosis.confidence) == ("LG070", "likely")
    assert diagnosis.rank == 7777
    assert any("ALLREDUCE #51" in note for note in diagnosis.notes)


@pytest.mark.parametrize("cut", range(0, 1400, 97))
def test_a_log_that_is_cut_anywhere(cut):
    text = (
        b"worker-0: [rank0]: Traceback (most recent call last):\n" + LOG[-1000:] + b"\r 5%|# | 1/20\r\x1b[31m[rank2]:"
    )
    assert diagnose_text(text[:cut]).state in ("failed", "no failure seen", "empty")
    assert diagnose_text(text[cut:]).state in ("failed", "no failure seen", "empty")


@pytest.mark.parametrize("rank", ["99999999999999999999", "4294967295"])
def test_ranks_that_cannot_be(rank):
    line = f"[rank{rank}]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=51, OpType=ALLREDUCE)\n"
    mapping = f"global_rank_mapping=defaultdict(<class 'list'>, {{'localhost': [0, 1, 3 6, {rank}]}})\n"
    assert diagnose_text(mapping + line).cause == "LG070"


def test_a_log_that_turns_out_to_be_no_text_beside_others():
    """Its lines are forgotten, and those of the next log keep their numbers."""
    first = b"[rank1]: MemoryError\n" * 60 + b"\0a" * 2500
    diagnosis = diagnose([io.BytesIO(first), io.BytesIO(b"fine\n"), io.BytesIO(OOM + b"\n")])
    assert (diagnosis.cause, diagnosis.rank, diagnosis.line) == ("LG001", 9, 2)
    assert "this is no text" in diagnosis.notes


def test_a_sparse_member_of_an_archive_is_left_out():
    """GNU's sparse files say where their bytes are: a terabyte of zeros takes a kilobyte."""
    member = tarfile.TarInfo("job.log")
    member.type = tarfile.GNUTYPE_SPARSE
    member.size = 0
    head = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    head[483:495] = b"\x80" + (1 << 40).to_bytes(11, "big")
    head[148:156] = b" " * 8
    head[148:156] = f"{sum(head):06o}\0 ".encode()
    diagnosis = diagnose([io.BytesIO(bytes(head) + b"\0" * 1024)])
    assert diagnosis.state == "not text"
    assert "without logs" in diagnosis.title


def test_the_members_of_an_archive_are_limited_together(monkeypatch):
    monkeypatch.setattr(log_archives, "FREE_BYTES", 1 << 20)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(20):
            archive.writestr(f"rank_{number}.log", b"step\n" * 150_000)
    packed.seek(0)
    diagnosis = diagnose([packed])
    assert diagnosis.num_bytes < 3 << 20
    assert any("times its size" in note for note in diagnosis.notes)
