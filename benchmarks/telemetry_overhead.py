# SPDX-License-Identifier: Apache-2.0
"""Overhead of telemetry on a step, on a model whose steps take about 50 ms.

    python benchmarks/telemetry_overhead.py [--ranks 2] [--pairs 300] [--write]

The same ranks take steps with and without everything that is measured, by turns in one run: parts, collectives, FLOPs,
memory, the line, and every fifth step the message between ranks. Both know the loss over all ranks and look for NaN.
Next to the ratio of times stands the CPU time of the measuring itself, which other programs do not change.
`--write` puts the figures, the spec and the versions into `benchmarks/results/telemetry_overhead.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from contextlib import nullcontext
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "telemetry_overhead.json"
STEP_SECONDS = 0.05
WARM_UP = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--pairs", type=int, default=300, help="steps of each kind")
    parser.add_argument("--stage", type=int, default=2, help="of ZeRO")
    parser.add_argument("--rows", type=int, help="a rank and step (default: as many as take 50 ms)")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/telemetry_overhead.json")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if arguments.measure:
        measure(arguments.measure, arguments.rows, arguments.pairs, arguments.stage)
        return
    rows = arguments.rows or fitting_rows(arguments.ranks, arguments.stage)
    result = start(arguments.ranks, rows, arguments.pairs, arguments.stage)
    print(json.dumps(result, indent=1))
    if arguments.write:
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def fitting_rows(ranks: int, stage: int) -> int:
    """Rows with which a step takes about 50 ms: from the time of one row and of eight."""
    one, eight = (start(ranks, rows, 10, stage)["bare_step_seconds"] for rows in (1, 8))
    each = max((eight - one) / 7, 1e-4)
    return max(1, round((STEP_SECONDS - one) / each) + 1)


def start(ranks: int, rows: int, pairs: int, stage: int) -> dict[str, Any]:
    """The ranks, as processes of this machine; what the first of them found."""
    from harness.launching.hosts.local_host import find_free_port

    with tempfile.TemporaryDirectory(prefix="telemetry-overhead-") as scratch:
        port = str(find_free_port())
        env = {**os.environ, "OMP_NUM_THREADS": "1", "HARNESS_PROGRESS": "none", "HF_HUB_OFFLINE": "1"}
        env |= {"WORLD_SIZE": str(ranks), "LOCAL_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
        env |= {"CROSS_RANK": "0", "CROSS_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        command = [sys.executable, __file__, "--measure", scratch, "--rows", str(rows), "--pairs", str(pairs)]
        command += ["--stage", str(stage)]
        begun = [
            subprocess.Popen(command, env={**env, "RANK": str(r), "LOCAL_RANK": str(r)}, stdout=sys.stderr)
            for r in range(ranks)
        ]
        codes = [process.wait() for process in begun]
        for buffer in Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{port}_*"):  # noqa: S108
            buffer.unlink(missing_ok=True)
        if any(codes):
            raise SystemExit(f"the ranks ended with {codes}")
        return dict(json.loads((Path(scratch) / "result.json").read_text(encoding="utf-8")))


def spec(rows: int, stage: int, steps: int) -> dict[str, Any]:
    config = {
        "model_type": "llama",
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": 320,
        "max_position_embeddings": 128,
    }
    return {
        "name": "telemetry-overhead",
        "model": {"config": config, "tokenizer": "bytes"},
        "data": {"train": "builtin:python-docs", "max_length": 64, "eval_fraction": 0.0},
        "train": {
            "max_steps": steps,
            "per_device_train_batch_size": rows,
            "gradient_accumulation_steps": 1,
            "seed": 1,
        },
        "optimizer": {"learning_rate": 1e-4},
        "zero": {"stage": stage},
        "telemetry": {"peak_flops": 1e12},
        "checkpoint": {"save_at_end": False},
        "launch": {"engine_checks": "off"},
    }


class Nothing:
    """A timer that notes nothing."""

    def span(self, name: str) -> Any:  # noqa: ARG002
        return nullcontext()


def measure(scratch: Path, rows: int, pairs: int, stage: int) -> None:
    """On each rank: steps of both kinds by turns, in an order drawn alike on all."""
    from harness.runtime.checkpoint.metadata import package_versions
    from harness.runtime.distributed import destroy_process_group, init_process_group

    ranks = init_process_group()
    body = spec(rows, stage, 2 * (pairs + WARM_UP) + 1)
    both = Both(ranks, scratch, body)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    draw = random.Random(1)  # noqa: S311
    for number in range(pairs + WARM_UP):
        for measured in draw.sample([True, False], 2):
            spent = both.step(measured=measured)
            if number >= WARM_UP:
                seconds[measured].append(spent)
    both.count_calls()
    both.job.metrics.close()
    if ranks.is_main_process:
        result = summary(seconds[False], seconds[True])
        device = both.telemetry.device_peak.device
        own = both.own_seconds()
        result["own_cpu_seconds"] = round(own, 7)
        result["collectives"] = both._calls
        result["own_cpu_over_bare"] = round(own / result["bare_step_seconds"], 5)
        result |= {"ranks": ranks.world_size, "device": device, "versions": package_versions(), "spec": body}
        (scratch / "result.json").write_text(json.dumps(result), encoding="utf-8")
    destroy_process_group()


class Both:
    """One engine, and the two ways to take its next step."""

    def __init__(self, ranks: Any, scratch: Path, body: dict[str, Any]) -> None:
        from deepspeed.comm import comm

        from harness.render import render_ds_config
        from harness.run.resolved_run import resolve_run
        from harness.runtime.nonfinite_policy import NonfinitePolicy
        from harness.runtime.rank_status import RankStatusWriter
        from harness.runtime.run_config import RunDir
        from harness.runtime.telemetry.run_telemetry import Telemetry
        from harness.runtime.train_context import build_context
        from harness.runtime.train_state import TrainState
        from harness.runtime.worker import _load_run_config_on_all_ranks, _set_log_levels
        from harness.spec.run_spec import RunSpec

        run = resolve_run(RunSpec.model_validate_json(json.dumps(body)), world_size=ranks.world_size)
        if ranks.is_main_process:
            (scratch / "spec.resolved.json").write_text(json.dumps(run.to_json()), encoding="utf-8")
            (scratch / "ds_config.json").write_text(json.dumps(dict(render_ds_config(run).config)), encoding="utf-8")
        ranks.barrier()
        run_dir = RunDir(scratch)
        orders = _load_run_config_on_all_ranks(run_dir, ranks)
        _set_log_levels("error")
        self._ranks, self._backend = ranks, comm.cdb
        self.job = build_context(orders, run_dir, ranks, RankStatusWriter(run_dir, ranks.rank))
        before = set(vars(comm.cdb))
        self.telemetry = Telemetry(self.job)
        self._timed = {name: function for name, function in vars(comm.cdb).items() if name not in before}
        self._calls = 0
        self._policy = NonfinitePolicy(self.job, reads_late=self.telemetry.lag_steps > 0)
        self._state = TrainState()
        self._spent: dict[str, list[float]] = {"begin": [], "end": []}
        for name, method in (("begin", "start_step"), ("end", "end_step")):
            setattr(self.telemetry, method, self._timing(name, getattr(self.telemetry, method)))

    def _timing(self, name: str, function: Any) -> Any:
        def call(*args: Any, **kw: Any) -> Any:
            began = time.thread_time()
            try:
                return function(*args, **kw)
            finally:
                self._spent[name].append(time.thread_time() - began)

        return call

    def own_seconds(self) -> float:
        """CPU time a step: what goes on at its two ends, and the clocks around its parts and its collectives."""
        from harness.runtime.comm_timer import COMM_TIMER

        parts = 4  # of a step without accumulation

        def part() -> None:
            with self.telemetry.timer.span("data"):
                pass

        COMM_TIMER.enabled = True
        clocks = parts * timeit.timeit(part, number=1000) / 1000
        clocks += self._calls * timeit.timeit(lambda: COMM_TIMER.time_call(int), number=1000) / 1000
        return statistics.mean(self._spent["begin"]) + statistics.mean(self._spent["end"][WARM_UP:]) + clocks

    def count_calls(self) -> None:
        """Takes one more step, and notes how many collectives were timed in it."""
        from harness.runtime.comm_timer import COMM_TIMER

        original = COMM_TIMER.time_call

        def counting(*args: Any, **kw: Any) -> Any:
            self._calls += 1
            return original(*args, **kw)

        COMM_TIMER.time_call = counting  # type: ignore[method-assign]
        self.step(measured=True)
        COMM_TIMER.time_call = original  # type: ignore[method-assign]

    def step(self, *, measured: bool) -> float:
        """Seconds of a step that all ranks begin together."""
        from harness.runtime.comm_timer import COMM_TIMER

        for name, function in self._timed.items():
            vars(self._backend).pop(name, None)
            if measured:
                setattr(self._backend, name, function)
        COMM_TIMER.enabled = False
        if measured:
            self.telemetry._recorder.enable_comm_timer(self._state.step)
        self._ranks.barrier()
        began = time.perf_counter()
        (self._measured if measured else self._bare)()
        return time.perf_counter() - began

    def _bare(self) -> None:
        losses, _ = self._take_step(Nothing())
        self._ranks.all_reduce_sum(losses)

    def _measured(self) -> None:
        """As in `train.py`."""
        from harness.runtime.step import MeanLoss

        self.telemetry.start_step(self._state.step + 1)
        rate = self.job.engine.get_lr()[0]
        losses, batch = self._take_step(self.telemetry.timer)
        loss = MeanLoss(losses, self._ranks, self.job.train_data.geometry)
        self._policy.check_loss(self._state.step, loss, at_once=False)
        self.telemetry.end_step(self._state, batch, rate, loss)
        self.job.engine_checks.on_step_end(self._state, rate, losses)

    def _take_step(self, timer: Any) -> tuple[Any, Any]:
        """The step of both kinds: its loss and its batch."""
        job, position = self.job, self._state.position
        with timer.span("data"):
            batch = job.prefetcher.next_batch(position)
        job.engine_checks.on_batch(batch, job.train_data.data_parallel_rank)
        losses = job.stepper.train_step(batch.micro_batches, batch.num_targets, timer)
        samples = job.train_data.geometry.global_batch_size
        state = self._state.advance(
            samples=samples, tokens=batch.num_tokens, predicted_tokens=batch.num_targets, position=batch.next_position
        )
        self._state, _ = self._policy.check_step(state, position, losses)
        return losses, batch


def summary(without: list[float], with_it: list[float]) -> dict[str, Any]:
    """The ratio of the two, step for step beside each other: its median, and where that lies in 95 of 100 redraws."""
    ratios = [b / a for a, b in zip(without, with_it, strict=True)]
    draw = random.Random(2)  # noqa: S311
    redrawn = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(1000))
    return {
        "date": time.strftime("%Y-%m-%d"),
        "bare_step_seconds": round(statistics.median(without), 5),
        "measured_step_seconds": round(statistics.median(with_it), 5),
        "measured_over_bare": round(statistics.median(ratios), 5),
        "in_95_of_100": [round(redrawn[25], 5), round(redrawn[975], 5)],
        "fastest_over_fastest": round(min(with_it) / min(without), 5),
        "lower_quarter_over_lower_quarter": round(quarter(with_it) / quarter(without), 5),
        "steps_of_each_kind": len(without),
    }


def quarter(values: list[float]) -> float:
    """Mean of the quickest quarter: other programs only add."""
    chosen = sorted(values)[: max(1, len(values) // 4)]
    return sum(chosen) / len(chosen)


if __name__ == "__main__":
    main()
