# SPDX-License-Identifier: Apache-2.0
"""`harness checkpoint import` on broken folders: refused by name, with nothing left behind. Needs no torch; seconds."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from harness.cli.app import build_app
from harness.errors import UserError
from harness.launching.programs import checkpoint_import
from tests.checkpoints.foreign.test_inspection import model_state, optimizer_state, write_save
from tests.support.markdown_blocks import ROOT
from tests.support.torch_files import write_torch_file

HUGE = b"\x80\x02N" + b"r\xff\xff\xff\x7f" + b"."
"""A memo index of two billion."""


def call(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(list(arguments)), list(arguments))


def shard(tag: Path, kind: str) -> Path:
    return sorted(tag.glob(f"*{kind}_states.pt"))[-1]


def _more_ranks(tag: Path) -> None:
    for rank in (2, 3):
        write_torch_file(tag / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", optimizer_state(2), 8000)


FAULTS: dict[str, Callable[[Path], object]] = {
    "no optimizer shard": lambda tag: shard(tag, "optim").unlink(),
    "no model shard": lambda tag: shard(tag, "model").unlink(),
    "empty optimizer shard": lambda tag: os.truncate(shard(tag, "optim"), 0),
    "empty model shard": lambda tag: os.truncate(shard(tag, "model"), 0),
    "cut optimizer shard": lambda tag: os.truncate(shard(tag, "optim"), 8400),
    "cut model shard": lambda tag: os.truncate(shard(tag, "model"), 4300),
    "no torch file": lambda tag: shard(tag, "optim").write_bytes(b"x" * 9000),
    "shards of a larger job": _more_ranks,
    "latest points nowhere": lambda tag: (tag.parent / "latest").write_text("global_step30"),
    "the save is gone": shutil.rmtree,
}


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_folder_is_refused_and_nothing_is_left(fault: str, stage: int, tmp_path: Path) -> None:
    tag = write_save(tmp_path / "save", stage)
    FAULTS[fault](tag)
    for options in ([], ["--drop-optimizer-states"]):
        run = tmp_path / "run"
        told = call("checkpoint", "import", str(tmp_path / "save"), str(run), *options)
        assert isinstance(told.exception, UserError), told.exception
        assert {finding.gate for finding in told.exception.findings} <= {"CK101", "CK138"}
        assert not run.exists()


def test_two_saves_in_one_folder_are_refused(tmp_path: Path) -> None:
    tag = write_save(tmp_path / "save", 3)
    write_torch_file(tag / "zero_pp_rank_1_mp_rank_00_model_states.pt", model_state(10), 4000)
    told = call("checkpoint", "import", str(tmp_path / "save"), str(tmp_path / "run"))
    assert isinstance(told.exception, UserError)
    assert "two saves mixed" in str(told.exception)


@pytest.mark.parametrize("linked", ["checkpoint-20", "checkpoint-20/global_step20"])
def test_a_link_to_the_folder_is_followed_to_the_files_beside_the_save(
    linked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "checkpoint-20"
    write_save(folder, 2)
    (folder / "trainer_state.json").write_text('{"global_step": 20, "max_steps": 70}')
    [(folder / f"rng_state_{rank}.pth").write_bytes(b"1") for rank in (0, 1)]
    link = tmp_path / "links" / "newest"
    link.parent.mkdir()
    link.symlink_to(tmp_path / linked)
    asked: dict[str, Any] = {}
    monkeypatch.setattr(checkpoint_import, "_check_packages", lambda: None)
    monkeypatch.setattr(checkpoint_import, "_run_worker", lambda _, request: asked.update(request) or 0)
    spec = str(ROOT / "ds_configs" / "demo.yaml")
    done = checkpoint_import.import_checkpoint(link, tmp_path / "run", spec, lambda _: None)
    assert done.code == 0
    assert Path(asked["folder"]).resolve() == folder
    assert Path(asked["tag"]).resolve() == folder / "global_step20"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["checkpoint", "convert", "run", "out"], "needs `--to`"),
        (["checkpoint", "import", "save"], "takes 2 paths"),
        (["checkpoint", "ls", "run", "--partial"], "--partial"),
        (["checkpoint", "import", "save", "run", "--partial", "--spec", "run.yaml"], "`--spec` has no meaning"),
        (["checkpoint", "import", "save", "run", "--partial", "--drop-optimizer-states"], "has no meaning beside"),
        (["checkpoint", "import", "save", "run", "--to", "trainer"], "--to"),
    ],
)
def test_wrong_arguments_are_refused(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    told = call(*arguments)
    assert isinstance(told.exception, UserError | SystemExit)
    assert words in " ".join(f"{told.output} {told.exception}".split())
