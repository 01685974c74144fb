"""Worker of test_plan_counts.py: builds engines on 2 gloo ranks, trains a few steps, counts what they hold by kind."""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoModelForCausalLM


def nbytes(tensors: Any) -> int:
    """Bytes of the distinct storages behind these tensors."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if t is not None}
    return sum(storages.values())


def held() -> int:
    """Bytes of every tensor of more than 64 bytes that lives in this process."""
    gc.collect()
    tensors = []
    for thing in gc.get_objects():
        try:
            if issubclass(type(thing), torch.Tensor):
                tensors += [thing] + ([thing.grad] if thing.is_leaf and thing.grad is not None else [])
        except ReferenceError:  # a weak proxy whose object is gone
            continue
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(n for n in storages.values() if n > 64)


def states(optimizer: Any) -> list[Any]:
    return [t for entry in optimizer.state.values() for t in entry.values() if torch.is_tensor(t) and t.numel() > 1]


def flatten(nested: Any) -> list[Any]:
    if torch.is_tensor(nested):
        return [nested]
    items = nested.values() if isinstance(nested, dict) else nested
    return [t for item in items if item is not None for t in flatten(item)]


def count(engine: Any, stage: int) -> dict[str, int]:
    """Bytes by kind, named as the planner's rows."""
    zero, module = engine.optimizer, engine.module
    if stage == 0:
        flat = getattr(zero, "fp32_groups_flat", [])
        inner = getattr(zero, "optimizer", zero)
        return {"parameters": nbytes(module.parameters()), "master": nbytes(flat), "states": nbytes(states(inner))}
    if stage < 3:
        host = (
            {}
            if not zero.cpu_offload
            else {
                "staging": nbytes(zero.param_buffer_of_bit16_for_cpu_offload_groups),
                "largest": nbytes([zero.temp_grad_buffer_for_cpu_offload]),
                "master_gradients": nbytes(
                    [p.grad for p in zero.single_partition_of_fp32_groups if p.grad is not None]
                ),
            }
        )
        return {
            "parameters": nbytes(zero.bit16_groups_flat),
            "master": nbytes(zero.single_partition_of_fp32_groups),
            "states": nbytes(states(zero.optimizer)),
            **host,
        }
    counted = {
        "parameters": nbytes(zero.fp16_partitioned_groups_flat),
        "gradients": nbytes([zero.grad_partitions_flat_buffer]),
        "master": nbytes(zero.fp32_partitioned_groups_flat),
        "states": nbytes(states(zero.optimizer)),
        "bucket": nbytes([bucket.buffer for bucket in zero.ipg_buckets.values()]),
        "persistent": nbytes([p.data for p in module.parameters() if p.data.numel() > 0]),
    }
    if zero.offload_optimizer:
        counted["master_gradients"] = nbytes([p.grad for p in zero.fp32_partitioned_groups_flat if p.grad is not None])
    return counted


def gradients(engine: Any, stage: int) -> dict[str, int]:
    """What is only there between the last backward and the step."""
    zero = engine.optimizer
    if stage == 0:
        return {"gradients": nbytes(p.grad for p in engine.module.parameters())}
    if stage < 3 and not zero.cpu_offload:
        return {"gradients": nbytes(flatten(zero.averaged_gradients))}
    if stage < 3:
        return {"accumulated": nbytes(flatten(zero.accumulated_grads_in_cpu))}
    return {}


def run(fields: dict[str, Any], config: dict[str, Any], decay: bool) -> dict[str, int]:
    """Two optimizer steps of two micro-batches; what is held before the second step and after it."""
    stage = config["zero_optimization"]["stage"]
    before = held()
    torch.manual_seed(0)
    model_config = AutoConfig.for_model(**fields)
    with deepspeed.zero.Init(config_dict_or_path=config, enabled=stage == 3):
        model = AutoModelForCausalLM.from_config(model_config)
    weights, vectors = [], []
    for p in model.parameters():
        (weights if len(getattr(p, "ds_shape", p.shape)) > 1 else vectors).append(p)
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    engine = deepspeed.initialize(
        model=model, model_parameters=groups if decay else [*model.parameters()], config=config
    )[0]
    del model, weights, vectors, groups
    result: dict[str, int] = {}
    for micro in range(4):
        tokens = torch.randint(0, 256, (1, 16))
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        if micro == 3:
            result |= gradients(engine, stage)
        engine.step()
    del loss, tokens
    result |= count(engine, stage)
    result["held"] = held() - before
    engine.destroy()
    return result


def main() -> None:
    """argv: a JSON file with a model's fields and [[config, decay], ...], and where to write the counts; RANK, WORLD_SIZE as torch wants them."""
    deepspeed.init_distributed("gloo")
    work = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    counts = [run(work["model"], config, decay) for config, decay in work["cases"]]
    target = Path(sys.argv[2]) / f"{os.environ['RANK']}.json"
    target.write_text(json.dumps(counts), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
