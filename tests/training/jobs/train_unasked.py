# SPDX-License-Identifier: Apache-2.0
"""A rank that trains what a small copy of the model would have refused: `train_unasked.py --run RUN`.

Where the folder of the model has `weights.pt`, what was saved by `save_pretrained`, RUN/weights.json gets `loaded`, the
names of weights that are others in the engine before the first step, `kept`, those that are the same after the last one
with their adapters merged, `quantized`, those in 4 bits, and `chunked`: is the loss computed in chunks? Of a split model, RUN/numel says how many
the layers have on rank 0.
"""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import torch

from harness.runtime import worker
from harness.runtime.models import packed_attention
from harness.runtime.models.quantized_base import quantized_layers
from harness.runtime.objectives import causal_lm

causal_lm.check_objective = lambda *_: False  # type: ignore[assignment]
causal_lm.check_stack = lambda *_, **__: None  # type: ignore[assignment]
packed_attention._check_model = lambda *_: None  # type: ignore[assignment]
_train = worker.train


def compare_weights(ctx: Any) -> dict[str, bool | None]:
    """Is each weight of the saved model equal in the engine? None: it is not there. A collective."""
    import deepspeed

    run = ctx.run_config.run.spec
    saved = torch.load(Path(run.model.name_or_path) / "weights.pt")
    own = {name.replace(".base_layer", ""): p for name, p in ctx.engine.module.named_parameters()}
    with deepspeed.zero.GatheredParameters(list(own.values()), enabled=run.zero.stage == 3):
        return {n: torch.equal(own[n].detach(), p) if n in own else None for n, p in saved.items()}


def train(ctx: Any, *args: Any) -> Any:
    """The loop, between two looks at the weights."""
    found: dict[str, Any] = {"chunked": ctx.patches.is_applied("chunked-loss")}
    found |= {"loaded": [name for name, is_same in compare_weights(ctx).items() if not is_same]}
    in_bits = {id(layer.weight) for layer in quantized_layers(ctx.engine.module)}
    own = ctx.engine.module.named_parameters()
    found["quantized"] = [name.replace(".base_layer", "") for name, p in own if id(p) in in_bits]
    state = _train(ctx, *args)
    if in_bits:
        (ctx.run_dir.root / "weights.json").write_text(json.dumps(found))
        return state
    for module in ctx.engine.module.modules():
        if hasattr(module, "get_base_layer") and hasattr(module, "merge"):
            module.merge()
    found["kept"] = [name for name, is_same in compare_weights(ctx).items() if is_same]
    if ctx.distributed.is_main_process:
        (ctx.run_dir.root / "weights.json").write_text(json.dumps(found))
    return state


def replaced_train(ctx: Any, *args: Any) -> Any:
    """Looks at the weights of whole models alone: stages and tensor ranks have parts under other names."""
    is_whole = ctx.run_config.run.parallel_dims.pipeline * ctx.run_config.run.parallel_dims.tensor == 1
    if ctx.distributed.is_main_process and not is_whole:
        layers = [p.numel() for name, p in ctx.engine.module.named_parameters() if ".layers." in name]
        (ctx.run_dir.root / "numel").write_text(str(sum(layers)))
    return (train if is_whole else _train)(ctx, *args)


worker.train = replaced_train
runpy.run_path(str(Path(__file__).parents[3] / "launch" / "train.py"), run_name="__main__")
