# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/own-models.md against plain torch loops, their resumes, and plug-ins that are wrong."""

from __future__ import annotations

import hashlib
import io
import json
import os
import runpy
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.utils import set_seed
from safetensors.torch import load_file
from torch.utils.data import default_collate

from harness.render import render_ds_config
from harness.run.resolved_run import resolve_run
from harness.runtime.dataset.sampler import shuffle_rows
from harness.runtime.export import export_checkpoint
from harness.runtime.objectives.custom import Custom
from harness.runtime.plugin_loader import ALLOWED_CODE_VARIABLE, describe_misspelt, load_plugin
from harness.spec.run_spec import RunSpec
from harness.views.data import render_data
from harness.views.style import style_for
from tests.support.markdown_blocks import ROOT, read_blocks
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.model_helpers import JOBS
from tests.support.training.runtime_helpers import metric_lines, write_run

EXAMPLES = {b.file: b.text for b in read_blocks(ROOT / "docs" / "own-models.md") if b.file and b.file.endswith(".py")}
STEPS, MICRO, RATE = 6, 2, 1e-3
EPS = 1e-4
"""Adam would step a parameter without a gradient, such as a bias of keys, by its rounding errors."""
CPU = {"offload_optimizer": {"device": "cpu"}}
ENGINES: dict[str, dict[str, Any]] = {
    "0": {"stage": 0},
    "1": {"stage": 1},
    "2": {"stage": 2},
    "3": {"stage": 3},
    "2-cpu": {"stage": 2, **CPU},
    "3-cpu": {"stage": 3, **CPU},
}
EVERY = [(example, engine) for example in ("mlp.py", "vit.py", "tagger.py", "towers.py") for engine in ENGINES]
BY_DAY = [("mlp.py", "0"), ("mlp.py", "3-cpu"), ("vit.py", "2"), ("tagger.py", "1"), ("towers.py", "3")]
CASES = EVERY if os.environ.get("HARNESS_NIGHTLY") else BY_DAY
ACCUMULATION = {"mlp.py": 2, "vit.py": 1, "tagger.py": 1, "towers.py": 1}


