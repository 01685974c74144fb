# SPDX-License-Identifier: Apache-2.0
"""Blocks of the documentation that train, run as they stand there, one after the other: a user's first hour.

Needs the `train` extra, a launch of half a minute. What comes out generates in plain `transformers`. HARNESS_NIGHTLY=1 runs
the other recipes too, of which the fine-tuning starts from the pre-training's export, and the blocks that take longer.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import IS_NIGHT
from tests.support.markdown_blocks import ROOT, Block, blocks_marked, command_lines, write_files

pytestmark = pytest.mark.training

BLOCKS = blocks_marked("run training")
EVERY_COMMAND = [line.partition(" #")[0].strip() for block in BLOCKS for line in command_lines(block)]
BY_DAY = ("pretrain-tiny",)
COMMANDS = EVERY_COMMAND if IS_NIGHT else [line for line in EVERY_COMMAND if Path(line.split()[2]).stem in BY_DAY]
LAUNCHED = [re.split(r"[/.]", line)[1] for line in COMMANDS if line.startswith("harness launch")]
NIGHTLY = blocks_marked("nightly")
PROGRAMS = Path(sys.executable).parent
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}",
    "PYTHONPATH": str(ROOT),
    "HF_HUB_OFFLINE": "1",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a user would stand: the recipes are there, and nothing else."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "ds_configs").symlink_to(ROOT / "ds_configs")
    return folder


@pytest.fixture(scope="module")
def ran(folder: Path) -> dict[str, subprocess.CompletedProcess[str]]:
    """Every command, in order."""
    return {
        command: subprocess.run(
            command.split(), cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=600, check=False
        )
        for command in COMMANDS
    }


def test_the_documentation_has_a_recipe_for_each_way() -> None:
    assert [re.split(r"[/.]", line)[1] for line in EVERY_COMMAND if line.startswith("harness launch")] == [
        "pretrain-tiny",
        "sft-chat",
        "lora-chat",
        "autotp-tiny",
        "pipeline-tiny",
        "nvme-offload-tiny",
    ]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_ends_well(command: str, ran: dict[str, subprocess.CompletedProcess[str]]) -> None:
    done = ran[command]
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.parametrize("recipe", LAUNCHED)
def test_the_held_out_loss_falls(recipe: str, folder: Path, ran: dict[str, object]) -> None:
    """Between the evaluation before the first step and the last one, on the same sequences."""
    run = _run_of(folder, recipe)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found = {line["step"]: line["loss"] for line in lines if line["type"] == "eval"}
    assert found[max(found)] < found[0] - 0.05


@pytest.mark.parametrize("recipe", LAUNCHED)
def test_the_export_generates_in_plain_transformers(recipe: str, folder: Path, ran: dict[str, object]) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    export = _run_of(folder, recipe) / "export"
    tokenizer, model = AutoTokenizer.from_pretrained(export), AutoModelForCausalLM.from_pretrained(export)
    given = tokenizer("The Python ", return_tensors="pt", return_token_type_ids=False)
    out = model.generate(**given, max_new_tokens=8, do_sample=False, pad_token_id=tokenizer.pad_token_id)
    assert out.shape[1] > given["input_ids"].shape[1]


@pytest.mark.nightly
def test_nothing_is_left_on_the_disk_of_the_offload(ran: dict[str, object]) -> None:
    spec = (ROOT / "ds_configs" / "nvme-offload-tiny.yaml").read_text(encoding="utf-8")
    path = Path(re.findall(r"nvme_path: (\S+)", spec)[0])
    assert not [p for p in path.rglob("*") if p.is_file()] if path.exists() else True


def _run_of(folder: Path, recipe: str) -> Path:
    return max((folder / "runs").rglob(f"{recipe}-2*"), key=lambda p: p.name)


@pytest.mark.nightly
@pytest.mark.parametrize("block", NIGHTLY, ids=str)
def test_a_long_block_ends_well(block: Block, tmp_path: Path) -> None:
    write_files(block.page, tmp_path)
    script = "set -e\n" + "\n".join(command_lines(block))
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
