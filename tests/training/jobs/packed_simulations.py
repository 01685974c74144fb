# SPDX-License-Identifier: Apache-2.0
"""Simulates the requests in a JSON file, each in a fork: JSON on stdout, one line a case. Counts what attention of
packed rows must not do: tensors of length x length on the device, and values that the host waits for.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from harness.runtime.simulation.native_library import load_native_library
from tests.training.jobs.race_cases import in_fork


def simulate(body: dict[str, Any]) -> dict[str, Any]:
    """Tensors of length x length, bytes of the largest one, and the values read from it by the line that reads."""
    import torch
    from torch.utils._pytree import tree_iter

    from harness.runtime.simulation.device_events import DeviceObserver
    from harness.runtime.simulation.memory_tracker import calling_line
    from harness.workers.simulation_worker import run_request

    length = body["run"]["spec"]["data"]["max_length"]
    squares: Counter[str] = Counter()
    largest = [0]
    syncs: Counter[str] = Counter()

    class Observer(DeviceObserver):
        def on_op(self, func: Any, args: Any, kwargs: Any, out: Any, stream: str) -> None:  # noqa: ARG002
            if out is None and isinstance(args[0], torch.Tensor) and args[0].device.type == "cuda":
                syncs[calling_line()] += 1
            for tensor in tree_iter(out):
                if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cuda":
                    continue
                largest[0] = max(largest[0], tensor.untyped_storage().nbytes())
                if list(tensor.shape[-2:]) == [length, length]:
                    squares[func._schema.name] += 1

    with tempfile.TemporaryDirectory() as folder:
        result = run_request(body, Path(folder), lambda _: None, (Observer(),))
    names = ("peaks", "attention_kernels", "failed")
    return {"squares": squares, "largest": largest[0], "syncs": syncs, **{name: result[name] for name in names}}


def main() -> None:
    """All requests."""
    load_native_library()
    from harness.patches.no_mlflow import import_deepspeed

    import_deepspeed("auto")
    import torch

    torch.set_num_threads(1)
    import harness.runtime.simulation.simulated_run  # noqa: F401

    results = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for name, body in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")).items():
        results.write(json.dumps({"case": name, **in_fork(lambda body=body: simulate(body))}) + "\n")


if __name__ == "__main__":
    main()
