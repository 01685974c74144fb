# SPDX-License-Identifier: Apache-2.0
"""`harness tune` around its trials: what is tried, what is written, how it ends. Trials are made up here; real ones are
in `training/tuning/test_tune.py`. Needs the base dependencies alone; seconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.tuning.candidates import Candidate
from harness.tuning.trials import Trial
from tests.cli.test_validate_config import run

SPEC = """\
# mine
model:
  config: {model_type: llama, vocab_size: 320, hidden_size: 64, intermediate_size: 128, num_hidden_layers: 2,
           num_attention_heads: 4, num_key_value_heads: 2, max_position_embeddings: 128}
  tokenizer: bytes
data: {train: "builtin:python-docs", max_length: 64}
train:
  max_steps: 400
  per_device_train_batch_size: 1  # small
  gradient_accumulation_steps: 8
zero: {stage: 3}
launch: {num_gpus: 2}
"""
Answer = Callable[[int, Candidate], Trial]


@pytest.fixture
def tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`tuned(answer, *options)` in a folder with `spec.yaml`; `answer` makes each trial of its number and candidate."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setattr("harness.cli.tune.missing_packages_finding", lambda: None)
    (tmp_path / "spec.yaml").write_text(SPEC, encoding="utf-8")

    def call(answer: Answer, *options: str) -> Any:
        def made_up(_plan: Any, _run: Any, candidate: Candidate, number: int, _best: Any) -> Trial:
            return replace(answer(number, candidate), candidate=candidate)

        monkeypatch.setattr("harness.launching.programs.trial_series.run_trial", made_up)
        return run("tune", "spec.yaml", *options)

    return call


@pytest.mark.parametrize(("path", "options", "is_refused"), [
    ("texts.jsonl", (), True),
    ("texts.jsonl", ("--dry-run",), False),
    ("trian.jsonl", ("--dry-run",), True),
])  # fmt: skip
def test_trials_need_the_paths_of_the_spec(
    tuned: Callable[..., Any], tmp_path: Path, path: str, options: tuple[str, ...], is_refused: bool
) -> None:
    (tmp_path / "train.jsonl").write_text('{"text": "a"}\n')
    result = tuned(took(1.0), "--set", f"data.train={path}", *options)
    assert (result.exit_code == 1) == is_refused, result.stderr
    assert (f"SP050]: `{path}` does not exist" in result.stderr) == is_refused


def took(*seconds: float) -> Answer:
    """One step time for each trial in turn, and the first's again at the end."""

    def answer(number: int, candidate: Candidate) -> Trial:
        step = seconds[number] if number < len(seconds) else seconds[0]
        return Trial(candidate, "measured", (step,) * 5, 1024 / step)

    return answer


def test_the_fastest_is_written_with_its_evidence_and_keeps_the_global_batch(tuned: Any, tmp_path: Path) -> None:
    done = tuned(took(1.0, 0.9, 0.5, 0.8), "--trials", "4", "--out", "best.yaml", "--format", "json")
    assert done.exit_code == 0, done.output
    body = json.loads(done.stdout)
    assert body["written"] == str(tmp_path / "best.yaml")
    assert [t["title"] for t in body["trials"]][-1] == "the unchanged spec, again"
    assert body["gain"] == pytest.approx(0.5)
    text = (tmp_path / "best.yaml").read_text(encoding="utf-8")
    assert text.startswith("# Found by `harness tune`")
    assert "# mine" in text
    best = body["trials"][body["best"]]
    train = yaml.safe_load(text)["train"]
    assert train["per_device_train_batch_size"] * train["gradient_accumulation_steps"] == 8
    assert train["per_device_train_batch_size"] == best["micro_batch"]
    assert json.loads((tmp_path / "best.yaml.evidence.json").read_text())["gain"] == body["gain"]
    assert run("validate-config", "best.yaml", "--world-size", "2").exit_code == 0
    assert len({json.dumps(t["sets"]) for t in body["trials"][:-1]}) == 4


