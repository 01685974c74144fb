# SPDX-License-Identifier: Apache-2.0
"""Programs that each command starts, compared with the table of `docs/security.md`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.security.command_runner import SPEC
from tests.security.started_programs import watch_command
from tests.support.sample_checkpoints import make as make_checkpoint
from tests.support.sample_run import head, step, tiny, write_run

PAGE = Path(__file__).parents[2] / "docs/security.md"


def documented_programs(command: str) -> str:
    """The cell *Starts* of a command."""
    rows = [line.split("|")[1:-1] for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    (row,) = [row for row in rows if f"`{command}`" in row[0] and len(row) == 4]
    return row[2].strip()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work")
    (folder / "s.yaml").write_text(SPEC + "launch: {num_gpus: 1}\n")
    write_run(folder / "runs/a", tiny(), [head(tiny()), step(1)], ("failed",))
    make_checkpoint(folder / "runs/a/checkpoints", 1)
    (folder / "job.log").write_text("torch.OutOfMemoryError: CUDA out of memory.\n")
    return folder


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("upgrade-check", ["upgrade-check", "s.yaml", "--from", "0.16.9", "--to", "0.19.8"]),
        ("explain KEY", ["explain", "zero.stage"]),
        ("plan", ["plan", "s.yaml"]),
        ("explain --log", ["explain", "--log", "job.log"]),
        ("report", ["report", "runs/a"]),
        ("checkpoint", ["checkpoint", "verify", "runs/a"]),
    ],
)
def test_commands_that_start_nothing(command: str, arguments: list[str], folder: Path, tmp_path: Path) -> None:
    assert documented_programs(command).startswith("nothing")
    seen = watch_command(arguments, folder, tmp_path)
    assert seen.code in (0, 1), seen.output
    assert seen.starts == seen.connects == seen.unpickles == []
    assert seen.imported_below(folder) == []


def test_doctor_starts_what_the_page_says(folder: Path, tmp_path: Path) -> None:
    words = set(re.findall(r"`([\w-]+)", documented_programs("doctor")))
    seen = watch_command(["doctor"], folder, tmp_path)
    starts = {"python" if name == Path(sys.executable).name else name for name in seen.starts}
    assert starts <= words
    assert starts & {"cc", "python"}
    assert seen.connects == []
