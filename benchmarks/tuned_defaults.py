# SPDX-License-Identifier: Apache-2.0
"""Effect of each tuned default: time, bytes on the wire, Python calls, peak memory.

    python benchmarks/tuned_defaults.py [--short] [--ranks 2] [--rounds 7] [--bf16] [--length 256] [--only stage-3]
        [--write FILE]

Every way to train is an engine of its own in the same processes, and they take steps by turns in one run, forwards and
backwards through the list. Times are CPU time of rank 0, as ratios to DeepSpeed's defaults within each round: median,
least and most. Bytes on the wire are counted by standing before torch's collectives, calls by `sys.setprofile`, peak
bytes by a dispatch mode that follows every storage which a step allocates. The model is a Llama of 4 layers, 256 wide.
`stage-3` has FSDP2 beside it; `loss` compares head and loss by themselves at 128,256 words, `loss-autotp` in a step of
one layer whose head AutoTP cuts. Overlap of collectives and copies shows on a GPU only: this script runs there as it is
(`--ranks` as many as there are GPUs).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import loss_ways  # noqa: E402
from counting import calls_of, peak, watch_the_wire, wire  # noqa: E402
from small_runs import LLAMA  # noqa: E402

from harness.launching.hosts.local_host import find_free_port  # noqa: E402

GROUPS = ("stage-1", "stage-2", "stage-3", "loss", "loss-autotp")
WARM_UP = 3


@dataclass
class Side:
    """One way to train, and what was found out about it."""

    name: str
    step: Callable[[Any], Any]
    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    wire: float = 0.0
    collectives: int = 0
    calls: int = 0
    peak: int = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="3 rounds of one step: two minutes on a quiet machine")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3, help="of each way in a round")
    parser.add_argument("--rows", type=int, default=2, help="sequences a rank and step")
    parser.add_argument("--length", type=int, default=256, help="tokens of a sequence")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--only", choices=GROUPS, action="append")
    parser.add_argument("--write", type=Path, help="write the tables there as Markdown")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.short:
        arguments.rounds, arguments.steps, arguments.rows = 3, 1, 1
    if arguments.measure:
        measure(arguments)
        return
    tables = []
    for group in arguments.only or GROUPS:
        tables.append(table(group, start(group, arguments), arguments))
        print(tables[-1], flush=True)
    if arguments.write:
        arguments.write.write_text("\n".join(tables), encoding="utf-8")


def start(group: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The ranks as processes of this machine; what rank 0 counted."""
    ranks = 1 if group == "loss" else arguments.ranks
    with tempfile.TemporaryDirectory(prefix="choices-") as scratch:
        port = str(find_free_port())
        env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "MASTER_ADDR": "127.0.0.1"}
        env |= {"MASTER_PORT": port, "CROSS_RANK": "0", "CROSS_SIZE": "1"}
        env |= dict.fromkeys(("WORLD_SIZE", "LOCAL_SIZE", "LOCAL_WORLD_SIZE"), str(ranks))
        command = [sys.executable, __file__, "--measure", scratch, "--only", group, "--rounds", str(arguments.rounds)]
        command += ["--steps", str(arguments.steps), "--rows", str(arguments.rows), *["--bf16"] * arguments.bf16]
        command += ["--length", str(arguments.length)]
        begun = [
            subprocess.Popen(command, env={**env, "RANK": str(r), "LOCAL_RANK": str(r)}, stdout=sys.stderr)
            for r in range(ranks)
        ]
        codes = [process.wait() for process in begun]
        for buffer in Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{port}_*"):  # noqa: S108
            buffer.unlink(missing_ok=True)
        if any(codes):
            raise SystemExit(f"the ranks ended with {codes}")
        return list(json.loads((Path(scratch) / "result.json").read_text(encoding="utf-8")))


def measure(arguments: argparse.Namespace) -> None:
    """One rank's life."""
    import torch

    torch.set_num_threads(1)
    group = arguments.only[0]
    if group.startswith("loss"):
        ways = loss_ways.alone(arguments.bf16) if group == "loss" else loss_ways.cut_over_ranks(arguments.bf16)
        sides, feed = [Side(name, step) for name, step in ways.items()], lambda _: None
    else:
        sides, feed = engine_sides(int(group[-1]), arguments)
    count(sides, feed)
    for turn in range(arguments.rounds):
        for side in sides if turn % 2 == 0 else reversed(sides):
            together()
            cpu, wall = time.process_time(), time.perf_counter()
            for step in range(arguments.steps):
                side.step(feed(step))
            side.cpu.append((time.process_time() - cpu) / arguments.steps)
            side.wall.append((time.perf_counter() - wall) / arguments.steps)
    if os.environ["RANK"] == "0":
        found = [{name: value for name, value in vars(side).items() if name != "step"} for side in sides]
        (arguments.measure / "result.json").write_text(json.dumps(found), encoding="utf-8")
    together()
    sys.stdout.flush()
    os._exit(0)


