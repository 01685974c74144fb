# SPDX-License-Identifier: Apache-2.0
"""`objective: classification` and `reward`: trained from checkpoints, against transformers' own losses, exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from harness.runtime.export import export_checkpoint
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.label_case import STEPS, held_out_records, label_spec, save_models
from tests.support.training.preference_runs import write
from tests.support.training.runtime_helpers import JOBS, metric_lines

RUNS: dict[str, tuple[str, str, int, int]] = {
    "bert-0": ("names", "bert", 0, 1),
    "bert-3": ("names", "bert", 3, 2),
    "llama-0": ("names", "model", 0, 1),
    "llama-2": ("names", "model", 2, 2),
    "llama-3": ("names", "model", 3, 1),
    "several": ("several", "bert", 1, 1),
    "numbers": ("numbers", "model", 1, 1),
    "lora": ("names", "model", 1, 1),
}
"""Name -> (labels, model, stage, ranks)."""
RANK = 4


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, forked: ForkedRanks) -> Path:
    folder = tmp_path_factory.mktemp("labels")
    save_models(folder)
    for ranks in (1, 2):
        jobs = []
        for name, (kind, model, stage, size) in RUNS.items():
            if size == ranks:
                spec = label_spec(folder, kind, model, stage=stage, ranks=ranks)
                if name == "lora":
                    spec["model"]["lora"] = {"target_modules": "all-linear", "r": RANK}
                write(folder / name, spec, ranks)
                jobs.append({"run": str(folder / name), "adapters": False, "gradients": False})
        file = folder / f"jobs-{ranks}.json"
        file.write_text(json.dumps(jobs))
        forked.run(JOBS / "preference_many.py", str(file), ranks=ranks, timeout=300)
    return folder


def _losses(run: Path) -> list[float]:
    return [line["loss"] for line in metric_lines(run, "step")]


@pytest.mark.parametrize("name", RUNS)
def test_a_model_is_trained_from_a_checkpoint_without_head(trained: Path, name: str) -> None:
    losses = _losses(trained / name)
    assert len(losses) == STEPS
    assert losses[-1] < losses[0]
    evaluation = metric_lines(trained / name, "eval")[-1]
    assert "perplexity" not in evaluation  # that of a loss of tokens alone
    held_out = evaluation["metrics"]
    measured = "absolute_error" if name == "numbers" else "accuracy"
    assert held_out[measured] is not None


def test_stages_and_ranks_draw_the_same_head(trained: Path) -> None:
    assert _losses(trained / "bert-3") == pytest.approx(_losses(trained / "bert-0"), rel=1e-5)
    for name in ("llama-2", "llama-3"):
        assert _losses(trained / name) == pytest.approx(_losses(trained / "llama-0"), rel=1e-5)


@pytest.mark.parametrize("name", ["bert-3", "llama-3", "several", "numbers", "lora"])
def test_an_export_is_loaded_whole_and_computes_the_loss_of_transformers(
    trained: Path, name: str, tmp_path: Path
) -> None:
    run, kind = trained / name, RUNS[name][0]
    out = export_checkpoint(run / "checkpoints" / f"step-{STEPS:08}", tmp_path / "out", verify=True)
    model, report = AutoModelForSequenceClassification.from_pretrained(out, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    names = {"names": ["cat", "dog"], "several": ["cat", "dog", "long"]}.get(kind, ["LABEL_0"])
    assert list(model.config.id2label.values()) == names
    tokenizer = AutoTokenizer.from_pretrained(out)
    losses = [_loss_of(model, tokenizer, record, names) for record in held_out_records(kind)]
    held_out = metric_lines(run, "eval")[-1]
    assert held_out["tokens"] == len(losses)
    assert held_out["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)


def test_lora_trains_the_head_itself(trained: Path, tmp_path: Path) -> None:
    """`all-linear` adapts the new head, too, and its own weight must not be frozen below the adapter."""
    saved = trained / "lora" / "checkpoints" / f"step-{STEPS:08}"
    out = export_checkpoint(saved, tmp_path / "out")
    model = AutoModelForSequenceClassification.from_pretrained(out)
    linear = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    adapters = sum(RANK * (module.in_features + module.out_features) for module in linear)
    trained_now = metric_lines(trained / "lora", "run")[0]["trainable_parameters"]
    assert trained_now == adapters + model.score.weight.numel()


def _loss_of(model: Any, tokenizer: Any, record: dict[str, Any], names: list[str]) -> float:
    label: Any = record["label"]
    if isinstance(label, str):
        labels = torch.tensor([names.index(label)])
    elif isinstance(label, list):
        labels = torch.tensor([[float(name in label) for name in names]])
    else:
        labels = torch.tensor([[label]])
    with torch.no_grad():
        return float(model.eval()(**tokenizer(record["text"], return_tensors="pt"), labels=labels).loss)
