# SPDX-License-Identifier: Apache-2.0
"""Runs a table of parity cases under the real launcher, many a launch, and compares each with its plain process."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import tests.support.training.parity_cases as table
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.plain_reference import IGNORED, Rows, Settings, train_plainly
from tests.support.training.runtime_helpers import JOBS, launch, metric_lines

JOB = JOBS / "parity_many.py"
Launch = Callable[..., "subprocess.CompletedProcess[str]"]


@dataclass(frozen=True, slots=True)
class Result:
    """How far a case is from its reference: the largest relative difference of a step's loss."""

    case: table.Case
    error: str | None
    difference: float
    last_loss: float
    seconds: float
    swapped: int
    optimizer: str


def run(cases: Sequence[table.Case], folder: Path, start: Launch = launch) -> list[Result]:
    """Train all cases, those of as many ranks in one launch, then their references; below `folder`.

    A case that an earlier call trained in this folder is not trained again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    models = table.write_models(folder / "models", sorted({c.model for c in cases}))
    text = table.write_text(folder / "text.txt")
    table.write_records(folder / table.RECORDS)
    for ranks in sorted({c.ranks for c in cases}):
        pending = [c for c in cases if c.ranks == ranks and not _is_trained(folder / c.name)]
        for case in pending:
            shutil.rmtree(folder / case.name, ignore_errors=True)
            body = table.spec(case, models, text, folder / "nvme" / case.name)
            table.write_run(folder / case.name, body, ranks)
        while pending:  # a case that fails ends its launch: the ones after it get another
            output = _launch(pending, ranks, folder, start)
            done = [c for c in pending if (folder / c.name / "outcome.json").exists()]
            if not done:
                raise RuntimeError(output[-4000:])
            pending = [c for c in pending if c not in done]
    return compare(cases, folder, models)


def _is_trained(run_dir: Path) -> bool:
    file = run_dir / "outcome.json"
    return file.exists() and json.loads(file.read_text())["error"] is None


def start_forked(forked: ForkedRanks) -> Launch:
    """A `start` for `run`: forked ranks, whose output comes back as a launcher's."""

    def start(script: Path, *arguments: str, ranks: int, timeout: float) -> subprocess.CompletedProcess[str]:
        answer = forked.run(script, *arguments, ranks=ranks, timeout=timeout, check=False)
        return subprocess.CompletedProcess([], max(answer["codes"]), "\n".join(answer["output"]), "")

    return start


def _launch(cases: Sequence[table.Case], ranks: int, folder: Path, start: Launch) -> str:
    jobs = [{"run": str(folder / c.name), "drawn": str(folder / c.name / "drawn.pt")} for c in cases]
    for case in cases:  # one that a failed launch broke off begins anew
        (folder / case.name / "metrics.jsonl").unlink(missing_ok=True)
    file = folder / "jobs.json"
    file.write_text(json.dumps(jobs))
    result = start(JOB, str(file), ranks=ranks, timeout=120 + 5 * ranks * len(cases))
    return result.stdout + result.stderr


def compare(cases: Sequence[table.Case], folder: Path, models: Path) -> list[Result]:
    """Each case beside the plain process on the same data."""
    references = {c.reference: None for c in cases}
    losses: dict[tuple[str, str, str, str], list[float]] = {}
    results = []
    for model, precision in references:
        for case in [c for c in cases if c.reference == (model, precision)]:
            outcome = json.loads((folder / case.name / "outcome.json").read_text())
            if outcome["error"]:
                results.append(Result(case, outcome["error"], math.nan, math.nan, outcome["seconds"], 0, ""))
                continue
            settings = _settings(case)
            key = (model, precision, outcome["data"], repr(settings))
            if key not in losses:
                losses[key] = plain_losses(
                    models / model, folder / case.name / "drawn.pt", precision, settings, whole=case in table.SPLITS
                )
            ours = [line["loss"] for line in metric_lines(folder / case.name, "step")]
            results.append(
                Result(
                    case,
                    None,
                    difference(ours, losses[key]),
                    ours[-1],
                    outcome["seconds"],
                    outcome["swapped"],
                    outcome["optimizer"],
                )
            )
    order = {case.name: i for i, case in enumerate(cases)}
    return sorted(results, key=lambda r: order[r.case.name])


def _settings(case: table.Case) -> Settings:
    body = table.spec(case, Path("models"), Path("text"), Path("nvme"))
    return Settings(body["optimizer"], table.STEPS, table.WARMUP, body["train"]["max_grad_norm"])


def plain_losses(model: Path, drawn: Path, precision: str, settings: Settings, *, whole: bool = False) -> list[float]:
    """The losses of the plain process; `whole`: each global batch is computed at once."""
    batches: list[list[dict[str, Any]]] = torch.load(drawn)
    rows = [[Rows(**part) for part in parts] for parts in batches]
    if whole:
        rows = [[_joined(parts)] for parts in rows]
    return train_plainly(model, rows, settings, bf16=precision == "bf16").losses


def _joined(parts: Sequence[Rows]) -> Rows:
    """All rows as one batch, padded to the longest."""
    length = max(part.input_ids.size(1) for part in parts)

    def padded(tensors: Sequence[torch.Tensor], value: int) -> torch.Tensor:
        return torch.cat([torch.nn.functional.pad(t, (0, length - t.size(1)), value=value) for t in tensors])

    masks = [torch.ones_like(p.input_ids) if p.attention_mask is None else p.attention_mask for p in parts]
    return Rows(
        padded([p.input_ids for p in parts], 0),
        padded([p.labels for p in parts], IGNORED),
        attention_mask=padded(masks, 0),
    )


def difference(ours: Sequence[float], reference: Sequence[float]) -> float:
    """The largest relative difference; infinite when a step is missing or not a number."""
    if len(ours) != len(reference) or not all(map(math.isfinite, ours)):
        return math.inf
    return max(abs(a - b) / abs(b) for a, b in zip(ours, reference, strict=True))