def together() -> None:
    """All ranks begin at once."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.barrier()


def count(sides: list[Side], feed: Callable[[int], Any]) -> None:
    """Warm up, then one step each for the wire, the calls and the peak."""
    for side in sides:
        for step in range(WARM_UP):
            side.losses.append(float(side.step(feed(step))))
        with wire() as moved:
            side.step(feed(3))
        side.wire, side.collectives = moved["bytes"], int(moved["calls"])
        side.calls = calls_of(lambda side=side: side.step(feed(4)))
        with peak() as held:
            side.step(feed(5))
        side.peak = held["peak"]


def engine_sides(stage: int, arguments: argparse.Namespace) -> tuple[list[Side], Callable[[int], Any]]:
    """DeepSpeed's defaults, each choice alone, all of them; at stage 3 FSDP2 too."""
    import deepspeed
    import torch
    import torch.distributed as dist

    from harness.plan.tuned_defaults.rules import with_tuned_defaults
    from harness.render import render_ds_config
    from harness.run.resolved_run import resolve_run
    from harness.spec.run_spec import RunSpec

    watch_the_wire()
    deepspeed.utils.logger.setLevel("ERROR")
    deepspeed.init_distributed()
    raw = {
        "model": {"config": LLAMA},
        "data": {"max_length": arguments.length},
        "train": {"per_device_train_batch_size": arguments.rows},
        "optimizer": {"learning_rate": 1e-3},
        "precision": {"bf16": arguments.bf16},
        "zero": {"stage": stage},
    }
    run = with_tuned_defaults(resolve_run(RunSpec.model_validate(raw), world_size=dist.get_world_size()))
    choices = tuple(choice for choice in run.tuned_defaults or () if not choice.ours)
    ways = {"DeepSpeed's defaults": ()} | {choice.name: (choice,) for choice in choices} | {"all of them": choices}
    sides = []
    for name, some in ways.items():
        config = render_ds_config(run._replace(tuned_defaults=some)).config
        sides.append(Side(name, _deepspeed_step(config, arguments.bf16)))
    if stage == 3:
        config = render_ds_config(run).config
        sides.append(
            Side("all, leaf parameters cached", _caching_leaf_parameters(_deepspeed_step(config, arguments.bf16)))
        )
    if stage in (1, 2):
        config = json.loads(render_ds_config(run._replace(tuned_defaults=())).json_text)
        config["zero_optimization"]["use_multi_rank_bucket_allreduce"] = False
        sides.append(Side("gradients to their owners, not chosen", _deepspeed_step(config, arguments.bf16)))
    if stage == 3:
        sides.append(Side("FSDP2", _fsdp_step(arguments.bf16)))
    generator = torch.Generator().manual_seed(dist.get_rank())
    words = LLAMA["vocab_size"]
    rows = [torch.randint(0, words, (arguments.rows, arguments.length), generator=generator) for _ in range(8)]
    return sides, lambda step: rows[step % 8]


def _model(bf16: bool) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**LLAMA))
    return model.bfloat16() if bf16 else model.float()


def _deepspeed_step(config: Any, bf16: bool) -> Callable[[Any], Any]:
    import deepspeed

    model = _model(bf16)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=dict(config))

    def step(ids: Any) -> Any:
        loss = engine(input_ids=ids, labels=ids, use_cache=False).loss
        engine.backward(loss)
        engine.step()
        return loss.detach()

    return step


def _caching_leaf_parameters(step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same engine, with the patch `zero3-leaf-params`."""
    from harness.patches.zero3_leaf_params import leaf_parameter_cache

    def cached_step(ids: Any) -> Any:
        with leaf_parameter_cache():
            return step(ids)

    return cached_step


def _fsdp_step(bf16: bool) -> Callable[[Any], Any]:
    """Each layer and the rest, fp32 masters as DeepSpeed has them in bf16, the same optimizer and clipping."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh, model = init_device_mesh("cpu", (dist.get_world_size(),)), _model(bf16=False)
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16) if bf16 else MixedPrecisionPolicy()
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, fused=True)

    def step(ids: Any) -> Any:
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def table(group: str, found: list[dict[str, Any]], arguments: argparse.Namespace) -> str:
    """One group as Markdown; the first row is what the ratios are of."""
    first, kind = found[0], "bf16" if arguments.bf16 else "fp32"
    ranks = 1 if group == "loss" else arguments.ranks
    rows = "" if group.startswith("loss") else f" with {arguments.rows} x {arguments.length} tokens"
    turns = f"{arguments.rounds} rounds of {arguments.steps} steps"
    lines = [
        f"## {group}, {kind}, {ranks} rank{'s' * (ranks > 1)}{rows}, {turns}",
        "",
        "| way | CPU ms a step | ratio: median (least, most) | wall, ratio | wire MB | collectives | calls | peak MB |"
        " loss of step 3 |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in found:
        cpu = [a / b for a, b in zip(row["cpu"], first["cpu"], strict=True)]
        wall = [a / b for a, b in zip(row["wall"], first["wall"], strict=True)]
        lines.append(
            f"| {row['name']} | {1e3 * statistics.median(row['cpu']):.1f} | {statistics.median(cpu):.3f}"
            f" ({min(cpu):.3f}, {max(cpu):.3f}) | {statistics.median(wall):.3f} | {row['wire'] / 1e6:.2f} |"
            f" {row['collectives']} | {row['calls']:,} | {row['peak'] / 1e6:.1f} | {row['losses'][-1]:.7f} |"
        )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
