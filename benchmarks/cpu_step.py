# SPDX-License-Identifier: Apache-2.0
"""Seconds of a step of CPU Adam: as DeepSpeed makes it, in one pass over memory, and Adam alone.

    python benchmarks/cpu_step.py [--elements 120000000] [--rounds 40] [--layers 8] [--steps 12] [--write]

First one sub-group with bf16 gradients, by turns: cast, `mul_`, Adam and the cast to bf16, as ZeRO-3 does; one pass
(`harness/patches/one_pass_adam.py`); and DeepSpeed's Adam alone. Then an engine of ZeRO-3 with its optimizer on the
CPU, one rank and layers of 4,096 x 4,096 in bf16 (60: 1 B), with gradients of 8 rows: bare DeepSpeed and the harness's
patches, with the same JSON, twice each by turns, without the first step. Seconds of the wall and of the processor; the
latter say the same on a machine that others use. `--steps 0` leaves the engine out. `--write` puts both into
`benchmarks/results/cpu-step-DATE.md`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ["DS_ACCELERATOR"] = "cpu"

from harness.hostinfo.machine import cpu_model  # noqa: E402
from harness.hostinfo.torch_extensions import set_torch_extensions_dir  # noqa: E402

set_torch_extensions_dir(os.environ)
os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29671"}

import deepspeed  # noqa: E402
import torch  # noqa: E402
from deepspeed.ops.op_builder import CPUAdamBuilder  # noqa: E402

from harness.patches.cpu_offload_single_grad import cast_grads_on_step, skip_cpu_grad_copies  # noqa: E402
from harness.patches.one_pass_adam import install_one_pass, make_builder  # noqa: E402

WIDTH, ROWS = 4096, 8
SETTINGS = (1e-3, 0.9, 0.999, 1e-8, 0.01, True)
Times = dict[str, list[tuple[float, float]]]
"""Way -> seconds of the wall and of the processor, of each round."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=120_000_000)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.engine:
        run_engine(arguments.engine, arguments)
        return
    text = describe_sub_group(arguments, time_sub_group(arguments))
    print(text, flush=True)
    if arguments.steps:
        engines = describe_engines(arguments, *time_engines(arguments))
        print(engines)
        text += engines
    if arguments.write:
        day = datetime.now(UTC).strftime("%Y-%m-%d")
        (ROOT / "benchmarks" / "results" / f"cpu-step-{day}.md").write_text(text, encoding="utf-8")


def time_sub_group(arguments: argparse.Namespace) -> Times:
    """Three ways to step one sub-group."""
    count = arguments.elements
    plain, one_pass = CPUAdamBuilder().load(), make_builder().load()
    for op in (plain, one_pass):
        op.create_adam(900, *SETTINGS[:-1], True, False)
    master, first, second = torch.randn(count), torch.zeros(count), torch.zeros(count)
    gradient, weights, wide = torch.randn(count).bfloat16(), torch.zeros(count).bfloat16(), torch.zeros(count)
    number = 0

    def adam(*tensors: torch.Tensor) -> None:
        plain.adam_update(900, number, *SETTINGS, *tensors)

    def as_deepspeed() -> None:
        wide.copy_(gradient).mul_(0.37)
        adam(master, wide, first, second)
        weights.copy_(master)

    ways: dict[str, Callable[[], None]] = {
        "as DeepSpeed": as_deepspeed,
        "one pass": lambda: one_pass.adam_update_in_one_pass(
            900, number, *SETTINGS, master, gradient, first, second, 0.37, weights
        ),
        "Adam alone": lambda: adam(master, wide, first, second),
    }
    times: Times = {way: [] for way in ways}
    for _ in range(arguments.rounds):
        for way, run in ways.items():
            number += 1
            times[way].append(timed(run))
    return times


def time_engines(arguments: argparse.Namespace) -> tuple[Times, Times]:
    """(`engine.step`, the whole step) of the two engines, each twice, in its own process: two of 1 B do not fit."""
    steps: Times = {"bare DeepSpeed": [], "harness": []}
    wholes: Times = {way: [] for way in steps}
    digests = set()
    for way in (*steps, *steps):
        command = [sys.executable, __file__, "--layers", str(arguments.layers), "--steps", str(arguments.steps)]
        printed = subprocess.run([*command, "--engine", way], check=True, stdout=subprocess.PIPE, text=True).stdout
        answer = json.loads(printed.splitlines()[-1])
        steps[way] += answer["steps"]
        wholes[way] += answer["wholes"]
        digests.add(answer["digest"])
    if len(digests) > 1:
        sys.exit("the weights of the two engines differ")
    return steps, wholes


