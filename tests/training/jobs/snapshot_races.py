# SPDX-License-Identifier: Apache-2.0
"""A copy of the training state from the simulated device: its races, with and without its events, and its copies."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from harness.runtime.simulation.native_library import load_native_library


def main() -> None:
    load_native_library()
    from harness.patches.no_mlflow import import_deepspeed

    import_deepspeed("auto")
    import torch

    from harness.runtime.checkpoint import snapshot
    from harness.runtime.simulation.device import SimulatedRank, simulated_device
    from harness.runtime.simulation.memory_tracker import MemoryTracker
    from harness.runtime.simulation.race_detector import RaceDetector
    from harness.runtime.simulation.streams import OBSERVERS
    from harness.runtime.simulation.traffic import Traffic

    tracker, found = MemoryTracker(), {}
    with simulated_device(SimulatedRank(0, 2, 0, 2), tracker, []):
        for name in ("races", "without events"):
            detector, traffic = (
                RaceDetector(lambda tensor: tensor.untyped_storage() in tracker.pinned),
                Traffic(tracker),
            )
            OBSERVERS[:] = [detector, traffic]
            staged: Any = snapshot.StagedCopy(chunk_bytes=8)
            if name == "without events":
                staged._events = [None, None]
            state = torch.zeros(40, dtype=torch.uint8, device="cuda") + 1
            host = torch.empty(40, dtype=torch.uint8)
            staged.copy(state, host)
            state.zero_()  # the next step writes it
            torch.cuda.synchronize()
            OBSERVERS.clear()
            found[name] = detector.to_json()
            found["device to host"] = [sum(traffic.copies.values()), sum(traffic.copy_bytes.values())]
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
