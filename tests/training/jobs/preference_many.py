# SPDX-License-Identifier: Apache-2.0
"""The harness's loop on several run directories of preferences, and what each step's loss and gradient norm were.

`preference_many.py JOBS.json`, where a job is {"run": DIR, "adapters": bool, "gradients": bool}. Rank 0 writes
DIR/norms.json, and with `gradients` DIR/gradients.pt, those of each parameter at each step before they are clipped.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from deepspeed.utils import safe_get_full_grad

from harness.runtime.distributed import destroy_process_group, init_process_group
from harness.runtime.objectives.label_head import Reward
from harness.runtime.objectives.preference import Preference
from harness.runtime.rank_status import RankStatusWriter
from harness.runtime.run_config import RunDir
from harness.runtime.train import train
from harness.runtime.train_context import build_context
from harness.runtime.worker import _load_run_config_on_all_ranks, _set_log_levels
from tests.support.training.preference_case import set_adapters

_BUILD = {kind: kind.build_model for kind in (Preference, Reward)}


def _draw_adapters(build: Any) -> Any:
    def build_with_drawn_adapters(*arguments: Any) -> Any:
        model = build(*arguments)
        set_adapters(model)
        return model

    return build_with_drawn_adapters


def _record_steps(engine: Any, gradients: list[dict[str, torch.Tensor]] | None) -> list[float]:
    """The list to which each optimizer step adds its norm, and to `gradients` what it is computed from."""
    norms: list[float] = []
    step = engine.step

    def step_and_record() -> None:
        is_last = engine.is_gradient_accumulation_boundary()
        if is_last and gradients is not None:
            trained = {name: one for name, one in engine.module.named_parameters() if one.requires_grad}
            gradients.append({name: safe_get_full_grad(one).clone() for name, one in trained.items()})
        step()
        if is_last:
            norms.append(float(engine.get_global_grad_norm() or 0))

    engine.step = step_and_record
    return norms


def main() -> None:
    ranks = init_process_group()
    for job in json.loads(Path(sys.argv[-1]).read_text()):
        for kind, build in _BUILD.items():
            kind.build_model = _draw_adapters(build) if job["adapters"] else build  # type: ignore[method-assign]
        run_dir = RunDir(Path(job["run"]))
        orders = _load_run_config_on_all_ranks(run_dir, ranks)
        _set_log_levels("error")
        built = build_context(orders, run_dir, ranks, RankStatusWriter(run_dir, ranks.rank))
        gradients: list[dict[str, torch.Tensor]] | None = [] if job["gradients"] else None
        norms = _record_steps(built.engine, gradients)
        train(built)
        if ranks.is_main_process:
            (run_dir.root / "norms.json").write_text(json.dumps(norms))
            if gradients:
                torch.save(gradients, run_dir.root / "gradients.pt")
        built.metrics.close()
        built.engine.destroy()
    destroy_process_group()


if __name__ == "__main__":
    main()
