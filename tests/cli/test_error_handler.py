# SPDX-License-Identifier: Apache-2.0
"""The ends of a command: a reader of the output that went away. Needs nothing; seconds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "arguments",
    [
        ("validate-config", "ds_configs/demo.yaml"),
        ("validate-config", "ds_configs/demo.yaml", "--format", "json"),
        ("explain", "ZR001"),
        ("render", "ds_configs/demo.yaml"),
    ],
)
def test_a_reader_that_went_away_is_exit_code_141(arguments: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "harness", *arguments],
        cwd=ROOT,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")
