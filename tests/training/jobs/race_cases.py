# SPDX-License-Identifier: Apache-2.0
"""Races of the sequences, and of the simulated requests in a JSON file, each in a fork: JSON on stdout, one line a case."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
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


def simulate(body: dict[str, Any]) -> Any:
    """The races of a request, and bytes to and from the disk."""
    from harness.workers.simulation_worker import run_request

    with tempfile.TemporaryDirectory() as folder:
        result = run_request(body, Path(folder), lambda _: None)
    return {"races": result["races"], "disk": result["disk"]}


def main() -> None:
    """All requests, then the sequences."""
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
    results.write(json.dumps({"case": "sequences", **in_fork(run_sequences)}) + "\n")
    for name, body in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")).items():
        results.write(json.dumps({"case": name, **in_fork(lambda body=body: simulate(body))}) + "\n")


if __name__ == "__main__":
    main()
