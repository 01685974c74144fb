# SPDX-License-Identifier: Apache-2.0
"""The programs of docs/engine-checks.md and the lines of the README run as they stand there, on two ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.markdown_blocks import ROOT, Block, read_blocks
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.runtime_helpers import JOBS

PAGE = ROOT / "docs" / "engine-checks.md"
OF_OTHER_PROGRAMS = {"train_trl.py", "harness_plugin.py", "train_factory.py", "swift_plugin.py"}
"""`benchmarks/watch_programs.py` runs these, inside installations of TRL, axolotl, LLaMA-Factory and ms-swift."""
FILES = [block.file for block in read_blocks(PAGE) if block.language == "python" and block.file]
PROGRAMS = [file for file in FILES if file not in OF_OTHER_PROGRAMS]
README_SETUP = """
import deepspeed, harness, torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 64}
model = LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, **sizes))
data = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 64, (64, 16))]
"""
README_LOOP = """
for _ in range(8):
    engine.backward(engine(**{k: v[None] for k, v in data[0].items()}).loss)
    engine.step()
engine.destroy()
"""
README_TRAINER = """
model = LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, **sizes))
steps = {"max_steps": 3, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
numbers = {"learning_rate": 1e-3, "weight_decay": 0.01, "report_to": [], "save_strategy": "no"}
args = TrainingArguments(output_dir="out", deepspeed="ds_config.json", **steps, **numbers)
"""


def write_programs(folder: Path) -> None:
    for block in read_blocks(PAGE):
        if block.file:
            (folder / block.file).write_text(block.text)
    lines = readme_block().text.splitlines()
    trainer = next(number for number, line in enumerate(lines) if line.startswith("trainer ="))
    parts = [README_SETUP, *lines[:trainer], README_LOOP, README_TRAINER, *lines[trainer:], "trainer.train()"]
    (folder / "readme.py").write_text("\n".join(parts))


def readme_block() -> Block:
    return next(block for block in read_blocks(ROOT / "README.md") if block.language == "python")


def test_the_call_is_on_the_first_screen_of_the_readme() -> None:
    head = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:12]
    assert any("harness.watch(engine)" in line for line in head)
    assert 2 <= len(readme_block().text.splitlines()) <= 4


def test_the_page_has_a_program_for_each_way() -> None:
    assert PROGRAMS == ["train.py", "train_accelerate.py", "train_trainer.py"]
    assert set(FILES) == {*PROGRAMS, *OF_OTHER_PROGRAMS}
    program = next(block.text for block in read_blocks(PAGE) if block.file == "train.py")
    assert len(program.splitlines()) <= 30


@pytest.mark.parametrize("program", [*PROGRAMS, "readme.py"])
def test_a_program_trains_and_says_one_line(program: str, forked: ForkedRanks, tmp_path: Path) -> None:
    write_programs(tmp_path)
    answer = forked.run(JOBS / "run_in_folder.py", str(tmp_path), program)
    said = [line for output in answer["output"] for line in output.splitlines() if line.startswith("harness.watch")]
    folders = {"train_trainer.py": ["out"], "readme.py": [".", "out"]}.get(program, ["."])
    assert len(said) == len(folders)
    assert all("checks hold" in line for line in said)
    for folder in folders:
        file = json.loads((tmp_path / folder / "engine_checks.json").read_text())
        assert file["steps"] >= 3
        assert file["gradient_witness"]["steps"] == [1, 2, 3]
        assert {claim["state"] for claim in file["claims"]} == {"holds", "skipped"}
