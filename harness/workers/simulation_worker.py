# SPDX-License-Identifier: Apache-2.0
"""Simulates one rank of a run on a simulated CUDA device; one JSON event a line on stdout: `progress`, then `result`.

Reads the request from the file that the command line names. Started by `harness simulate`; it trains nothing
and writes no file.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any


def main() -> int:
    """Simulate what the file asks for; returns 0 also where the device cannot be simulated, which is an event, too."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from harness.interpreter import remove_repeated_root

    remove_repeated_root()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what is under way is undone
    events = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # libraries print to stdout, too

    def write_event(event: str, **fields: Any) -> None:
        events.write(json.dumps({"event": event, **fields}) + "\n")

    request = Path(sys.argv[1])
    body = json.loads(request.read_text(encoding="utf-8"))
    from harness.runtime.simulation.native_library import SimulationUnavailableError, load_native_library

    try:
        load_native_library()  # which may compile it now
        since = time.time()
        result = run_request(body, request.parent, lambda text: write_event("progress", text=text))
        if not body.get("order"):
            del result["collective_order"], result["collective_callers"]
            result.get("checkpoint", {}).pop("details", None)
        from harness.hostinfo.loaded_files import list_loaded_files

        write_event("result", **result, loaded=list_loaded_files(since))
    except SimulationUnavailableError as error:
        write_event("unavailable", reason=str(error), fix=error.fix)
    except Exception as error:
        traceback.print_exc()
        write_event("failed", error=f"{type(error).__name__}: {error}", trace=traceback.format_exc())
    return 0


def run_request(
    body: dict[str, Any], folder: Path, on_progress: Any, observers: tuple[Any, ...] = ()
) -> dict[str, Any]:
    """The result of a request; NVMe folders are below `folder`, where DeepSpeed makes empty ones."""
    os.environ.pop("DS_ACCELERATOR", None)
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["USE_HUB_KERNELS"] = "0"
    os.environ["DS_PIN_MEMORY_BACKEND"] = body.get("pin_memory_backend", "torch")
    from harness.interpreter import freeze_imports
    from harness.patches.no_mlflow import import_deepspeed

    on_progress("importing torch and DeepSpeed")
    with freeze_imports():
        import_deepspeed("auto")
        from harness.plan.simulation.clock_rates import ClockRates
        from harness.run.resolved_run import ResolvedRun
        from harness.runtime.simulation.device import SimulatedRank
        from harness.runtime.simulation.simulated_run import SimulationRequest, deny_writes, simulate

    deny_writes(folder)
    ds_config = body["ds_config"]
    for name in ("offload_optimizer", "offload_param"):
        section = ds_config.get("zero_optimization", {}).get(name) or {}
        if "nvme_path" in section:
            section["nvme_path"] = str(folder)
    rank = SimulatedRank(**body["rank"])
    request = SimulationRequest(
        ResolvedRun.from_json(body["run"]),
        ds_config,
        body["model_config"],
        rank,
        body["capacity"],
        body.get("steps", 2),
        with_races=bool(body.get("races")),
        with_evaluation=body.get("with_evaluation", True),
        rates=ClockRates.from_json(body["rates"]) if body.get("rates") else None,
        with_trace=bool(body.get("trace")),
        folder=folder / "checkpoint" if body.get("with_checkpoint", True) else None,
    )
    return simulate(request, on_progress, observers)


if __name__ == "__main__":
    sys.exit(main())
