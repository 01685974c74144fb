# SPDX-License-Identifier: Apache-2.0
"""Demos by DeepSpeed's engine: data parallelism, the ZeRO stages, offload and accumulation beside one process."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist

from harness.runtime.demos.traffic_counter import TrafficCounter

_WIDTH, _ROWS, _STEPS, _RATE = 64, 8, 3, 0.1
BOUND = 1e-5
"""The largest difference of a weight that the order of additions may make."""


def build_model() -> torch.nn.Module:
    """Two layers, the same on every rank."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(_WIDTH, 4 * _WIDTH), torch.nn.Tanh(), torch.nn.Linear(4 * _WIDTH, _WIDTH)
    )


def build_batches(steps: int = _STEPS) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The same inputs and targets on every rank."""
    torch.manual_seed(1)
    return [(torch.randn(_ROWS, _WIDTH), torch.randn(_ROWS, _WIDTH)) for _ in range(steps)]


def train_alone() -> torch.nn.Module:
    """The steps in one process, on whole batches."""
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=_RATE)
    for inputs, targets in build_batches():
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    return model


def train_with_engine(
    zero: dict[str, Any], counter: TrafficCounter, *, accumulation: int = 1, slow_rank: int | None = None
) -> float:
    """The same steps by `deepspeed.initialize`, each rank on its rows; the largest difference of a weight from those of
    one process. `slow_rank` sleeps a fifth of a second before each backward pass.
    """
    import deepspeed

    rank, ranks, model = dist.get_rank(), dist.get_world_size(), build_model()
    config = {
        "train_micro_batch_size_per_gpu": _ROWS // ranks // accumulation,
        "gradient_accumulation_steps": accumulation,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "gradient_clipping": 0.0,
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=_RATE)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    counter.reset()
    for inputs, targets in build_batches():
        rows = torch.arange(_ROWS).chunk(ranks)[rank].chunk(accumulation)
        for part in rows:
            loss = torch.nn.functional.mse_loss(engine(inputs[part]), targets[part])
            if rank == slow_rank:
                time.sleep(0.2)
            engine.backward(loss)
            engine.step()
    counted = {name: vars(count).copy() for name, count in counter.counts.items()}
    difference = _difference(engine.module, int(zero["stage"]))
    counter.counts.clear()
    for name, values in counted.items():
        vars(counter.counts[name]).update(values)
    return difference


def _difference(module: torch.nn.Module, stage: int) -> float:
    import deepspeed

    with deepspeed.zero.GatheredParameters(list(module.parameters()), enabled=stage == 3):
        pairs = zip(module.parameters(), train_alone().parameters(), strict=True)
        return max(float((mine.detach().float() - alone.detach()).abs().max()) for mine, alone in pairs)


def demo_data_parallel(counter: TrafficCounter) -> list[str]:
    """Each rank has half of the batch; one all-reduce averages the gradients; the slower rank sets the pace."""
    difference = train_with_engine({"stage": 0}, counter, slow_rank=1)
    waited = torch.tensor([sum(count.seconds for count in counter.counts.values())])
    seconds = [torch.zeros(1) for _ in range(dist.get_world_size())]
    lines = counter.lines()
    dist.all_gather(seconds, waited)
    return [
        f"deepspeed.initialize(model, config={{'zero_optimization': {{'stage': 0}}}}): {_STEPS} steps of {_ROWS} rows,"
        " half of them on each rank",
        *lines,
        *(f"  rank {rank} waited {float(each):.2f} s in collectives" for rank, each in enumerate(seconds)),
        "  rank 1 sleeps 0.2 s before each backward pass: it is the straggler, and rank 0 waits for it",
        _equality(difference),
    ]


def demo_zero(counter: TrafficCounter) -> list[str]:
    """Every stage has the same result; what a rank keeps and sends differs."""
    lines = ["deepspeed.initialize(model, config={'zero_optimization': {'stage': S}}) for S of 0 to 3"]
    for stage in range(4):
        zero = {"stage": stage} | ({"stage3_param_persistence_threshold": 0} if stage == 3 else {})
        difference = train_with_engine(zero, counter)
        lines += [f"stage {stage}: {_KEPT[stage]}", *counter.lines(), _equality(difference)]
    return lines


_KEPT = (
    "every rank has all weights, gradients and states, as in DDP",
    "a rank has the states of its half of the parameters",
    "a rank has the states and the gradients of its half",
    "a rank has half of everything; weights are gathered for each layer, forward and backward",
)


def demo_offload(counter: TrafficCounter) -> list[str]:
    """The optimizer's states in host memory: the same steps, the same collectives."""
    lines = ["deepspeed.initialize(..., 'zero_optimization': {'stage': 2, 'offload_optimizer': {'device': 'cpu'}})"]
    parameters = sum(each.numel() for each in build_model().parameters())
    for name, more in (("on the device", {}), ("on the host", {"offload_optimizer": {"device": "cpu"}})):
        difference = train_with_engine({"stage": 2, **more}, counter)
        lines += [f"states {name}:", *counter.lines(), _equality(difference)]
    moved = 4 * parameters // dist.get_world_size()
    lines.append(
        f"  on a GPU each rank would send {moved:,} bytes of fp32 gradients down and as many of weights up a step"
    )
    return lines


def demo_accumulation(counter: TrafficCounter) -> list[str]:
    """Four micro-batches a step instead of one: stage 1 reduces once a step, stage 2 after each micro-batch."""
    lines = ["deepspeed.initialize(..., 'gradient_accumulation_steps': K)"]
    for stage, accumulation in ((1, 1), (1, 4), (2, 4)):
        difference = train_with_engine({"stage": stage}, counter, accumulation=accumulation)
        lines += [f"stage {stage}, K = {accumulation}:", *counter.lines(), _equality(difference)]
    return lines


def _equality(difference: float) -> str:
    if difference > BOUND:
        raise ValueError(f"the weights differ by {difference:g} from those of one process")
    return f"  largest difference of a weight from one process: {difference:.1e}, at most {BOUND:g}"
