# SPDX-License-Identifier: Apache-2.0
"""Worker of test_plan_counts.py: builds engines on gloo ranks one after the other, trains a few steps, counts what they hold."""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoModelForCausalLM

from harness.runtime.models.lora import add_adapters
from harness.runtime.models.trainable_parameters import freeze_parameters
from harness.spec.sections.model_spec import ModelSpec


def nbytes(tensors: Any) -> int:
    """Bytes of the distinct storages behind these tensors."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if t is not None}
    return sum(storages.values())


def storages() -> dict[int, Any]:
    """The storage of every tensor of more than 64 bytes that lives in this process, by address."""
    gc.collect()
    tensors = []
    for thing in gc.get_objects():
        try:
            if issubclass(type(thing), torch.Tensor):
                tensors += [thing] + ([thing.grad] if thing.is_leaf and thing.grad is not None else [])
        except ReferenceError:  # a weak proxy whose object is gone
            continue
    return {s.data_ptr(): s for s in (t.untyped_storage() for t in tensors) if s.nbytes() > 64}


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
        masters = getattr(zero, "fp32_groups_flat", None) or [p for g in getattr(zero, "fp32_groups", ()) for p in g]
        inner = getattr(zero, "optimizer", zero)
        trained = [p for p in module.parameters() if p.requires_grad]
        stepped = [t for p in masters or trained for t in inner.state[p].values() if torch.is_tensor(t) and t.dim()]
        return {"parameters": nbytes(trained), "master": nbytes(masters), "states": nbytes(stepped)}
    if hasattr(zero, "fp32_groups_gradients_flat"):
        return {
            "parameters": nbytes(zero.bf16_groups_flat),
            "gradients": nbytes(zero.fp32_groups_gradients_flat),
            "master": nbytes(zero.fp32_groups_flat_partition),
            "states": nbytes(states(zero.optimizer)),
        }
    if stage < 3:
        return {
            "parameters": nbytes(zero.bit16_groups_flat),
            "master": nbytes(zero.single_partition_of_fp32_groups),
            "states": nbytes(states(zero.optimizer)),
            **(_on_the_host(zero) if zero.cpu_offload else {}),
        }
    if zero.swap_optimizer:
        return {
            "parameters": nbytes(zero.fp16_partitioned_groups_flat),
            "gradients": nbytes([zero.grad_partitions_flat_buffer]),
            "swap": nbytes(zero.optimizer_swapper.swap_buffer_manager.all_buffers),
            **_files(zero),
            **_too_small_to_swap(zero),
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


def _on_the_host(zero: Any) -> dict[str, int]:
    return {
        "staging": nbytes(zero.param_buffer_of_bit16_for_cpu_offload_groups),
        "largest": nbytes([zero.temp_grad_buffer_for_cpu_offload]),
        "master_gradients": nbytes([p.grad for p in zero.single_partition_of_fp32_groups if p.grad is not None]),
    }


def _too_small_to_swap(zero: Any) -> dict[str, int]:
    groups = enumerate(zero.fp32_partitioned_groups_flat)
    masters = [m for i, m in groups if m.numel() and not zero._swappable_optimizer_subgroup(i)]
    if not masters:
        return {}
    moments = [t for m in masters for t in zero.optimizer.state[m].values() if torch.is_tensor(t) and t.numel() > 1]
    return {
        "master": nbytes(masters),
        "states": nbytes(moments),
        "master_gradients": nbytes([m.grad for m in masters]),
    }


def _files(zero: Any) -> dict[str, int]:
    """Bytes on disk of this rank: states, and the gradients of the last step."""
    files = [p for p in Path(zero.optimizer_swapper.swap_folder).rglob("*.swp") if p.is_file()]
    gradients = sum(p.stat().st_size for p in files if "_gradient_" in p.name)
    return {"nvme_states": sum(p.stat().st_size for p in files) - gradients, "nvme_gradients": gradients}


def gradients(engine: Any, stage: int) -> dict[str, int]:
    """What is only there between the last backward and the step."""
    zero = engine.optimizer
    if stage == 0:
        return {"gradients": nbytes(p.grad for p in engine.module.parameters())}
    if hasattr(zero, "fp32_groups_gradients_flat") or stage == 3:
        return {}
    if not zero.cpu_offload:
        return {"gradients": nbytes(flatten(zero.averaged_gradients))}
    own = {p.grad.untyped_storage().data_ptr() for p in zero.single_partition_of_fp32_groups if p.grad is not None}
    kept = flatten(zero.accumulated_grads_in_cpu)  # with 16-bit masters these are the gradients of the masters
    return {"accumulated": nbytes(t for t in kept if t.untyped_storage().data_ptr() not in own)}


def watch(engine: Any, stage: int, seen: dict[str, int]) -> None:
    """Hooks that note what exists only within forward and backward: reduce buckets and ZeRO++'s second shards."""
    zero, module = engine.optimizer, engine.module
    if stage in (1, 2) and hasattr(zero, "ipg_buckets"):

        def backward(gradient: Any) -> Any:
            buffers = [b for bucket in zero.ipg_buckets.values() for b in bucket.buffer]
            seen["bucket"] = max(seen.get("bucket", 0), nbytes(buffers))
            return gradient

        # the embedding, or what is trained behind it: the last to get a gradient
        next(p for p in module.parameters() if p.requires_grad).register_hook(backward)
    if stage == 3 and zero.zero_hpz_partition_size > 1:

        def forward(*_: Any) -> None:
            seconds = [p.ds_secondary_tensor for p in module.parameters() if p.ds_secondary_tensor is not None]
            seen["secondary"] = nbytes(seconds)  # in the first pass those that will stay gathered have one too

        module.register_forward_hook(forward)


