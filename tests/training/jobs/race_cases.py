# SPDX-License-Identifier: Apache-2.0
"""Races of simulated requests in a JSON file, some with a seeded fault, and of the sequences; each in a fork. JSON on
stdout, one line a case.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from harness.runtime.simulation.native_library import load_native_library


def in_fork(function: Callable[[], Any]) -> Any:
    """What the function returns in a process of its own: a device is simulated once a process."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            answer = {"answer": function()}
        except BaseException as error:
            answer = {"error": repr(error)}
        with os.fdopen(writing, "w") as pipe:
            json.dump(answer, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = json.load(pipe)
    os.waitpid(process, 0)
    return answer


def simulate(case: dict[str, Any]) -> Any:
    """The races of a request, with the fault that is named, and bytes to and from the disk."""
    from harness.workers.simulation_worker import run_request
    from tests.simulation.seeded_faults import FAULTS

    fault = next((fault for fault in FAULTS if fault.name == case.get("fault")), None)
    with tempfile.TemporaryDirectory() as folder, nullcontext() if fault is None else fault.inject():
        result = run_request(case["request"], Path(folder), lambda _: None)
    return {"races": result["races"], "disk": result["disk"]}


def main() -> None:
    """The sequences, if they are asked for, then all requests."""
    load_native_library()
    from harness.patches.no_mlflow import import_deepspeed

    import_deepspeed("auto")
    import peft  # noqa: F401
    import torch

    torch.set_num_threads(1)
    import harness.runtime.simulation.simulated_run  # noqa: F401
    from tests.training.jobs.race_sequences import run_sequences

    results = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    body = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    if body["sequences"]:
        results.write(json.dumps({"case": "sequences", **in_fork(run_sequences)}) + "\n")
    for name, case in body["cases"].items():
        results.write(json.dumps({"case": name, **in_fork(lambda case=case: simulate(case))}) + "\n")


if __name__ == "__main__":
    main()
