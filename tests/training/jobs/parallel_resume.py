# SPDX-License-Identifier: Apache-2.0
"""`parallel_resume.py RUN MODEL`: train 4 steps, or 2, save, build anew, load and train 2 more; join the saved shards.

Writes RUN/resumed.json: {"straight", "resumed": losses and norms of steps 3 and 4, "parameters", "whole": numbers of
weights, "cut": how many weights are cut}.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from harness.runtime.distributed import Distributed, destroy_process_group, init_process_group
from harness.runtime.parallel.tensor_parallel import count_parameters, tp_layouts, tp_sharded_weights
from harness.runtime.run_config import RunDir
from harness.runtime.step_timer import StepTimer
from harness.runtime.worker import _load_run_config_on_all_ranks, _set_log_levels
from tests.training.jobs.parallel_many import Built, build, mine, predicted, rows_of

KIND = {"packed": False, "skewed": False}
TAG = "saved"


def train(built: Built, ranks: Distributed, steps: range) -> list[list[float | None]]:
    out = []
    for step in steps:
        rows = rows_of(KIND, step, built.topology.data_parallel_size)
        part = built.stepper.train_step(mine(rows, built.topology.data_parallel_rank), predicted(rows), StepTimer())
        norm = built.engine.get_global_grad_norm()
        out.append([ranks.all_reduce_sum(part)[0], None if norm is None else float(norm)])
    return out


def check_join(folder: Path, ranks: Distributed, live: dict[str, torch.Tensor]) -> None:
    """What a rank has is its part of the joined weight."""
    saved = [torch.load(file, weights_only=False) for file in sorted(folder.glob("mp_rank_*_model_states.pt"))]
    for name, cut in tp_layouts(saved[0]["universal_checkpoint_info"], list(live)).items():
        parts = [part["module"][name] for part in saved]
        whole = cut.join_shards(parts)
        here = whole if cut.dim is None else whole.split([p.shape[cut.dim] for p in parts], cut.dim)[ranks.rank]
        assert torch.equal(here, live[name]), name


def check_untrained(model: Path, built: Built, ranks: Distributed) -> None:
    """Before training, the parts are those of the weights that were loaded."""
    stored: dict[str, Any] = load_file(model / "model.safetensors")
    shards = tp_sharded_weights(built.engine)
    for name, parameter in built.engine.module.named_parameters():
        whole = stored[name]
        if name in shards:
            dim, shape = shards[name]
            assert whole.shape == shape, name
            sizes = ranks.all_gather_object(parameter.shape[dim])
            whole = whole.split(sizes, dim)[ranks.rank]
        assert torch.equal(whole, parameter.detach()), name


ranks = init_process_group()
run, model = Path(sys.argv[1]), Path(sys.argv[2])
orders = _load_run_config_on_all_ranks(RunDir(run), ranks)
_set_log_levels("error")
built = build(ranks, orders)
check_untrained(model, built, ranks)
train(built, ranks, range(2))
built.engine.save_checkpoint(str(run / "checkpoint"), tag=TAG)
live = {name: p.detach().clone() for name, p in built.engine.module.named_parameters()}
check_join(run / "checkpoint" / TAG, ranks, live)
straight = train(built, ranks, range(2, 4))
built.engine.destroy()
built = build(ranks, orders)
built.engine.load_checkpoint(str(run / "checkpoint"), tag=TAG)
resumed = train(built, ranks, range(2, 4))
if ranks.is_main_process:
    stored = load_file(model / "model.safetensors")
    facts = {
        "straight": straight,
        "resumed": resumed,
        "parameters": count_parameters(built.engine)[0],
        "whole": sum(t.numel() for t in stored.values()),
        "cut": len(tp_sharded_weights(built.engine)),
    }
    (run / "resumed.json").write_text(json.dumps(facts))
destroy_process_group()
