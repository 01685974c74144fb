# SPDX-License-Identifier: Apache-2.0
"""Files next to a training on a disk that is full for a while. Needs nothing; a second."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from harness import side_file
from harness.side_file import SideFile, describe_output_gap
from tests.support.metrics_lines import validate_line


class FullDisk:
    """From now on writes fail: `half` of the first one still fits; `cuts`: what was written can be taken back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, half: bool, cuts: bool = True) -> None:
        self._patch, self._half, self._write = monkeypatch, half, os.write
        self._patch.setattr(side_file.os, "write", self._fail)
        self._truncate = os.ftruncate
        if not cuts:
            self._patch.setattr(side_file.os, "ftruncate", self._fail)

    def _fail(self, descriptor: int, data: Any) -> int:
        if self._half:
            self._half = False
            return self._write(descriptor, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    def has_room(self) -> None:
        """It can be written again."""
        self._patch.setattr(side_file.os, "write", self._write)
        self._patch.setattr(side_file.os, "ftruncate", self._truncate)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("cuts", [False, True])
def test_a_piece_is_whole_or_dropped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half: bool, cuts: bool
) -> None:
    path = tmp_path / "log"
    file = SideFile(str(path), describe_output_gap)
    assert file.append(b"first\n")
    disk = FullDisk(monkeypatch, half=half, cuts=cuts)
    assert [file.append(b"second\n"), file.append(b"third\n")] == [False, False]
    assert (file.num_dropped, file.dropped_bytes, file.error) == (2, 13, "no space left on device")
    disk.has_room()
    assert file.append(b"fourth\n")
    file.close()
    assert path.read_bytes() == b"first\n\n[13 bytes of output are missing here: no space left on device]\nfourth\n"


def test_a_gap_at_the_end_is_told_when_the_file_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = SideFile(str(tmp_path / "log"), describe_output_gap)
    disk = FullDisk(monkeypatch, half=True)
    file.append(b"lost\n")
    disk.has_room()
    file.close()
    assert b"[5 bytes of output are missing here" in (tmp_path / "log").read_bytes()


def test_a_file_that_cannot_be_made_yet_is_made_later(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    file = SideFile(str(folder / "log"), describe_output_gap)
    assert not file.append(b"lost\n")
    folder.mkdir()
    assert file.append(b"kept\n")
    assert (folder / "log").read_bytes().endswith(b"missing here: no such file or directory]\nkept\n")


def test_the_row_about_missing_rows_is_one_of_the_schema() -> None:
    row = {"type": "rows_dropped", "rows": 3, "error": "no space left on device", "time": 1.0}
    assert validate_line(json.loads(json.dumps(row))) == []
    assert validate_line({"type": "rows_dropped", "time": 1.0}) == ["`rows` is missing", "`error` is missing"]
