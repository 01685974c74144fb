# SPDX-License-Identifier: Apache-2.0
"""Demos of collectives and of divided models: tensor parallelism by AutoTP, a pipeline by PipelineModule."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from harness.runtime.demos.engine_demos import BOUND, _equality, build_batches, build_model, train_alone
from harness.runtime.demos.traffic_counter import TrafficCounter


def demo_collectives(counter: TrafficCounter) -> list[str]:  # noqa: ARG001 - as all demos
    """The result of each collective of `torch.distributed` on two ranks' tensors."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    own = torch.tensor([1.0, 2.0]) * 10**rank
    size = own.numel() * own.element_size()
    ring = size * (ranks - 1) // ranks
    reduced, gathered, scattered = own.clone(), torch.zeros(2 * ranks), torch.zeros(1)
    sent, exchanged = own.clone(), torch.zeros(2)
    dist.all_reduce(reduced)
    dist.all_gather_into_tensor(gathered, own)
    dist.reduce_scatter_tensor(scattered, own)
    dist.broadcast(sent, 0)
    dist.all_to_all_single(exchanged, own)
    expected = torch.tensor([11.0, 22.0])
    if not torch.equal(reduced, expected) or not torch.equal(scattered, expected[rank : rank + 1]):
        raise ValueError("a collective has another result than the sum of the ranks' tensors")
    rows = [
        ("all_reduce", reduced, 2 * ring, "sum, on every rank"),
        ("all_gather", gathered, size * (ranks - 1), "all tensors, on every rank"),
        ("reduce_scatter", scattered, ring, "sum, a part on each rank"),
        ("broadcast", sent, size, "rank 0's tensor, on every rank"),
        ("all_to_all", exchanged, ring, "part r of each rank, on rank r"),
    ]
    table: list[list[list[float]]] = [[] for _ in range(ranks)]
    dist.all_gather_object(table, [own.tolist(), *(each.tolist() for _, each, _, _ in rows)])
    lines = ["torch.distributed.all_reduce(tensor) and its kin, gloo, 2 ranks"]
    lines += [f"  rank {index} has {results[0]}" for index, results in enumerate(table)]
    for index, (name, _, moved, meaning) in enumerate(rows):
        results = " ".join(str(of_rank[index + 1]) for of_rank in table)
        lines.append(f"  {name:<15} {results:<48} {moved:>3} bytes sent by a rank (ring): {meaning}")
    return [*lines, "  all_reduce = reduce_scatter + all_gather, and equals the sum in one process to the bit"]


def demo_tensor_parallel(counter: TrafficCounter) -> list[str]:
    """A small Llama whose matrices AutoTP divides: columns first, then rows, whose parts are summed."""
    import deepspeed
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 128}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("llama", num_attention_heads=4, num_key_value_heads=2, **sizes)
    ).eval()
    ids = torch.arange(32).reshape(2, 16)
    with torch.no_grad():
        alone = model(ids).logits.clone()
    whole = sum(each.numel() for each in model.parameters())
    config = {"train_micro_batch_size_per_gpu": 2, "tensor_parallel": {"autotp_size": dist.get_world_size()}}
    config |= {"zero_optimization": {"stage": 0}, "zero_allow_untested_optimizer": True}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    local = sum(each.numel() for each in engine.module.parameters())
    counter.reset()
    with torch.no_grad():
        divided = engine.module(ids).logits
    difference = float((divided - alone).abs().max())
    if difference > BOUND:
        raise ValueError(f"the logits differ by {difference:g} from those of one process")
    return [
        "deepspeed.initialize(model, config={'tensor_parallel': {'autotp_size': 2}}): one forward pass",
        f"  {whole:,} parameters, {local:,} of them on each rank",
        *counter.lines(),
        "  every layer waits for two all-reduces: after the attention's rows and after the MLP's",
        f"  largest difference of a logit from one process: {difference:.1e}, at most {BOUND:g}",
    ]


def demo_pipeline(counter: TrafficCounter) -> list[str]:
    """Half of the layers on each rank; a stage waits for the other's first and last micro-batches."""
    import deepspeed
    from deepspeed.pipe import PipelineModule
    from deepspeed.runtime.pipe.schedule import TrainSchedule

    micro_batches, stages = 4, dist.get_world_size()
    model, batches = build_model(), build_batches()
    layers = list(model)  # type: ignore[call-overload]
    pipeline = PipelineModule(
        layers, num_stages=stages, loss_fn=torch.nn.functional.mse_loss, partition_method="uniform"
    )
    config = {
        "train_micro_batch_size_per_gpu": batches[0][0].shape[0] // micro_batches,
        "gradient_accumulation_steps": micro_batches,
        "gradient_clipping": 0.0,
    }
    optimizer = torch.optim.SGD(pipeline.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=pipeline, optimizer=optimizer, config=config)
    counter.reset()
    parts = ((x, y) for inputs, targets in batches for x, y in zip(inputs.chunk(4), targets.chunk(4), strict=True))
    for _ in batches:
        engine.train_batch(parts)
    lines = counter.lines()
    alone = train_alone()
    names = [int(name.partition(".")[0]) for name, _ in pipeline.named_parameters()]
    own = {f"{index}.{leaf}" for index in names for leaf in ("weight", "bias")}
    expected = dict(alone.named_parameters())
    mine = dict(pipeline.named_parameters())
    difference = max(float((mine[name].detach() - expected[name].detach()).abs().max()) for name in own & set(mine))
    chart = [_draw_stage(TrainSchedule(micro_batches, stages, stage)) for stage in range(stages)]
    share = (stages - 1) / (micro_batches + stages - 1)
    return [
        "PipelineModule(layers, num_stages=2) and engine.train_batch(data): 4 micro-batches a step",
        *lines,
        *(f"  stage {stage}: {each}" for stage, each in enumerate(chart)),
        f"  F forward, B backward, . waits: the bubble is (p - 1) / (m + p - 1) = {share:.0%} of the time",
        _equality(difference),
    ]


def _draw_stage(schedule: Any) -> str:
    """The passes of a stage in DeepSpeed's own schedule, one letter a slot."""
    slots = [[type(each).__name__ for each in step] for step in schedule.steps()]
    return " ".join("F" if "ForwardPass" in slot else "B" if "BackwardPass" in slot else "." for slot in slots)