def spec_of(file: Path, zero: dict[str, Any], accumulation: int, **train: Any) -> dict[str, Any]:
    batch = {"per_device_train_batch_size": MICRO, "gradient_accumulation_steps": accumulation}
    return {
        "objective": "custom",
        "plugins": {"file": str(file)},
        "train": {"max_steps": STEPS, "max_grad_norm": 0.0, **batch, **train},
        "optimizer": {"learning_rate": RATE, "eps": EPS},
        "scheduler": {"type": "constant"},
        "zero": zero,
        "checkpoint": {"save_steps": STEPS // 2},
        "logging": {"logging_steps": 1},
    }


def write(folder: Path, spec: dict[str, Any], **job: Any) -> dict[str, Any]:
    """A run directory, and its job."""
    config = dict(render_ds_config(resolve_run(RunSpec.model_validate_json(json.dumps(spec)), world_size=2)).config)
    code = Path(spec["plugins"]["file"]).read_bytes()
    run = write_run(folder, spec, config)
    return {"run": str(run), "resume": None, "allow": hashlib.sha256(code).hexdigest(), **job}


def load(code: str) -> Any:
    """The functions of a plug-in, by attribute."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(code)
        file.flush()
        return SimpleNamespace(**runpy.run_path(file.name))


def train_plainly(code: str, accumulation: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    """(loss of each step, weights): one process, whole micro-steps, no DeepSpeed."""
    module = load(code)
    collate = getattr(module, "collate", default_collate)
    spec: Any = RunSpec.model_validate({"objective": "custom"})
    set_seed(spec.train.seed)
    model = module.build_model(spec).train()
    dataset = module.build_dataset(spec, "train")
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, eps=EPS, weight_decay=0.0)
    order = shuffle_rows(len(dataset), spec.train.seed, 0)
    losses = []
    for rows in order[: STEPS * accumulation * MICRO * 2].reshape(STEPS, accumulation, MICRO * 2):
        optimizer.zero_grad()
        total = 0.0
        for part in rows:
            loss = module.compute_loss(model, collate([dataset[int(i)] for i in part])) / accumulation
            loss.backward()
            total += float(loss.detach())
        optimizer.step()
        losses.append(total)
    return losses, {name: p.detach() for name, p in model.named_parameters()}


@pytest.fixture(scope="module")
def runs(forked: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """The examples on the engines, each with a second run from the checkpoint in its middle."""
    folder = tmp_path_factory.mktemp("own")
    jobs, trained = [], {}
    for example, engine in CASES:
        file = folder / example
        file.write_text(EXAMPLES[example])
        spec = spec_of(file, ENGINES[engine], ACCUMULATION[example])
        run = trained[example, engine] = folder / f"{file.stem}-{engine}"
        jobs.append(write(run, spec))
        middle = run / "checkpoints" / f"step-{STEPS // 2:08}"
        jobs.append(write(folder / f"{run.name}-resumed", spec, resume=str(middle)))
    (folder / "jobs.json").write_text(json.dumps(jobs))
    forked.run(JOBS / "train_own.py", str(folder / "jobs.json"), timeout=600)
    return trained


@pytest.mark.parametrize(("example", "engine"), CASES)
def test_an_example_is_a_plain_loop_and_resumes_to_the_bit(
    runs: dict[tuple[str, str], Path], example: str, engine: str, tmp_path: Path
) -> None:
    run = runs[example, engine]
    losses, weights = train_plainly(EXAMPLES[example], ACCUMULATION[example])
    lines = metric_lines(run, "step")
    assert [line["loss"] for line in lines] == pytest.approx(losses, rel=1e-6)
    trained = load_file(run / "weights.safetensors")
    assert trained.keys() == weights.keys()
    for name, weight in weights.items():
        assert torch.allclose(trained[name], weight, atol=1e-6, rtol=0), (name, (trained[name] - weight).abs().max())
    resumed = run.with_name(f"{run.name}-resumed")
    assert [line["loss"] for line in metric_lines(resumed, "step")] == [line["loss"] for line in lines[STEPS // 2 :]]
    assert (resumed / "weights.safetensors").read_bytes() == (run / "weights.safetensors").read_bytes()
    assert metric_lines(run, "eval")[-1]["loss"] == metric_lines(resumed, "eval")[-1]["loss"]
    if example == "mlp.py":
        rows = load(EXAMPLES[example]).build_dataset(RunSpec.model_validate({"objective": "custom"}), "train")
        digest = hashlib.sha256(str(len(rows)).encode())  # as checkpoints of 0.2 have it, which resume
        for tensor in (batch[name] for batch in (default_collate([row]) for row in rows[:4]) for name in batch):
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode() + tensor.numpy().tobytes())
        assert (
            json.loads((run / "checkpoints" / f"step-{STEPS:08}" / "manifest.json").read_text())["sha256"]["data"]
            == digest.hexdigest()
        )
        lines_of_export: list[str] = []
        checkpoint = run / "checkpoints" / f"step-{STEPS:08}"
        out = export_checkpoint(checkpoint, tmp_path / "out", verify=True, log=lines_of_export.append)
        assert "no logits were compared" in lines_of_export[-1]
        exported = load_file(out / "model.safetensors")
        assert all(torch.equal(exported[name], trained[name]) for name in weights)


def test_an_evaluation_counts_every_row_once(runs: dict[tuple[str, str], Path]) -> None:
    """51 rows on two ranks in batches of 2: the last batches differ in size."""
    run = runs["mlp.py", "0"]
    module = load(EXAMPLES["mlp.py"])
    spec: Any = RunSpec.model_validate({"objective": "custom"})
    model = module.build_model(spec)
    model.load_state_dict(load_file(run / "weights.safetensors"))
    batch = default_collate(module.build_dataset(spec, "eval"))
    line = metric_lines(run, "eval")[-1]
    assert line["loss"] == pytest.approx(float(module.compute_loss(model, batch).detach()), rel=1e-5)
    assert line["own"]["absolute_error"] * 51 == pytest.approx(module.metrics(model, batch)["absolute_error"].item())


MLP = EXAMPLES["mlp.py"]
WEIGHED = MLP.replace(
    '    return nn.functional.mse_loss(model(batch["x"]), batch["y"])\n',
    "    counted = batch['y'].abs() > 0.5\n"
    "    error = (model(batch['x']) - batch['y']) ** 2\n"
    "    return (error * counted).sum() / max(1, counted.sum()), counted.sum()\n",
)
HOSTILE: dict[str, tuple[str, str]] = {
    "wrong-key": (MLP.replace('batch["y"]', 'batch["z"]'), "`compute_loss` of the plug-in fails in line 16: KeyError: 'z'"),
    "no-loss": (MLP.replace("    return nn.functional.mse", "    nn.functional.mse"), "returned `None` as the loss"),
    "no-graph": (MLP.replace('batch["y"])\n\n', 'batch["y"]).detach()\n\n'), "has no graph"),
    "vector": (MLP.replace('batch["y"])\n\n', 'batch["y"], reduction="none")\n\n'), "tensor of shape (2, 1)"),
    "complex": (MLP.replace('batch["y"])\n\n', 'batch["y"]).to(torch.complex64)\n\n'), "a torch.complex64 tensor of shape ()"),
    "short": (MLP.replace("256 if", "3 if"), "a step needs 4 rows, and the training data has 3 of them"),
    "ranks": (MLP.replace("Generator()", "Generator()", 1).replace("return [{", "import os\n    x = x + int(os.environ['RANK'])\n    return [{"), "rank 1 has other rows"),
    "later-ranks": (MLP.replace("return [{", "import os\n    x[100:] += int(os.environ['RANK'])\n    return [{"), "rank 1 has other rows"),
    "eval-ranks": (MLP.replace("    return [{", "    import os\n    if split == 'eval' and os.environ['RANK'] == '1':\n        return None\n    return [{"), "rank 1 has other rows"),
    "outputs": (MLP.replace('batch["y"])\n\n', 'batch["y"]), batch\n\n'), "the second value is the weight of the loss"),
    "unread": (MLP + "\n\ndef load_documents(spec):\n    return []\n", "does not call `load_documents`"),
    "random": (MLP.replace("    return [{", "    return Redrawn(x)\n    return [{") + "\n\nclass Redrawn(list):\n    def __getitem__(self, index):\n        return {'x': torch.randn(8), 'y': torch.zeros(1)}\n", "differ when they are read again"),
    "no-model": (MLP.replace("return nn.Sequential(", "return (", 1), "`build_model` returned a `tuple`"),
    "no-dataset": (MLP.replace("    return [{", "    return 7\n    return [{"), "returned a `int`"),
    "weight": (WEIGHED, "`compute_loss` returned the weight"),
    "always-nan": (MLP.replace('batch["y"])\n\n', 'batch["y"]) * float("nan")\n\n'), "step 6 has a NaN or an infinity in the loss of ranks 0, 1; of 6 steps each was skipped, so that no weight has changed"),
    "nan-for-long": (MLP.replace('batch["y"])\n\n', 'batch["y"]) * float("nan")\n\n'), "each of the last 8 steps was skipped"),
    "ragged": (MLP.replace("for row in x]", "for n, row in enumerate(x)]").replace('{"x": row,', '{"x": torch.zeros(1 + n),'), "write `collate(rows)`"),
    "smaller-batch": (MLP.replace("256 if", "3 if"), "a smaller `train.per_device_train_batch_size`"),
    "metrics": (MLP.replace(".abs().sum()", ".abs()"), "`absolute_error` of `metrics` is a torch.float32 tensor of shape (2, 1)"),
    "mask": (MLP + "\n\ndef weigh(batch):\n    return batch['y'] > 0\n", "what `weigh` returned is a torch.bool tensor of shape (2, 1)"),
    "missing": (MLP.replace("def compute_loss", "def compute_lose"), "needs `compute_loss` in the plug-in"),
}  # fmt: skip


@pytest.fixture(scope="module")
def hostile_runs(forked: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the runs of wrong plug-ins, after their end."""
    folder, jobs = tmp_path_factory.mktemp("hostile"), []
    for name, (code, _) in HOSTILE.items():
        (folder / f"{name}.py").write_text(code)
        jobs.append(
            write(
                folder / name,
                spec_of(folder / f"{name}.py", {"stage": 0}, 1, max_steps=25 if "long" in name else STEPS),
            )
        )
    (folder / "jobs.json").write_text(json.dumps(jobs))
    forked.run(JOBS / "train_own.py", str(folder / "jobs.json"))
    return folder


@pytest.fixture(scope="module")
def findings(hostile_runs: Path) -> dict[str, list[Any]]:
    """What ended the runs of wrong plug-ins, on rank 0."""
    return {name: json.loads((hostile_runs / name / "findings-0.json").read_text()) for name in HOSTILE}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_wrong_plugin_is_one_finding(findings: dict[str, list[Any]], name: str) -> None:
    ((gate, message, notes),) = findings[name]
    assert HOSTILE[name][1] in message or any(HOSTILE[name][1] in note for note in notes)
    assert gate in ("MD115", "MD119", "MD158", "OP112", "AT024")


def test_metrics_are_tried_before_the_first_step(hostile_runs: Path) -> None:
    assert not metric_lines(hostile_runs / "metrics", "step")


def test_a_misspelt_function_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        MLP
        + "\n\ndef weight(batch):\n    return 1\n\n\ndef collate_fn(rows):\n    return rows\n\n\ndef _weigh(batch):\n    return 1\n"
    )
    (tmp_path / "own.py").write_text(code)
    monkeypatch.setenv(ALLOWED_CODE_VARIABLE, hashlib.sha256(code.encode()).hexdigest())
    spec = RunSpec.model_validate({"objective": "custom", "plugins": {"file": str(tmp_path / "own.py")}})
    plugin = load_plugin(spec)
    assert plugin is not None
    found = describe_misspelt(plugin, "custom")
    assert [(f.severity, f.fix.title.partition(",")[0]) for f in found if f.fix] == [
        ("warning", "rename it to `weigh`"),
        ("warning", "rename it to `collate`"),
    ]
    assert not describe_misspelt(plugin, "causal_lm")  # which does not call them under their right names either


