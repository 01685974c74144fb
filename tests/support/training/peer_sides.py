# SPDX-License-Identifier: Apache-2.0
"""Peers that users would train with instead, each by its own documented means: a bare DeepSpeed script, Hugging Face's
Trainer, accelerate, FSDP2. Nothing of the harness. Every one takes the same model folder, the same batches and, but for FSDP2, the
same DeepSpeed JSON, and returns the loss of each step, averaged over ranks. No tests.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments, get_scheduler
from transformers.integrations import HfDeepSpeedConfig
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

Batch = Mapping[str, torch.Tensor]


@dataclass
class Work:
    """`batches`: of this rank, one a step; a schedule by its name in `transformers`."""

    model: Path
    batches: Sequence[Batch]
    config: dict[str, Any]
    dtype: torch.dtype = torch.float32
    schedule: str = "constant"
    warmup: int = 0
    out: Path = Path("out")

    @property
    def steps(self) -> int:
        return len(self.batches)

    @property
    def stage(self) -> int:
        return int(self.config.get("zero_optimization", {}).get("stage", 0))

    @property
    def adam(self) -> dict[str, Any]:
        """The parameters of the JSON's optimizer."""
        found: dict[str, Any] = self.config["optimizer"]["params"]
        return found


def watch_deepspeed(ended: Callable[[], None]) -> None:
    """Call `ended` at the end of every optimizer step of every engine of this process, from now on."""
    step = deepspeed.DeepSpeedEngine.step

    def stepping(engine: Any, *arguments: Any, **options: Any) -> Any:
        boundary = engine.is_gradient_accumulation_boundary()
        out = step(engine, *arguments, **options)
        if boundary:
            ended()
        return out

    deepspeed.DeepSpeedEngine.step = stepping


def averaged(losses: Sequence[torch.Tensor]) -> list[float]:
    """Over the ranks."""
    both = torch.stack([loss.detach().double().reshape(()) for loss in losses])
    dist.all_reduce(both)
    return [float(x) for x in both / dist.get_world_size()]


def grouped(model: Any) -> list[dict[str, Any]]:
    """Matrices decay, vectors do not: as Trainer has it."""
    named = list(model.named_parameters())
    vectors = [p for _, p in named if len(getattr(p, "ds_shape", p.shape)) == 1]
    matrices = [p for _, p in named if len(getattr(p, "ds_shape", p.shape)) > 1]
    return [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]


def raw(work: Work) -> list[float]:
    """DeepSpeed's own three lines."""
    alive = HfDeepSpeedConfig(work.config) if work.stage == 3 else None
    model = AutoModelForCausalLM.from_pretrained(work.model, dtype=work.dtype).train()

    def schedule(optimizer: Any) -> Any:
        return get_scheduler(work.schedule, optimizer, work.warmup, work.steps)

    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=grouped(model), config=work.config, lr_scheduler=schedule
    )
    losses = []
    for batch in work.batches:
        loss = engine(**batch, use_cache=False).loss
        engine.backward(loss)
        engine.step()
        losses.append(loss.detach())
    del alive
    return averaged(losses)


class _Rows(torch.utils.data.Dataset):
    """Rows in the order in which Trainer and accelerate deal batches out: the first batch of each rank, then the next."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, [dict(batch) for batch in batches])
        self._rows = [
            {name: tensor[row] for name, tensor in batch.items()}
            for step in zip(*every, strict=True)
            for batch in step
            for row in range(len(batch["input_ids"]))
        ]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self._rows[index]


def trainer(work: Work) -> list[float]:
    """Hugging Face's Trainer with the JSON; its logging is left at its default."""
    adam, losses = work.adam, []
    arguments = TrainingArguments(
        output_dir=str(work.out),
        deepspeed=work.config,
        use_cpu=not torch.cuda.is_available(),
        per_device_train_batch_size=len(work.batches[0]["input_ids"]),
        gradient_accumulation_steps=1,
        max_steps=work.steps,
        learning_rate=adam["lr"],
        adam_beta1=adam["betas"][0],
        adam_beta2=adam["betas"][1],
        adam_epsilon=adam["eps"],
        weight_decay=adam["weight_decay"],
        max_grad_norm=work.config["gradient_clipping"],
        lr_scheduler_type=work.schedule,
        warmup_steps=work.warmup,
        bf16=work.dtype is torch.bfloat16,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    model = AutoModelForCausalLM.from_pretrained(work.model, dtype=work.dtype)
    rows = _Rows(work.batches)

    class InOrder(Trainer):
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(rows)

        def training_step(self, *given: Any, **named: Any) -> torch.Tensor:
            loss = super().training_step(*given, **named)
            losses.append(loss.detach())
            return loss

    InOrder(model=model, args=arguments, train_dataset=rows).train()
    unset_hf_deepspeed_config()  # for whoever builds a model next in this process
    AcceleratorState._reset_state(reset_partial_state=True)
    return averaged(losses)


def accelerate(work: Work) -> list[float]:
    """accelerate's loop with the JSON."""
    from accelerate import Accelerator, DeepSpeedPlugin
    from accelerate.utils import DummyOptim

    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"  # as `accelerate launch` says it
    accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=work.config))
    model = AutoModelForCausalLM.from_pretrained(work.model, dtype=work.dtype).train()
    engine, optimizer = accelerator.prepare(model, DummyOptim(grouped(model), lr=work.adam["lr"]))
    losses = []
    for batch in work.batches:
        loss = engine(**batch, use_cache=False).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return averaged(losses)


def fsdp2(work: Work, ended: Callable[[], None]) -> list[float]:
    """`fully_shard` on each layer and the rest; at stage 2 weights stay gathered between forward and backward."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    kind = "cuda" if torch.cuda.is_available() else "cpu"
    mesh = init_device_mesh(kind, (dist.get_world_size(),))
    model = AutoModelForCausalLM.from_pretrained(work.model, dtype=torch.float32).train()
    half = work.dtype is torch.bfloat16
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16) if half else MixedPrecisionPolicy()
    for part in [*model.model.layers, model]:
        fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=work.stage == 3)
    adam = work.adam
    decay = {"lr": adam["lr"], "betas": tuple(adam["betas"]), "eps": adam["eps"], "weight_decay": adam["weight_decay"]}
    optimizer = torch.optim.AdamW(grouped(model), fused=True, **decay)
    schedule, losses = get_scheduler(work.schedule, optimizer, work.warmup, work.steps), []
    for batch in work.batches:
        loss = model(**batch, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), work.config["gradient_clipping"])
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        ended()
        losses.append(loss.detach())
    return averaged(losses)
