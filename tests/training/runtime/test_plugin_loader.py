# SPDX-License-Identifier: Apache-2.0
"""The user's own code: what it can do, and that nothing but the one who starts the run can allow it."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from harness.errors import UserError
from harness.render import render_ds_config
from harness.run.resolved_run import resolve_run
from harness.runtime import plugin_loader
from harness.spec.run_spec import RunSpec
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.model_helpers import JOBS
from tests.support.training.runtime_helpers import metric_lines, write_run

CODE = '''
"""A model with a bias that the family has not, and the share of tokens that are guessed right."""

from dataclasses import dataclass

import torch
from transformers import LlamaForCausalLM


class Biased(LlamaForCausalLM):
    def __init__(self, config):
        super().__init__(config)
        self.own_bias = torch.nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, *arguments, labels=None, **named):
        out = super().forward(*arguments, **named)
        out.logits = out.logits + self.own_bias
        if labels is not None:
            out.loss = torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
        return out


def build_model(config, spec):
    assert spec.train.seed == 5
    return Biased(config)


def load_documents(spec):
    for number in range(400):
        yield {"text": f"the quick brown fox number {number} jumps over the lazy dog"}


def metrics(logits, labels):
    counted = labels != -100
    return {"accuracy": ((logits.argmax(-1) == labels) & counted).sum(), "seen": counted.sum()}
'''
TINY = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 320,
}


def _allow(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setenv(plugin_loader.ALLOWED_CODE_VARIABLE, hashlib.sha256(path.read_bytes()).hexdigest())


def _spec(path: Path) -> RunSpec:
    return RunSpec.model_validate({"plugins": {"file": str(path)}})


def test_code_runs_only_if_just_these_bytes_were_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, ran = tmp_path / "mine.py", tmp_path / "ran"
    path.write_text(f"open({str(ran)!r}, 'w')\ndef metrics(logits, labels): return {{}}\n")
    monkeypatch.delenv(plugin_loader.ALLOWED_CODE_VARIABLE, raising=False)
    for allowed in ("", "0" * 64):
        monkeypatch.setenv(plugin_loader.ALLOWED_CODE_VARIABLE, allowed)
        with pytest.raises(UserError) as refused:
            plugin_loader.load_plugin(_spec(path))
        assert refused.value.findings[0].gate == "MD157"
        assert not ran.exists()
    _allow(monkeypatch, path)
    plugin = plugin_loader.load_plugin(_spec(path))
    assert plugin is not None
    assert (plugin.build_model, plugin.load_documents) == (None, None)
    assert plugin.metrics is not None
    assert ran.exists()
    assert plugin_loader.load_plugin(RunSpec()) is None


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import nothing_of_that_name", "ModuleNotFoundError"),
        ("x = 1", "none of the functions"),
        (None, "cannot be read"),
    ],
)
def test_code_that_is_no_use_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str | None, words: str
) -> None:
    path = tmp_path / "mine.py"
    if code is not None:
        path.write_text(code)
        _allow(monkeypatch, path)
    with pytest.raises(UserError) as refused:
        plugin_loader.load_plugin(_spec(path))
    assert refused.value.findings[0].gate == "MD158"
    assert words in str(refused.value)


def test_annotations_of_a_plugin_are_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "annotated.py"
    path.write_text("def metrics(model: int, batch): ...\nassert metrics.__annotations__['model'] is int\n")
    _allow(monkeypatch, path)
    assert plugin_loader.load_plugin(_spec(path)) is not None


@pytest.fixture(scope="module")
def trained(forked: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "mine.py").write_text(CODE)
    jobs, runs = [], {}
    for stage in (2, 3):
        spec: dict[str, Any] = {
            "model": {"config": TINY, "tokenizer": "bytes"},
            "plugins": {"file": str(folder / "mine.py")},
            "data": {"max_length": 32, "eval_fraction": 0.1, "cache_dir": str(folder / "cache")},
            "train": {
                "max_steps": 3,
                "per_device_train_batch_size": 2,
                "gradient_accumulation_steps": 1,
                "seed": 5,
            },
            "optimizer": {"learning_rate": 1e-2},
            "zero": {"stage": stage},
        }
        config = dict(render_ds_config(resolve_run(RunSpec.model_validate_json(json.dumps(spec)), world_size=2)).config)
        runs[str(stage)] = write_run(folder / f"run-{stage}", spec, config)
        jobs.append({"run": str(runs[str(stage)]), "resume": None})
    (folder / "jobs.json").write_text(json.dumps(jobs))
    # The process that forks the ranks is older than this test: the ranks get the variable from the script's wrapper.
    allowed = hashlib.sha256(CODE.encode()).hexdigest()
    script = folder / "allowed.py"
    script.write_text(
        "import os, runpy, sys\n"
        f"os.environ[{plugin_loader.ALLOWED_CODE_VARIABLE!r}] = {allowed!r}\n"
        f"runpy.run_path({str(JOBS / 'train_many.py')!r}, run_name='__main__')\n"
    )
    forked.run(script, str(folder / "jobs.json"))
    return runs


def test_an_own_model_trains_at_stages_2_and_3_with_an_own_metric(trained: dict[str, Path]) -> None:
    losses = {stage: [line["loss"] for line in metric_lines(run, "step")] for stage, run in trained.items()}
    assert losses["2"] == pytest.approx(losses["3"], rel=1e-4)
    assert losses["2"][-1] < losses["2"][0]
    for run in trained.values():
        line = metric_lines(run, "eval")[-1]
        assert line["own"]["seen"] == 1.0  # each predicted token counted once, over both ranks
        assert 0 <= line["own"]["accuracy"] <= 1
        checkpoint = json.loads((run / "checkpoints" / "step-00000003" / "manifest.json").read_text())
        assert hashlib.sha256(CODE.encode()).hexdigest() in json.dumps(checkpoint)


def test_own_records_are_the_training_data(trained: dict[str, Path]) -> None:
    (file,) = (trained["2"].parent / "cache" / "own").glob("*.jsonl")
    lines = file.read_text().splitlines()
    assert len(lines) == 400
    assert json.loads(lines[7]) == {"text": "the quick brown fox number 7 jumps over the lazy dog"}
    meta = json.loads((trained["2"] / "data" / "meta.json").read_text())
    assert meta["train_documents"] + meta["eval_documents"] >= 400


def test_no_environment_of_ours_allows_code() -> None:
    assert plugin_loader.ALLOWED_CODE_VARIABLE not in os.environ