def run_engine(way: str, arguments: argparse.Namespace) -> None:
    """Print the times of one engine's steps, without the first, and a digest of its weights."""
    torch.manual_seed(0)
    rows = torch.randn(ROWS, WIDTH).bfloat16()
    engine = make_engine(arguments.layers, is_patched=way != "bare DeepSpeed")
    answer: dict[str, Any] = {"steps": [], "wholes": []}
    for _ in range(arguments.steps + 1):
        passes = timed(lambda: engine.backward(engine(rows).float().square().mean()))
        step = timed(engine.step)
        answer["steps"].append(step)
        answer["wholes"].append((passes[0] + step[0], passes[1] + step[1]))
    digest = hashlib.sha256()
    for parameter in engine.module.parameters():
        digest.update(parameter.ds_tensor.view(torch.uint8).numpy())
    print(json.dumps({key: times[1:] for key, times in answer.items()} | {"digest": digest.hexdigest()}))


def make_engine(layers: int, *, is_patched: bool) -> Any:
    config = {
        "train_micro_batch_size_per_gpu": ROWS,
        "bf16": {"enabled": True},
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "zero_optimization": {
            "stage": 3,
            "sub_group_size": 4 * WIDTH * WIDTH,
            "offload_optimizer": {"device": "cpu"},
            "stage3_param_persistence_threshold": 0,
        },
    }
    linears = [torch.nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16) for _ in range(layers)]
    model = torch.nn.Sequential(*linears)
    with skip_cpu_grad_copies() if is_patched else nullcontext():
        engine = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)[0]
    if is_patched:
        cast_grads_on_step(engine, bool)
        if reason := install_one_pass(engine):
            sys.exit(reason)
    return engine


def timed(run: Callable[[], Any]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu


def describe_sub_group(arguments: argparse.Namespace, sub_group: Times) -> str:
    size = f"{arguments.elements / 1e6:.0f} M elements"
    versions = ", ".join(f"{name} {version(name)}" for name in ("deepspeed", "torch"))
    return "\n".join(
        [
            "# A step of CPU Adam",
            "",
            f"`python benchmarks/cpu_step.py --elements {arguments.elements} --rounds {arguments.rounds} --layers"
            f" {arguments.layers} --steps {arguments.steps}`: {versions}, {torch.get_num_threads()} threads of"
            f" {cpu_model()}. Seconds of the wall and, in brackets, of the processor; ratios are of the processor's"
            " minima and, in brackets, of its first quartiles. Ways alternate within each round; the"
            f" machine's load was {os.getloadavg()[1]:.1f}.",
            "",
            f"One sub-group of {size}, bf16 gradients, {arguments.rounds} rounds:",
            "",
            *table(sub_group, "as DeepSpeed", "Adam alone"),
            "",
        ]
    )


def describe_engines(arguments: argparse.Namespace, steps: Times, wholes: Times) -> str:
    parameters = arguments.layers * WIDTH * WIDTH / 1e6
    return "\n".join(
        [
            "",
            f"`engine.step()` of ZeRO-3 with its optimizer on the CPU, {parameters:.0f} M parameters on 1 rank,"
            f" twice {arguments.steps} steps:",
            "",
            *table(steps, "bare DeepSpeed"),
            "",
            f"The same with forward and backward pass of {ROWS} rows. All weights are the same to the bit:",
            "",
            *table(wholes, "bare DeepSpeed"),
            "",
        ]
    )


def table(times: Times, *bases: str) -> list[str]:
    def best(way: str, clock: int, share: float = 0.0) -> float:
        values = sorted(each[clock] for each in times[way])
        return values[int(share * len(values))]

    heads = ["", "Minimum", "First quartile", *(f"By {base}" for base in bases)]
    lines = [f"| {' | '.join(heads)} |", "| --- |" + " ---: |" * (len(heads) - 1)]
    for way in times:
        cells = [f"{best(way, 0, share):.3f} ({best(way, 1, share):.3f})" for share in (0.0, 0.25)]
        cells += [
            f"{best(way, 1) / best(base, 1):.2f} ({best(way, 1, 0.25) / best(base, 1, 0.25):.2f})" for base in bases
        ]
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    main()
