# SPDX-License-Identifier: Apache-2.0
"""No program that a command starts imports a module of the current folder. A real launch in such a folder is in
`test_launch_to_end.py`. Needs the base dependencies; with torch it sees more. Seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.interpreter import python_command
from tests.support.foreign_folder import foreign, imported

GPT_NEO = {
    "model_type": "gpt_neo", "hidden_size": 32, "num_layers": 2, "num_heads": 2, "vocab_size": 64,
    "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 64,
}  # fmt: skip
LLAMA = "{config: {model_type: llama, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, vocab_size: 64}}"
SPEC = """\
name: tiny
model: MODEL
data: {train: "builtin:python-docs", max_length: 32}
train: {max_steps: 2, per_device_train_batch_size: 1}
launch: {num_gpus: 2}
"""
SSH = '#!/bin/sh\nfor word in "$@"; do last="$word"; done\nexec sh -c "$last"\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a model whose family only `transformers` can count, and an `ssh` that stays on this machine."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text(json.dumps(GPT_NEO))
    (tmp_path / "built.yaml").write_text(SPEC.replace("MODEL", "{name_or_path: ./m}"))
    (tmp_path / "tiny.yaml").write_text(SPEC.replace("MODEL", LLAMA))
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh").write_text(SSH)
    (tmp_path / "bin" / "ssh").chmod(0o755)
    return foreign(tmp_path)


def harness(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """As the console script: its own folder is on the path, the current one is not."""
    env = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    command = [sys.executable, "-P", "-m", "harness", *words]
    return subprocess.run(command, cwd=folder, env=env, text=True, capture_output=True, check=False, timeout=300)


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "built.yaml"),
        ("doctor",),
        ("rehearse", "tiny.yaml", "--dry-run"),
        ("tune", "tiny.yaml", "--dry-run"),
        ("launch", "tiny.yaml", "--dry-run"),
        ("preflight", "tiny.yaml", "--hostfile", "hosts"),
        ("export", ".", "out"),
    ],
    ids=lambda words: words[0],
)
def test_a_command_imports_nothing_of_the_current_folder(folder: Path, words: tuple[str, ...]) -> None:
    done = harness(folder, *words)
    assert imported(folder) == []
    assert done.returncode in (0, 1, 2, 4), done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_started_imports_nothing_of_the_current_folder_but_pythonpath_counts(folder: Path) -> None:
    """The interpreter itself, with a module that only PYTHONPATH has."""
    (folder / "lib").mkdir()
    (folder / "lib" / "only_there.py").write_text("import json; print(json.dumps('here'))\n")
    env = {**os.environ, "PYTHONPATH": str(folder / "lib")}
    for words in (("-m", "only_there"), ("-c", "import only_there")):
        done = subprocess.run(python_command(*words), cwd=folder, env=env, text=True, capture_output=True, check=False)
        assert done.stdout == '"here"\n', done.stderr
    assert imported(folder) == []
