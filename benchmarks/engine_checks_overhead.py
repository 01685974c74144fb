# SPDX-License-Identifier: Apache-2.0
"""The cost of the engine checks in the first 20 steps of a run, on a model whose steps take about 50 ms.

    python benchmarks/engine_checks_overhead.py [--ranks 2] [--rows N] [--stage 2] [--write]

Every call of the loop into `EngineChecks` is timed: the CPU time of the rank's thread, and the wall time with waiting
for other ranks. The target is below 2 % of the first 20 steps, with what comes before the engine
is built. `--write` puts the figures into `benchmarks/results/engine_checks_overhead.json`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "engine_checks_overhead.json"
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
STEPS = 20
CALLS = ("__init__", "on_engine_built", "on_train_start", "on_batch", "on_step_end", "on_train_end")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rows", type=int, default=3, help="a rank and step: as many as take 50 ms here")
    parser.add_argument("--stage", type=int, default=2, help="of ZeRO")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure)
        return
    from telemetry_overhead import spec

    from harness.render import render_ds_config
    from harness.run.resolved_run import resolve_run
    from harness.spec.run_spec import RunSpec
    from tests.support.training.forked_ranks import ForkedRanks

    ranks = ForkedRanks()
    body = spec(arguments.rows, arguments.stage, STEPS) | {"launch": {"engine_checks": "stop"}}
    with tempfile.TemporaryDirectory(prefix="engine-checks-overhead-") as scratch:
        run = resolve_run(
            RunSpec.model_validate_json(json.dumps(body)),
            world_size=arguments.ranks,
        )
        (Path(scratch) / "spec.resolved.json").write_text(json.dumps(run.to_json()))
        (Path(scratch) / "ds_config.json").write_text(json.dumps(dict(render_ds_config(run).config)))
        ranks.run(Path(__file__), "--measure", scratch, ranks=arguments.ranks)
        result = json.loads((Path(scratch) / "result.json").read_text())
    ranks.close()
    result |= {"ranks": arguments.ranks, "rows": arguments.rows, "stage": arguments.stage}
    print(json.dumps(result, indent=1))
    if arguments.write:
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def measure(scratch: Path) -> None:
    """On each rank: one run, with a clock around each call of the loop into `EngineChecks`."""
    from harness.runtime.distributed import destroy_process_group, init_process_group
    from harness.runtime.engine_checks.check_runner import EngineChecks
    from harness.runtime.rank_status import RankStatusWriter
    from harness.runtime.run_config import RunDir
    from harness.runtime.train import train
    from harness.runtime.train_context import build_context
    from harness.runtime.worker import _load_run_config_on_all_ranks, _set_log_levels

    seconds = {name: [0.0, 0.0] for name in CALLS}
    for name in CALLS:
        setattr(EngineChecks, name, _timed(getattr(EngineChecks, name), seconds[name]))
    distributed, run_dir = init_process_group(), RunDir(scratch)
    run_config = _load_run_config_on_all_ranks(run_dir, distributed)
    _set_log_levels("error")
    ctx = build_context(run_config, run_dir, distributed, RankStatusWriter(run_dir, distributed.rank))
    train(ctx)
    ctx.metrics.close()
    if distributed.is_main_process:
        lines = [json.loads(line) for line in run_dir.metrics.read_text().splitlines()]
        steps = sorted(line["seconds"] for line in lines if line["type"] == "step")
        total = STEPS * steps[len(steps) // 2]
        cpu, wall = (sum(times[i] for times in seconds.values()) for i in (0, 1))
        result = {
            "median_step_seconds": round(steps[len(steps) // 2], 5),
            "parameters": next(line["parameters"] for line in lines if line["type"] == "run"),
            "own_cpu_seconds": round(cpu, 5),
            "wall_seconds": round(wall, 5),
            "share_of_20_steps_cpu": round(cpu / total, 4),
            "share_of_20_steps_wall": round(wall / total, 4),
            "by_call": {name: [round(x, 5) for x in times] for name, times in seconds.items()},
        }
        (scratch / "result.json").write_text(json.dumps(result))
    destroy_process_group()


def _timed(method: Callable[..., Any], total: list[float]) -> Callable[..., Any]:
    @wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        cpu, wall = time.thread_time(), time.perf_counter()
        try:
            return method(*arguments, **options)
        finally:
            total[0] += time.thread_time() - cpu
            total[1] += time.perf_counter() - wall

    return call


if __name__ == "__main__":
    main()