def test_a_spec_that_is_the_fastest_is_kept_and_nothing_is_written(tuned: Any, tmp_path: Path) -> None:
    done = tuned(took(0.5, 0.9, 0.499), "--trials", "3", "--out", "best.yaml")
    assert done.exit_code == 0, done.output
    assert "it is kept" in done.stdout
    assert not (tmp_path / "best.yaml").exists()
    assert list(tmp_path.glob("tuning/spec-*/evidence.json"))


def test_ctrl_c_ends_with_what_is_known(tuned: Any, tmp_path: Path) -> None:
    def answer(number: int, candidate: Candidate) -> Trial:
        if number == 2:
            raise KeyboardInterrupt
        return took(1.0, 0.5)(number, candidate)

    done = tuned(answer, "--out", "best.yaml")
    assert done.exit_code == 130
    assert "Interrupted" in done.stdout
    assert "not tried" in done.stdout
    assert (tmp_path / "best.yaml").exists()


def test_without_a_measurement_it_says_so(tuned: Any) -> None:
    done = tuned(lambda _, candidate: Trial(candidate, "failed", cause="LG001: the GPU ran out of memory"))
    assert done.exit_code == 1
    assert "MM014" in done.stderr
    assert "LG001: the GPU ran out of memory" in done.stdout


def test_a_file_that_is_there_is_replaced_only_when_that_is_asked_for(tuned: Any, tmp_path: Path) -> None:
    refused = tuned(took(1.0, 0.5), "--out", "spec.yaml")
    assert refused.exit_code == 2
    assert (tmp_path / "spec.yaml").read_text(encoding="utf-8") == SPEC
    done = tuned(took(1.0, 0.5, 0.8), "--trials", "3", "--out", "spec.yaml", "--overwrite")
    assert done.exit_code == 0, done.output
    assert "# mine" in (tmp_path / "spec.yaml").read_text(encoding="utf-8")


def test_options_are_in_the_spec_that_is_written(tuned: Any, tmp_path: Path) -> None:
    options = ("--set", "train.seed=7", "--set", "train.gradient_accumulation_steps=4")
    done = tuned(took(1.0, 0.5), "--trials", "2", "--out", "best.yaml", *options)
    assert done.exit_code == 0, done.output
    train = yaml.safe_load((tmp_path / "best.yaml").read_text())["train"]
    assert train["seed"] == 7
    assert train["per_device_train_batch_size"] * train["gradient_accumulation_steps"] == 4


def test_a_dry_run_starts_nothing(tuned: Any, tmp_path: Path) -> None:
    done = tuned(took(), "--dry-run", "--trials", "3")
    assert done.exit_code == 0, done.output
    assert done.stdout.count("not tried") == 3
    assert re.search(r"^  candidate +state$", done.stdout, re.MULTILINE), "no columns of dashes"
    assert "the same global batch of 16" in done.stdout
    assert "Nothing was written or started" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["spec.yaml"]


def test_on_gpus_that_the_plan_knows_candidates_are_in_order_of_planned_time(
    tuned: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.tuning.candidate_search._local_device", _eight_h100)
    text = SPEC.replace("num_gpus: 2", "num_gpus: 8").replace("zero:", "cluster: {gpu: H100-80GB}\nzero:")
    (tmp_path / "spec.yaml").write_text(text, encoding="utf-8")
    done = tuned(took(), "--dry-run", "--format", "json")
    assert done.exit_code == 0, done.output
    body = json.loads(done.stdout)
    planned = [t["planned_step_seconds"] for t in body["trials"]]
    assert all(planned)
    assert planned[1:] == sorted(planned[1:])
    assert body["ordered_as_on"] is None


def _eight_h100(*_: Any) -> Any:
    from harness.facts.devices import find_device

    return find_device("H100-80GB"), "8 x NVIDIA H100"


def test_a_model_that_cannot_be_planned_is_refused(tuned: Any, tmp_path: Path) -> None:
    text = "model: {name_or_path: nobody/nothing}\ndata: {train: x}\n" + SPEC[SPEC.index("train:\n") :]
    (tmp_path / "spec.yaml").write_text(text, encoding="utf-8")
    done = tuned(took())
    assert done.exit_code == 1
    assert "MM013" in done.stderr
    assert "Nothing was written or started" in done.stderr