def test_a_preview_has_the_tensors_of_the_first_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.py").write_text(MLP)
    monkeypatch.setenv(ALLOWED_CODE_VARIABLE, hashlib.sha256(MLP.encode()).hexdigest())
    spec = RunSpec.model_validate({"objective": "custom", "plugins": {"file": str(tmp_path / "own.py")}})
    body = Custom(resolve_run(spec, world_size=2)).preview_rows(1)
    text = render_data("own", body, style_for(io.StringIO()))
    assert "training 256 rows, held out 51 rows" in text
    assert "x: torch.float32 (1, 8), first value " in text


def test_units_of_a_loss_are_weighed_over_ranks_and_accumulation(forked: ForkedRanks, tmp_path: Path) -> None:
    """A mean over some of the rows: the step is that of all of them in one batch; one over none of the rows
    of a micro-batch counts nothing; a NaN is skipped with its rank.
    """
    mean_of_nothing = WEIGHED.replace("(error * counted).sum() / max(1, counted.sum())", "error[counted].mean()")
    code = mean_of_nothing + "\n\ndef weigh(batch):\n    return (batch['y'].abs() > 0.5).sum()\n"
    nan = MLP.replace("(row[:3].sum() * row[3])", "(row[:3].sum() * row[3] / (row[0] < 1.5))")
    jobs = []
    for name, text in (("weighed", code), ("nan", nan)):
        (tmp_path / f"{name}.py").write_text(text)
        jobs.append(write(tmp_path / name, spec_of(tmp_path / f"{name}.py", {"stage": 2}, 2)))
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    forked.run(JOBS / "train_own.py", str(tmp_path / "jobs.json"))
    module = load(code)
    spec: Any = RunSpec.model_validate({"objective": "custom"})
    set_seed(spec.train.seed)
    model, rows = module.build_model(spec), module.build_dataset(spec, "train")
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, eps=EPS, weight_decay=0.0)
    order = shuffle_rows(len(rows), spec.train.seed, 0)
    for line, indices in zip(
        metric_lines(tmp_path / "weighed", "step"), np.split(order[: STEPS * 8], STEPS), strict=True
    ):
        optimizer.zero_grad()
        loss, _ = module.compute_loss(model, default_collate([rows[int(i)] for i in indices]))
        loss.backward()
        optimizer.step()
        assert line["loss"] == pytest.approx(float(loss.detach()), rel=1e-6)
    assert metric_lines(tmp_path / "nan", "skip")
