# SPDX-License-Identifier: Apache-2.0
"""`harness data`: the view alone needs the base dependencies; the command itself needs the training extra, seconds each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from harness.views import data as view
from harness.views.style import Style

pytestmark = pytest.mark.training

BODY: dict[str, Any] = {
    "cache": "/cache/abc",
    "from_cache": False,
    "seconds": 1.5,
    "max_length": 64,
    "packing": True,
    "train": [
        {"source": "a.jsonl", "rows": 4, "documents": 9, "tokens": 200, "weight": 0.25},
        {"source": "b.jsonl", "rows": 4, "documents": 9, "tokens": 300, "weight": 0.75},
    ],
    "eval": [],
    "tokens": {"train": 500, "eval": 0, "trained_on": 125},
    "documents": {"train": 18, "eval": 0},
    "sequences": {"train": 8, "an_epoch": 8},
    "steps_an_epoch": 4,
    "sequences_a_step": 2,
    "filled": 0.976,
    "skipped": {"bad-json": 2},
    "skipped_list": "/cache/abc/skipped.jsonl",
    "examples_skipped": [{"source": "a.jsonl", "line": 7, "kind": "bad-json", "why": "is not JSON"}],
    "truncated": 3,
    "lengths": [0, 0, 0, 6, 12],
    "unigram_entropy": None,
    "examples": [{"sequence": 5, "tokens": 6, "trained_on": 3, "parts": [["q\n", False], ["a\x1b[31m", True]]}],
}


def test_the_text_has_the_numbers_and_marks_what_is_not_trained_on() -> None:
    text = view.render_data("run", BODY, Style())
    for part in (
        "18 records, 500 tokens",
        "125 of these tokens, 25.0%: the loss counts no others",
        "8, packed 64 tokens",
        "97.6%",
        "b.jsonl: 9 records, 300 tokens, weight 0.75",
        "3 cut off at 64 tokens",
        "2 left out: bad-json",
        "a.jsonl, line 7: is not JSON",
        "5 to 8",
        "4 steps of 2 sequences",
        "3 of 6 tokens are predicted",
        "| [[q",
        "\\x1b[31m",
        "prepared in 1.5 s",
    ):
        assert part in text, part
    assert "\x1b" not in text, "data must not steer the terminal"
    assert "\x1b[34m[[q" in view.render_data("run", BODY, Style(colour=True))
    assert json.loads(view.data_as_json(BODY))["tokens"]["trained_on"] == 125


def harness(*arguments: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harness", "data", *arguments],
        text=True,
        capture_output=True,
        check=False,
        timeout=300,
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1", **variables},
    )


def spec(folder: Path, train: str) -> str:
    file = folder / "run.yaml"
    file.write_text(
        "model:\n  tokenizer: bytes\n  config: {model_type: llama, vocab_size: 320, hidden_size: 32,\n"
        "    intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 4}\n"
        f"data:\n  train: {train}\n  max_length: 64\n  packing: true\n  eval_fraction: 0.0\n"
    )
    return str(file)


@pytest.mark.skipif(find_spec("torch") is None or find_spec("datasets") is None, reason="needs the training extra")
def test_it_shows_what_a_run_would_see_and_leaves_it_in_the_cache(tmp_path: Path) -> None:
    records = [{"prompt": f"{i}+1=", "completion": str(i + 1), "system": "S"} for i in range(30)]
    data = tmp_path / "x.jsonl"
    data.write_text("".join(json.dumps(r) + "\n" for r in records) + "{oops\n")
    file = spec(tmp_path, str(data))
    done = harness(file, folder=tmp_path)
    assert done.returncode == 1
    assert f"error[MD120]: `{data}`, line 31: is not JSON" in done.stderr
    assert "run.yaml:6:10" in done.stderr
    assert "Traceback" not in done.stderr
    done = harness(file, "--format", "json", "--examples", "1", "--set", "data.on_bad_record=skip", folder=tmp_path)
    body = json.loads(done.stdout)
    assert (body["documents"]["train"], body["skipped"], body["from_cache"]) == (30, {"bad-json": 1}, False)
    assert body["examples"][0]["parts"][0][1] is False
    assert body["unused_columns"] == {"system": 30}
    assert "warning[MD130]: column `system` is not used" in done.stderr
    assert "run.yaml:6:10" in done.stderr
    done = harness(file, "--set", "data.on_bad_record=skip", folder=tmp_path)
    assert done.returncode == 0
    assert "30 records" in done.stdout
    assert f"found in {tmp_path}/cache/harness/data/" in done.stdout


def test_what_is_wrong_with_the_spec_is_told_before_anything_is_read(tmp_path: Path) -> None:
    done = harness(spec(tmp_path, "[{path: a.jsonl, weigth: 2}]"), folder=tmp_path)
    assert done.returncode == 1
    assert "did you mean `data.train.0.weight`?" in done.stderr
    assert "Nothing was read" in done.stderr


def test_a_deepspeed_json_has_no_data_and_adopt_makes_a_spec_of_it(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text('{"train_batch_size": 8, "zero_optimization": {"stage": 2}}', encoding="utf-8")
    done = harness(str(file), folder=tmp_path)
    assert done.returncode == 1
    assert "error[SP020]" in done.stderr
    assert f"`harness adopt {file} -o spec.yaml`" in done.stderr
    assert "model.tokenizer" not in done.stderr


def test_paths_that_are_missing_are_found_before_torch_starts(tmp_path: Path) -> None:
    """All of them, with the name that was probably meant, and nothing about the Hub."""
    (tmp_path / "chats.jsonl").write_text("{}", encoding="utf-8")
    done = harness(spec(tmp_path, "[chat.jsonl, data/more.jsonl]"), folder=tmp_path, HF_ENDPOINT="http://127.0.0.1:9")
    assert done.returncode == 1
    assert done.stderr.count("error[SP050]") == 2
    assert "did you mean `chats.jsonl`?" in done.stderr
    assert "Hub" not in done.stderr
    assert "Nothing was read" in done.stderr


@pytest.mark.skipif(find_spec("torch") is None or find_spec("datasets") is None, reason="needs the training extra")
def test_a_hub_that_does_not_answer_is_told_once_and_not_waited_for(tmp_path: Path) -> None:
    variables = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "", "HTTPS_PROXY": "", "HTTP_PROXY": ""}
    variables |= {name.lower(): "" for name in ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")} | {"ALL_PROXY": ""}
    done = harness(spec(tmp_path, "no-such/data"), folder=tmp_path, **variables)
    assert done.returncode == 1
    assert "the Hub cannot be reached; of no-such/data only what is cached is used" in done.stderr
    assert "Retrying" not in done.stderr
    assert "error[MD1" in done.stderr
