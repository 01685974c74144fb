# SPDX-License-Identifier: Apache-2.0
"""`harness explain` from the command line. Needs nothing; a second."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.check.finding_index import list_rows
from harness.cli.app import build_app
from harness.views.gate_pages import render_table_markdown


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
    listed = run().stdout
    assert [line[:5] for line in listed.splitlines() if not line.startswith(" ")] == [row.id for row in list_rows()]
    pages = run("--all").stdout
    assert all(f"{row.id} ({row.name})" in pages for row in list_rows())
    assert run("--table").stdout == render_table_markdown()


@pytest.mark.parametrize("columns", ["30", "60", "200"])
def test_the_width_of_the_terminal_is_kept(columns):
    for line in run(COLUMNS=columns).stdout.splitlines():
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
    assert "`qqqqq` is no id of a finding" in result.stderr
    assert "`harness explain` lists them all" in result.stderr


def test_a_log_cannot_steer_the_terminal(tmp_path):
    log = tmp_path / "job.log"
    log.write_text("[rank0]: RuntimeError: CUDA out of \x9b2J\u202e\x1b]0;PWN\x07memory\n" * 3, encoding="utf-8")
    result = run("--log", str(log))
    assert all(line.replace("\t", "").isprintable() for line in result.stdout.split("\n")), result.stdout
    assert r"\x9b2J" in result.stdout
