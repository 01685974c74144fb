# SPDX-License-Identifier: Apache-2.0
"""Small trainings for checks: run specs with random weights and local text, engines of both sides, digests."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu_checks.check import SEED, Scene

WORDS = "the of a shard rank step loss token gradient swaps gathers keeps every when weights".split()


def llama(hidden: int, layers: int, **fields: Any) -> dict[str, Any]:
    """A configuration with heads of at most 128 elements."""
    heads = max(1, hidden // 128) if hidden >= 512 else 4
    plain = {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": hidden * 2,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "vocab_size": 320,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    }
    return plain | fields


def write_text(folder: Path, lines: int = 400) -> Path:
    """A file of text, the same for every rank that writes it."""
    file = folder / "text.txt"
    text = "\n".join(" ".join(WORDS[(n * k) % len(WORDS)] for k in range(3 + n % 12)) for n in range(1, lines))
    if not file.is_file():
        part = folder / f"text-{os.getpid()}.part"
        part.write_text(text, encoding="utf-8")
        part.replace(file)
    return file


def make_spec(folder: Path, model: dict[str, Any], **sections: dict[str, Any]) -> dict[str, Any]:
    """A run spec with these sections over those of a short run."""
    base: dict[str, Any] = {
        "name": "gpu-check",
        "model": {"config": model, "tokenizer": "bytes"},
        "data": {"train": str(write_text(folder)), "max_length": 32, "eval_fraction": 0.0},
        "train": {
            "max_steps": 6,
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 1,
            "seed": SEED,
            "max_grad_norm": 1.0,
        },
        "optimizer": {"learning_rate": 1e-2, "weight_decay": 0.1},
        "scheduler": {"type": "constant"},
        "precision": {"bf16": True},
        "checkpoint": {"save_at_end": False},
    }
    return {k: {**base.get(k, {}), **sections[k]} if k in sections else base[k] for k in base | sections}


def resolve(spec: dict[str, Any], world_size: int, *, tuned: bool = False) -> Any:
    """The resolved run; `tuned`: with the harness's defaults, as `harness launch` has them."""
    from harness.plan.tuned_defaults.rules import with_tuned_defaults
    from harness.run.resolved_run import resolve_run
    from harness.spec.run_spec import RunSpec

    run = resolve_run(RunSpec.model_validate_json(json.dumps(spec)), world_size=world_size)
    return with_tuned_defaults(run, Path.cwd()) if tuned else run


def render(run: Any) -> dict[str, Any]:
    """The DeepSpeed JSON of a run."""
    from harness.render import render_ds_config

    config: dict[str, Any] = json.loads(render_ds_config(run).json_text)
    return config


def make_model(config: dict[str, Any]) -> Any:
    """A model with the same random weights in every process, on the CPU, in fp32."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(SEED)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(**config)).float()


def build_harness_engine(scene: Scene, run: Any, model: Any, zero: Mapping[str, Any] | None = None) -> Any:
    """The engine as a run has it, with its patches; `zero` changes `zero_optimization` of its JSON."""
    from harness.runtime.engine import build_engine
    from harness.runtime.patch_selection import resolve_patches

    config, distributed = render(run), scene.distributed
    config["zero_optimization"] |= zero or {}
    patches = resolve_patches(run, config, is_main_process=distributed.is_main_process)
    return build_engine(run, config, model, run.spec.train.max_steps, patches, distributed)


def build_plain_engine(scene: Scene, run: Any, model: Any) -> Any:
    """DeepSpeed by itself with the same JSON, parameter groups and schedule, and none of the harness's patches but the
    one without which a run with weights on NVMe ends ("already assigned swap buffer id").
    """
    import deepspeed

    from harness.patches.nvme_prefetch_duplicate import drop_duplicate_prefetches
    from harness.runtime.engine import weight_decay_groups
    from harness.runtime.lr_schedule import scheduler_factory

    config = render(run)
    scene.join()
    decay = config["optimizer"].get("params", {}).get("weight_decay", 0.0)
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=weight_decay_groups(model, decay),
        config=config,
        lr_scheduler=scheduler_factory(run.spec.scheduler, run.spec.train.max_steps),
    )
    drop_duplicate_prefetches(engine, bool)
    return engine


def train_on_rows(engine: Any, steps: int, length: int, vocabulary: int, rank: int) -> list[float]:
    """Losses of so many steps, each on rows of its own."""
    import torch

    losses, generator = [], torch.Generator().manual_seed(SEED + rank)
    for _ in range(steps * engine.gradient_accumulation_steps()):
        row = torch.randint(0, vocabulary, (1, length), generator=generator).to(engine.device)
        loss = engine(input_ids=row, labels=row, use_cache=False).loss
        engine.backward(loss)
        engine.step()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]


def digest_masters(engine: Any) -> str:
    """sha256 of this rank's fp32 master weights at stage 3, wherever they are, and of the weights it computes with.
    A collective, where weights are on NVMe.
    """
    import torch
    from deepspeed.utils import safe_get_local_fp32_param

    digest = hashlib.sha256()
    for parameter in engine.module.parameters():
        master = safe_get_local_fp32_param(parameter)
        for tensor in (master, _read_weight(parameter)):
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def count_on_nvme(engine: Any) -> int:
    """Weights whose shards are files."""
    return sum(_is_on_nvme(parameter) for parameter in engine.module.parameters())


def _is_on_nvme(parameter: Any) -> bool:
    from deepspeed.runtime.zero.offload_config import OffloadDeviceEnum

    return bool(parameter.ds_tensor.final_location == OffloadDeviceEnum.nvme)


def _read_weight(parameter: Any) -> Any:
    """This rank's shard; of a weight on NVMe all of it, which DeepSpeed reads and gathers."""
    import deepspeed

    if not _is_on_nvme(parameter):
        return parameter.ds_tensor
    with deepspeed.zero.GatheredParameters([parameter]):
        return parameter.detach().clone()
