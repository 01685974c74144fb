"""The loop with a step that is not a number, or an evaluation that does not get better, several runs in the same ranks.

`policy_cases.py JOBS.json`, where a job is {"run": DIR, "bad": [steps], "rank": which, "kind": "loss" or "gradient"}. Rank 0
writes DIR/outcome.json: {"changed": [did step n change a weight], "step", "skipped", "refused": [id, text, notes] or null}.
"""

import dataclasses
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import torch

from harness.errors import UserError
from harness.runtime import train as loop
from harness.runtime.distributed import Distributed, destroy_process_group, init_process_group
from harness.runtime.rank_status import RankStatusWriter
from harness.runtime.run_config import RunDir
from harness.runtime.worker import _load_run_config_on_all_ranks, _set_log_levels


class Spoiled:
    """A stepper whose steps are spoiled now and then, and that says whether weights changed."""

    def __init__(self, built: loop.TrainContext, job: dict[str, Any]) -> None:
        self._stepper, self._module = built.stepper, built.engine.module
        self._job, self._rank, self._step, self._spoiling = job, built.distributed.rank, 0, False
        self.changed: list[bool] = []
        self._module.register_forward_hook(self._spoil)

    def train_step(self, micro_batches: Any, num_targets: int, timer: Any) -> torch.Tensor:
        self._step += 1
        self._spoiling = self._step in self._job["bad"] and self._rank == self._job["rank"]
        before = self._digest()
        losses = self._stepper.train_step(micro_batches, num_targets, timer)
        self.changed.append(self._digest() != before)
        self._spoiling = False
        return losses

    def eval_step(self, batch: Any) -> tuple[torch.Tensor, int]:
        return self._stepper.eval_step(batch)

    def _spoil(self, _module: Any, _inputs: Any, output: Any) -> Any:
        if self._spoiling and self._job["kind"] == "loss":
            output.loss = output.loss * float("nan")
        elif self._spoiling:
            output.loss.register_hook(lambda gradient: gradient * float("inf"))
        return output

    def _digest(self) -> str:
        parts = [
            getattr(p, "ds_tensor", p).detach().view(torch.uint8) for p in self._module.parameters() if p.dim() or 1
        ]
        return hashlib.sha256(b"".join(p.cpu().numpy().tobytes() for p in parts)).hexdigest()


def main() -> None:
    ranks = init_process_group()
    for job in json.loads(Path(sys.argv[-1]).read_text()):
        outcome = _train(ranks, job)
        if ranks.is_main_process:
            (Path(job["run"]) / "outcome.json").write_text(json.dumps(outcome))
    destroy_process_group()


def _train(ranks: Distributed, job: dict[str, Any]) -> dict[str, Any]:
    run_dir = RunDir(Path(job["run"]))
    orders = _load_run_config_on_all_ranks(run_dir, ranks)
    _set_log_levels("error")
    built = loop.build_context(orders, run_dir, ranks, RankStatusWriter(run_dir, ranks.rank))
    spoiled = Spoiled(built, job)
    built = dataclasses.replace(built, stepper=spoiled)
    refused, state = None, None
    try:
        state = loop.train(built, None)
    except UserError as error:
        finding = error.findings[0]
        refused = [finding.gate, finding.message, list(finding.notes)]
    built.metrics.close()
    built.engine.destroy()
    return {
        "changed": spoiled.changed,
        "step": state.step if state else None,
        "skipped": state.skipped if state else None,
        "refused": refused,
    }


if __name__ == "__main__":
    main()
