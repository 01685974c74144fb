# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that other programs write, imported on other ranks and trained on: cells of {program, release, stage, offload, format,
LoRA, ranks}. No tests; `benchmarks/import_cells.py` runs all of them.

A writer trains 13 steps and saves after the third. The import goes on from there with the spec that `adopt` wrote, and its ten steps are
compared with the writer's own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from harness.checkpoints.foreign.adopted_spec import adopt_checkpoint, read_writer_facts
from harness.facts.deepspeed_version import parse_target
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.runtime_helpers import metric_lines

JOBS = Path(__file__).parents[2] / "training" / "jobs"
SAVED, STEPS, LENGTH, BATCH = 3, 13, 32, 8
BOUND = {False: 1e-6, True: 2e-3}
"""Of a loss, relative: in fp32 of rounding alone, in bf16 that of the parity cases."""
LORA = {"r": 4, "lora_alpha": 16, "target_modules": ["q_proj", "down_proj"]}


@dataclass(frozen=True)
class Cell:
    """`ranks` of the writer and of the run that goes on; `own`: the program makes the optimizer, not the JSON; `sums`:
    gradients of bf16 weights are summed in fp32, with DeepSpeed's wrapper for bf16; `onto_cpu`: the run that goes on
    offloads its optimizer."""

    program: str
    stage: int
    bf16: bool = False
    ranks: tuple[int, int] = (2, 1)
    offload: bool = False
    lora: bool = False
    own: bool = False
    sums: bool = False
    release: str = ""
    target: int = 2
    optimizer: str = "AdamW"
    onto_cpu: bool = False
    dropout: float = 0.0

    @property
    def name(self) -> str:
        marks = [self.program, f"z{self.stage}", "bf16" if self.bf16 else "fp32"]
        marks += [mark for mark in ("offload", "lora", "own", "sums") if getattr(self, mark)]
        marks += [self.optimizer.lower()] * (self.optimizer != "AdamW") + ["dropout"] * bool(self.dropout)
        marks += [
            f"{self.ranks[0]}-to-{self.ranks[1]}",
            f"to-z{self.target}" + "-offload" * self.onto_cpu,
            *([self.release] if self.release else []),
        ]
        return "-".join(marks)

    @property
    def decay(self) -> float:
        """The Trainer lets norms decay, too, where the JSON has the optimizer; a run of the harness never does."""
        return 0.0 if self.uses_trainer and not self.own else 0.1

    @property
    def uses_trainer(self) -> bool:
        """Is it the Trainer, or a program that builds on it?"""
        return self.program not in ("bare", "accelerate")

    @property
    def adapters(self) -> dict[str, Any]:
        """Of LoRA, as peft has them."""
        return LORA | {"lora_dropout": self.dropout}

    def config(self) -> dict[str, Any]:
        """The writer's DeepSpeed JSON."""
        zero: dict[str, Any] = {"stage": self.stage}
        adam = {"lr": 3e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": self.decay, "torch_adam": True}
        config: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": BATCH // self.ranks[0],
            "train_batch_size": BATCH,
            "gradient_clipping": 0.5,
            "bf16": {"enabled": self.bf16},
            "zero_optimization": zero,
        }
        if self.offload:
            zero["offload_optimizer"] = {"device": "cpu"}
            config["zero_force_ds_cpu_optimizer"] = False
        if self.sums:
            config["data_types"] = {"grad_accum_dtype": "fp32"}
        if self.own:
            config["zero_allow_untested_optimizer"] = True
        elif self.optimizer == "AdamW":
            config["optimizer"] = {"type": "AdamW", "params": adam}
        else:
            config["optimizer"] = {"type": self.optimizer, "params": {"lr": 3e-3, "weight_decay": self.decay}}
        return config

    def order(self, folder: Path, model: Path, rows: Path) -> dict[str, Any]:
        """The order for `jobs/foreign_writers.py`."""
        return {
            "program": self.program,
            "out": str(folder / self.name / "writer"),
            "model": str(model),
            "rows": str(rows),
            "config": self.config(),
            "save": SAVED,
            "steps": STEPS,
            "micro": 1,
            "accumulation": BATCH // self.ranks[0],
            "bf16": self.bf16,
            "lora": self.adapters if self.lora else None,
            "decay": self.decay,
        }

    def is_written(self, folder: Path) -> bool:
        """Has the writer come to its end?"""
        return (folder / self.name / "writer/writer.json").exists()

    def has_gone_on(self, folder: Path) -> bool:
        """Has the run with the import come to its end?"""
        file = folder / self.name / "on" / "metrics.jsonl"
        return file.exists() and f'"step":{STEPS},' in file.read_text()

    def saved(self, folder: Path) -> Path:
        """The writer's checkpoint."""
        out = folder / self.name / "writer"
        return out / f"checkpoint-{SAVED}" if (out / f"checkpoint-{SAVED}").exists() else out

    def import_order(self, folder: Path) -> dict[str, Any]:
        """Adopt the spec, as `harness checkpoint import` does, and the request for the tensors."""
        saved, run = self.saved(folder), folder / self.name / "run"
        tag = next(each for each in (saved / f"global_step{SAVED}", saved / "pytorch_model") if each.is_dir())
        facts = read_writer_facts(saved, tag)
        adopted = adopt_checkpoint(saved, facts, run / "adopted", parse_target(None))
        (run / "spec.yaml").write_text(adopted.text)
        return {
            "action": "import",
            "tag": str(tag),
            "folder": str(saved),
            "run": str(run),
            "settings": adopted.settings,
            "model": None,
            "global_batch": facts.global_batch,
            "position": facts.position,
            "order_seed": facts.order_seed,
        }

    def plan(self, folder: Path, model: Path, text: Path) -> dict[str, Any]:
        """The run that goes on: the adopted spec with what a user has to fill in, at another stage."""
        run = folder / self.name / "run"
        spec = yaml.safe_load((run / "spec.yaml").read_text())
        spec["model"] = {
            "name_or_path": str(model),
            **({"lora": {**self.adapters, "lora_alpha": 16.0}} if self.lora else {}),
        }
        data = {"train": str(text), "max_length": LENGTH, "eval_fraction": 0.0, "group_by_length": False}
        spec["data"] = {**spec.get("data", {}), **data, "shuffle": self.uses_trainer and self.program != "swift"}
        spec["zero"] = {"stage": self.target} | ({"offload_optimizer": {"device": "cpu"}} if self.onto_cpu else {})
        spec["train"] |= {"max_steps": STEPS, "global_batch_size": BATCH, "per_device_train_batch_size": 1}
        spec["checkpoint"] = {"save_at_end": False}
        spec.setdefault("scheduler", {"type": "cosine", "warmup_steps": 2})
        if "deepspeed" not in spec or "optimizer" not in spec["deepspeed"]:
            spec["optimizer"] = {**spec.get("optimizer", {}), "learning_rate": 3e-3, "weight_decay": self.decay}
        spec["name"] = "imported"
        resume = run / "checkpoints" / f"step-{SAVED:08d}"
        return {"name": self.name, "folder": str(folder / self.name / "on"), "spec": spec, "resume": str(resume)}


