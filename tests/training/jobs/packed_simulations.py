# SPDX-License-Identifier: Apache-2.0
"""`packed_simulations.py CASES.json FOLDER`: the request of this rank's number, simulated. Counts what attention of packed
rows must not do: tensors of length x length on the device, and values that the host waits for.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from tests.training.jobs.race_cases import answer_case


def simulate(body: dict[str, Any], folder: Path) -> dict[str, Any]:
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

    result = run_request(body, folder, lambda _: None, (Observer(),))
    names = ("peaks", "attention_kernels", "failed")
    return {"squares": squares, "largest": largest[0], "syncs": syncs, **{name: result[name] for name in names}}


if __name__ == "__main__":
    answer_case(simulate)