def run(fields: dict[str, Any], config: dict[str, Any], decay: bool, trained: dict[str, Any]) -> dict[str, int]:
    """Two optimizer steps; what is held before the second step and after it."""
    stage = config["zero_optimization"]["stage"]
    offload = config["zero_optimization"].get("offload_optimizer", {})
    if "nvme_path" in offload:
        offload["nvme_path"] = tempfile.mkdtemp(dir=sys.argv[2]) if dist.get_rank() == 0 else ""
        paths = [offload["nvme_path"]]
        dist.broadcast_object_list(paths)
        offload["nvme_path"] = paths[0]
    micro_steps = config["gradient_accumulation_steps"]
    before = storages()  # They stay, with their addresses: a thread of gloo may drop its last tensors late.
    torch.manual_seed(0)
    model_config = AutoConfig.for_model(**fields)
    with deepspeed.zero.Init(config_dict_or_path=config, enabled=stage == 3):
        model = AutoModelForCausalLM.from_config(model_config)
    for p in model.parameters():  # fused experts come uninitialised out of a bare zero.Init: no step with such numbers
        getattr(p, "ds_tensor", p).data.normal_(std=0.02)
    spec = ModelSpec.model_validate({"name_or_path": "x", **trained}, strict=False)
    if spec.lora is not None:
        add_adapters(model, spec.lora, seed=0)
    if spec.freeze or spec.train_only:
        freeze_parameters(model, spec)
    weights, vectors = [], []
    for p in model.parameters():
        if not p.requires_grad:
            continue
        (weights if len(getattr(p, "ds_shape", p.shape)) > 1 else vectors).append(p)
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    engine = deepspeed.initialize(
        model=model,
        model_parameters=groups if decay else [p for p in model.parameters() if p.requires_grad],
        config=config,
    )[0]
    del model, weights, vectors, groups
    result: dict[str, int] = {}
    watch(engine, stage, result)
    for micro in range(2 * micro_steps):
        tokens = torch.randint(0, 199, (1, 16))
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        if micro == 2 * micro_steps - 1:
            result |= gradients(engine, stage)
        engine.step()
    del loss, tokens
    result |= count(engine, stage)
    if trained:
        frozen = [p for p in engine.module.parameters() if not p.requires_grad]
        result["frozen"] = nbytes([getattr(p, "ds_tensor", p) for p in frozen])
    dist.barrier()  # gloo's threads keep the last reduced tensors until they take up the next work
    result["held"] = sum(s.nbytes() for address, s in storages().items() if address not in before)
    engine.destroy()
    return result


def main() -> None:
    """argv: a JSON file with [[model fields, config, decay, what is trained], ...], and where to write; RANK, WORLD_SIZE as torch wants."""
    deepspeed.init_distributed("gloo")
    torch._dynamo.config.disable = True  # Muon's kernels would be compiled
    work = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    gc.freeze()  # what was imported is no tensor of a case: a look through all objects takes a tenth of the time
    counts: list[dict[str, Any]] = []
    for case in work:
        try:
            counts.append(run(*case))
        except Exception:  # one configuration that cannot be built is one failed case, the same on every rank
            counts.append({"failed": traceback.format_exc()})
    target = Path(sys.argv[2]) / f"{os.environ['RANK']}.json"
    target.write_text(json.dumps(counts), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