@dataclass(frozen=True)
class CellResult:
    """The largest relative difference of a loss, of the ten steps; `rates`: are all learning rates equal?"""

    cell: Cell
    steps: int
    difference: float
    rates: bool

    @property
    def passed(self) -> bool:
        return self.steps == STEPS - SAVED and self.rates and self.difference <= BOUND[self.cell.bf16]


def write_material(folder: Path) -> tuple[Path, Path, Path]:
    """A tiny model, a text, and the rows of tokens that the harness makes of it."""
    from tests.training.checkpoint.test_reshard import write_model, write_text

    model, text, rows = write_model(folder / "model"), write_text(folder / "text.txt"), folder / "rows.json"
    tokens = text.read_bytes()
    rows.write_text(json.dumps([list(tokens[i : i + LENGTH]) for i in range(0, len(tokens) - LENGTH, LENGTH)]))
    return model, text, rows


def run_orders(forked: ForkedRanks, job: str, orders: Any, folder: Path, ranks: int) -> None:
    """Run a job of `tests/training/jobs` with its orders in a file."""
    file = folder / f"{job}-{ranks}.json"
    file.write_text(json.dumps(orders))
    forked.run(JOBS / f"{job}.py", str(file), ranks=ranks, timeout=1500)


def run_cells(forked: ForkedRanks, cells: Sequence[Cell], folder: Path) -> list[CellResult]:
    """Write (those that nobody has written yet), import, go on, compare."""
    model, text, rows = write_material(folder)
    for ranks in sorted({cell.ranks[0] for cell in cells}):
        waiting = [c for c in cells if c.ranks[0] == ranks and not c.is_written(folder)]
        if waiting:
            run_orders(forked, "foreign_writers", [c.order(folder, model, rows) for c in waiting], folder, ranks)
    run_orders(forked, "import_saves", [cell.import_order(folder) for cell in cells], folder, 1)
    for ranks in sorted({cell.ranks[1] for cell in cells}):
        plans = [cell.plan(folder, model, text) for cell in cells if cell.ranks[1] == ranks]
        run_orders(forked, "reshard_cases", {"runs": plans}, folder, ranks)
    return [compare(cell, folder) for cell in cells]


def compare(cell: Cell, folder: Path) -> CellResult:
    """The steps of the writer and of the run that went on."""
    theirs = json.loads((folder / cell.name / "writer/writer.json").read_text())["steps"]
    ours = metric_lines(folder / cell.name / "on", "step")
    pairs = [(line, theirs[str(line["step"])]) for line in ours]
    difference = max(abs(a["loss"] - b["loss"]) / b["loss"] for a, b in pairs)
    return CellResult(cell, len(pairs), difference, all(a["learning_rate"] == b["learning_rate"] for a, b in pairs))
