# SPDX-License-Identifier: Apache-2.0
"""`harness tune` with real trials: three candidates, one of which cannot run. The launcher four times; a minute."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from harness.cli.app import build_app
from harness.run_records.run_record import read_run_record
from harness.tuning import candidate_search

SPEC = """\
# slow on purpose
model:
  config: {model_type: llama, vocab_size: 320, hidden_size: 64, intermediate_size: 128, num_hidden_layers: 2,
           num_attention_heads: 4, num_key_value_heads: 2, max_position_embeddings: 128}
  tokenizer: bytes
data: {train: "builtin:python-docs", max_length: 64, eval_fraction: 0.01}
train:
  max_steps: 400
  per_device_train_batch_size: 1
  gradient_accumulation_steps: 16
  gradient_checkpointing: true
optimizer: {type: adamw, learning_rate: 0.001}
scheduler: {warmup_steps: 100}
zero:
  stage: 3
  offload_optimizer: {device: cpu}
eval: {eval_steps: 2}
export: {at_end: true}
launch: {num_gpus: 2, env: {OMP_NUM_THREADS: "1"}}
"""


def _with_one_that_fails(*arguments: Any, **options: Any) -> candidate_search.TuneSearch:
    """What is looked up, with the last candidate made to train on data that is not there."""
    search = find_candidates(*arguments, **options)
    last = search.candidates[-1]
    broken = replace(last, title="broken", changes={**last.changes, ("data", "train"): "nowhere/*.jsonl"})
    return replace(search, candidates=(*search.candidates[:-1], broken))


find_candidates = candidate_search.find_candidates


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("tune")
    (folder / "spec.yaml").write_text(SPEC, encoding="utf-8")
    words = ["tune", "spec.yaml", "--trials", "3", "--steps", "6", "--out", "best.yaml", "--format", "json"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("DS_ACCELERATOR", "cpu")
        patch.setattr("harness.cli.tune.find_candidates", _with_one_that_fails)
        done = CliRunner().invoke(build_app(words), words)
    assert done.exit_code == 0, done.output
    return folder, json.loads(done.stdout)


def test_the_one_that_fails_has_its_cause_and_the_others_are_measured(tuned: tuple[Path, dict[str, Any]]) -> None:
    _, body = tuned
    states = {t["title"]: t["state"] for t in body["trials"]}
    assert states.pop("broken") == "failed"
    assert set(states.values()) == {"measured"}
    broken = next(t for t in body["trials"] if t["title"] == "broken")
    assert "nowhere" in broken["cause"]
    for trial in body["trials"]:
        if trial["state"] == "measured":
            assert len(trial["all_step_seconds"]) == 4
            assert trial["tokens_per_second"] > 0
            assert trial["rank_host_peak_bytes"] > 1 << 26


def test_the_fastest_is_written_validates_and_keeps_the_global_batch(tuned: tuple[Path, dict[str, Any]]) -> None:
    folder, body = tuned
    assert body["faster"], body
    best = body["trials"][body["best"]]
    text = (folder / "best.yaml").read_text(encoding="utf-8")
    assert "# slow on purpose" in text
    train = yaml.safe_load(text)["train"]
    assert train["max_steps"] == 400
    assert 2 * train["per_device_train_batch_size"] * train["gradient_accumulation_steps"] == 32
    assert train["per_device_train_batch_size"] == best["micro_batch"] > 1
    words = ["validate-config", str(folder / "best.yaml"), "--world-size", "2"]
    assert CliRunner().invoke(build_app(words), words).exit_code == 0


def test_trials_saw_the_same_rows_and_left_nothing_but_figures(tuned: tuple[Path, dict[str, Any]]) -> None:
    _, body = tuned
    records = [read_run_record(Path(t["run_dir"])) for t in body["trials"] if t["state"] == "measured"]
    tokens = {tuple(tokens for _, tokens in record.points("step", "tokens")) for record in records}
    assert len(tokens) == 1
    losses = [record.points("step", "loss")[0][1] for record in records]
    assert all([line["step"] for line in record.lines_of("eval")] == [6] for record in records), "at the end alone"
    assert max(losses) - min(losses) < 0.2
    for record in records:
        assert not list(record.folder.glob("checkpoints/step-*"))
        assert not (record.folder / "export").exists()
