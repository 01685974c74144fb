# SPDX-License-Identifier: Apache-2.0
"""`harness explain` from the command line. Needs nothing; a second."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.check.finding_index import list_rows
from harness.cli.app import build_app
from harness.spec.json_schema import run_spec_schema
from harness.spec.section_fields import list_spec_keys, section_fields
from harness.views.gate_pages import render_table_markdown
from harness.views.key_pages import DOCS, render_key

ROOT = Path(__file__).parents[2]


def run(*arguments, **env):
    return CliRunner().invoke(build_app(["explain"]), ["explain", *arguments], env=env)


@pytest.mark.parametrize("word", ["OF001", "of001", "parameter-offload-below-stage-3"])
def test_one_page_by_id_or_name(word):
    result = run(word)
    assert result.exit_code == 0
    assert result.stdout.startswith("OF001 (parameter-offload-below-stage-3)\n\nParameter offload")
    assert "Seen in: deepspeed/runtime/engine.py" in result.stdout


def test_a_family_and_several_words_at_once():
    result = run("OF", "SP001")
    assert result.exit_code == 0
    assert result.stdout.startswith("OF: offload\n\nOF001 ")
    assert "SP001 (unreadable-file)" in result.stdout


def test_the_list_the_pages_and_the_table():
    listed = run("--list").stdout
    assert [line[:5] for line in listed.splitlines() if not line.startswith(" ")] == [row.id for row in list_rows()]
    pages = run("--all").stdout
    assert all(f"{row.id} ({row.name})" in pages for row in list_rows())
    assert run("--table").stdout == render_table_markdown()


def test_no_word_lists_the_families():
    shown = run().stdout
    assert re.search(r"^Gates\n\n  BT +\d+  the batch$", shown, re.MULTILINE)
    counts = {family: int(count) for family, count in re.findall(r"^  ([A-Z]{2}) +(\d+)  ", shown, re.MULTILINE)}
    assert counts == Counter(row.id[:2] for row in list_rows())
    assert len(shown.splitlines()) < 40


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (
            "data.packing",
            ["Put several records into one sequence", "Type: true or false", "Default: false", "docs/data.md", "MD020"],
        ),
        ("zero.stage", ["Required.", "integer, at least 0, at most 3", "zero_optimization.stage", "OF004"]),
        ("zero_optimization.overlap_comm", ["zero.overlap_comm\n"]),
        ("gradient_clipping", ["train.max_grad_norm\n", "In DeepSpeed's JSON: gradient_clipping"]),
        ("save_total_limit", ["checkpoint.save_total_limit\n", "--set checkpoint.save_total_limit=VALUE"]),
        ("type", ["optimizer.type\n", "scheduler.type\n"]),
        ("checkpoint", ["  save_steps ", "docs/checkpointing.md"]),
        ("model.lora", ["  lora_alpha "]),
        ("zero.offload_optimizer.device", ["Required.", "`none`, `cpu`, `nvme`"]),
        ("name", ["Names the run directory", "Default: none"]),
        ("stage3_prefetch_bucket_size", ["In DeepSpeed's JSON: ", ", by default 50000000"]),
    ],
)
def test_a_key_of_the_run_spec_is_explained(word, expected):
    result = run(word)
    assert result.exit_code == 0, result.output
    assert all(text in result.stdout for text in expected), result.stdout


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("lr", "`lr` is another program's name for `optimizer.learning_rate`.\n\noptimizer.learning_rate\n\nPeak"),
        ("per-gpu-train-batch-size", "name for `train.per_device_train_batch_size`"),
        ("torch_dtype", "no key of a run spec: write `precision.bf16: true` or"),
        ("fsdp", "no key of a run spec: use `zero.stage: 3`"),
        *((word, "zero.stage\n\n") for word in ("zero3", "ZeRO-2", "stage3", "zero_1", "zero_stage_3")),
    ],
)
def test_a_name_of_another_program_has_an_answer(word, expected):
    result = run(word, COLUMNS="120")
    assert result.exit_code == 0, result.output
    assert expected in result.stdout


def test_every_key_has_a_page_and_every_page_of_the_documentation_exists():
    schema = run_spec_schema()
    assert len(list(list_spec_keys())) > 200
    for key in list_spec_keys():
        assert render_key(key, schema=schema), key
    assert set(section_fields(())) - set(DOCS) == {"name", "allow_undocumented"}
    for key, page in DOCS.items():
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        fields = section_fields((key,)) or (key,)
        assert any(field in text for field in fields), (key, page)
        assert key in section_fields(()), key


@pytest.mark.parametrize(
    ("word", "help_text"),
    [
        ("data.pack", "did you mean `data.packing`?"),
        ("save_step", "did you mean `checkpoint.save_steps`?"),
        ("optimzer", "did you mean `optimizer`?"),
        ("data.quark.x", "`harness explain` lists the families"),
        ("a..b", "`harness explain` lists the families"),
    ],
)
def test_a_word_that_is_no_key_gets_the_one_that_is_meant(word, help_text):
    result = run(word)
    assert result.exit_code == 2
    assert f"help: {help_text}" in result.stderr


@pytest.mark.parametrize("columns", ["30", "60", "200"])
def test_the_width_of_the_terminal_is_kept(columns):
    for line in run("--list", COLUMNS=columns).stdout.splitlines():
        assert len(line) <= min(int(columns), 120) or re.fullmatch(r"[A-Z]{2}\d{3}  \S+", line), line


@pytest.mark.parametrize(("word", "better"), [("OFF001", "OF001"), ("paramter-offload-below-stage-3", "OF001")])
def test_a_wrong_id_gets_the_nearest(word, better):
    result = run("OF001", word)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert f"did you mean `{better}`?" in result.stderr


def test_a_wrong_id_is_wrong_usage_for_the_whole_program():
    command = [sys.executable, "-m", "harness", "explain", "qqqqq"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert result.returncode == 2
    assert "`qqqqq` is not an id of a finding" in result.stderr
    assert "`harness explain` lists the families" in result.stderr


def test_a_log_cannot_steer_the_terminal(tmp_path):
    log = tmp_path / "job.log"
    log.write_text("[rank0]: RuntimeError: CUDA out of \x9b2J\u202e\x1b]0;PWN\x07memory\n" * 3, encoding="utf-8")
    result = run("--log", str(log))
    assert all(line.replace("\t", "").isprintable() for line in result.stdout.split("\n")), result.stdout
    assert r"\x9b2J" in result.stdout
