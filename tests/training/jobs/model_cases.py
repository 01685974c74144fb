# SPDX-License-Identifier: Apache-2.0
"""Builds and trains models as the harness does, many cases in one job: `model_cases.py CASES.json OUT.json`.

A case: {"name", "spec" (a run spec without data), "steps", "file" (where rank 0 writes all weights, or null)}. OUT holds
for each what happened: losses, trained parameters and their count, what was refused.
"""

import json
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
from safetensors.torch import save_file

from harness.errors import UserError
from harness.render import render_ds_config
from harness.run.resolved_run import resolve_run
from harness.runtime.distributed import Distributed, destroy_process_group, init_process_group
from harness.runtime.engine import build_engine
from harness.runtime.models import build_model
from harness.runtime.models.model_config import load_config
from harness.runtime.patch_selection import resolve_patches
from harness.runtime.tokenizer import byte_tokenizer
from harness.spec.run_spec import RunSpec

calls = {"deepspeed": 0}
_checkpoint = deepspeed.checkpointing.checkpoint


def _counted(*arguments: Any) -> Any:
    calls["deepspeed"] += 1
    return _checkpoint(*arguments)


deepspeed.checkpointing.checkpoint = _counted


def weights_of(engine: Any) -> dict[str, torch.Tensor]:
    """Every parameter whole. A collective."""
    out = {}
    for name, parameter in engine.module.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter], enabled=hasattr(parameter, "ds_id")):
            out[name] = parameter.detach().clone().contiguous()
    return out


def run_case(case: dict[str, Any], ranks: Distributed) -> dict[str, Any]:
    train = {"max_steps": 4, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 1, "max_grad_norm": 0.5}
    spec = {"optimizer": {"learning_rate": 1e-2, "weight_decay": 0.1}, **case["spec"]}
    spec["train"] = train | spec.get("train", {})
    run = resolve_run(RunSpec.model_validate_json(json.dumps(spec)), world_size=ranks.world_size)
    ds_config = dict(render_ds_config(run).config)
    try:
        config = load_config(run.spec.model, byte_tokenizer())
        model = build_model(run, ds_config, config)
    except UserError as refused:
        return {"refused": [[f.gate, f.message, *f.notes] for f in refused.findings]}
    built = {"class": type(model).__name__, "dtype": str(next(model.parameters()).dtype)}
    patches = resolve_patches(run, ds_config, is_main_process=True)
    engine = build_engine(run, ds_config, model, 4, patches, ranks)
    calls["deepspeed"] = 0
    ids = torch.randint(0, 256, (2, 32), generator=torch.Generator().manual_seed(ranks.rank))
    losses = []
    for _ in range(case.get("steps", 4)):
        loss = engine(input_ids=ids, labels=ids, use_cache=False).loss
        engine.backward(loss)
        engine.step()
        losses.append(ranks.all_reduce_sum(loss)[0] / ranks.world_size)
    trained = {n: getattr(p, "ds_numel", p.numel()) for n, p in engine.module.named_parameters() if p.requires_grad}
    if case.get("file"):
        weights = weights_of(engine)
        if ranks.is_main_process:
            save_file(weights, case["file"])
    states = engine.basic_optimizer.state.values()
    held = sum(t.numel() for state in states for t in state.values() if torch.is_tensor(t) and t.dim())
    engine.destroy()
    return {
        **built,
        "losses": losses,
        "trained": trained,
        "calls": calls["deepspeed"],
        "states": ranks.all_gather_object(held),
    }


if __name__ == "__main__":
    ranks = init_process_group()
    results = {}
    for case in json.loads(Path(sys.argv[1]).read_text()):
        results[case["name"]] = run_case(case, ranks)
    if ranks.is_main_process:
        Path(sys.argv[2]).write_text(json.dumps(results))
    destroy_process_group()
