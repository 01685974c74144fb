# SPDX-License-Identifier: Apache-2.0
"""The manifest of a checkpoint, read and written. Needs nothing; milliseconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.checkpoints import manifest
from harness.errors import UserError
from harness.file_io import replace_file
from tests.support.sample_checkpoints import make


def test_a_manifest_says_where_training_stood(tmp_path: Path) -> None:
    read = manifest.read_manifest(make(tmp_path, 4))
    assert (read.step, read.tag, read.world_size, read.zero_stage, read.dtype) == (4, "global_step4", 2, 2, "bfloat16")
    assert read.bytes == sum(
        p.stat().st_size for p in read.folder.rglob("*") if p.is_file() and p.name != manifest.MANIFEST
    )
    with pytest.raises(UserError):
        manifest.read_manifest(tmp_path)


def test_writing_a_manifest_leaves_no_other_file(tmp_path: Path) -> None:
    folder = make(tmp_path, 4)
    before = sorted(p.name for p in folder.iterdir())
    with pytest.raises(OSError, match="File name too long"):
        replace_file(folder / ("x" * 300), "text")
    assert sorted(p.name for p in folder.iterdir()) == before
