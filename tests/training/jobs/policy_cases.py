# SPDX-License-Identifier: Apache-2.0
"""The loop with a step that is not a number, or an evaluation that does not get better, several runs in the same ranks.

`policy_cases.py JOBS.json`, where a job is {"run": DIR, "bad": [steps], "rank": which, "kind": "loss" or "gradient", "late": are
lines written and losses read a step late as on a device, "stop": the step during which somebody asks for a stop, or null,
"slow_save": seconds that the write of a checkpoint takes more}. Rank 0 writes DIR/outcome.json: {"changed": [did step n change
a weight], "step", "skipped", "refused": [id, text, notes] or null, "saved": [steps of complete checkpoints when training ended]}.
"""

import dataclasses
import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from harness.checkpoints.latest import list_complete_manifests
from harness.errors import UserError
from harness.runtime.checkpoint import saver
from harness.runtime.distributed import Distributed, destroy_process_group, init_process_group
from harness.runtime.rank_status import RankStatusWriter
from harness.runtime.run_config import RunDir
from harness.runtime.telemetry.run_telemetry import Telemetry
from harness.runtime.train import train
from harness.runtime.train_context import TrainContext, build_context
from harness.runtime.worker import _load_run_config_on_all_ranks, _set_log_levels


class Spoiled:
    """A stepper whose steps are spoiled now and then, and that says whether weights changed."""

    def __init__(self, built: TrainContext, job: dict[str, Any]) -> None:
        self._stepper, self._module = built.stepper, built.engine.module
        self._stop = built.run_dir.stop
        self._job, self._rank, self._step, self._spoiling = job, built.distributed.rank, 0, False
        self.changed: list[bool] = []
        self._module.register_forward_hook(self._spoil)

    def train_step(self, micro_batches: Any, num_targets: int, timer: Any) -> torch.Tensor:
        self._step += 1
        self._spoiling = self._step in self._job["bad"] and self._rank == self._job["rank"]
        if self._step == self._job["stop"] and self._rank == 0:
            self._stop.write_text("enough")
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
    built = build_context(orders, run_dir, ranks, RankStatusWriter(run_dir, ranks.rank))
    spoiled = Spoiled(built, job)
    built = dataclasses.replace(built, stepper=spoiled)
    refused, state = None, None
    init = Telemetry.__init__

    def late(self: Any, *args: Any) -> None:
        init(self, *args)
        self.lag_steps = 1

    commit = saver.commit_save

    def slow_commit(*args: Any) -> Any:
        time.sleep(job["slow_save"])
        return commit(*args)

    saver.commit_save = slow_commit
    if job["late"]:
        Telemetry.__init__ = late  # type: ignore[method-assign]
    try:
        state = train(built, None)
    except UserError as error:
        finding = error.findings[0]
        refused = [finding.gate, finding.message, list(finding.notes)]
    finally:
        saved = sorted(manifest.step for manifest in list_complete_manifests(run_dir.checkpoints))
        Telemetry.__init__, saver.commit_save = init, commit  # type: ignore[method-assign]
    built.metrics.close()
    built.engine.destroy()
    return {
        "changed": spoiled.changed,
        "step": state.step if state else None,
        "skipped": state.skipped if state else None,
        "refused": refused,
        "saved": saved,
    }


if __name__ == "__main__":
    main()
