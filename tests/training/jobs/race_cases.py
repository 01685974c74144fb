# SPDX-License-Identifier: Apache-2.0
"""`race_cases.py CASES.json FOLDER`: the case of this rank's number: races of a simulated request, perhaps with a seeded
fault, or those of the sequences. Run by `support/training/simulated_ranks.py`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def answer_case(simulate: Callable[[Any, Path], Any]) -> None:
    """Write what the function returns of this rank's case to FOLDER/RANK.json: {"answer"} or {"error"}.

    Its second argument is an empty folder, which is the working directory, too.
    """
    rank, folder = int(os.environ["RANK"]), Path(sys.argv[-1])
    case, place = json.loads(Path(sys.argv[-2]).read_text(encoding="utf-8"))[rank], folder / f"place-{rank}"
    place.mkdir()
    os.chdir(place)
    with (folder / f"{rank}.json").open("w") as file:  # the simulation allows no file to be opened for writing
        try:
            answer = {"answer": simulate(case, place)}
        except BaseException as error:  # a seeded fault may raise anything
            answer = {"error": repr(error)}
        json.dump(answer, file)


def simulate(case: dict[str, Any], folder: Path) -> Any:
    """The races of the sequences, or of a request, with the fault that is named, and bytes to and from the disk."""
    if "request" not in case:
        from tests.training.jobs.race_sequences import run_sequences

        return run_sequences()
    from harness.workers.simulation_worker import run_request

    if "fault" not in case:
        result = run_request(case["request"], folder, lambda _: None)
    else:
        from tests.simulation.seeded_faults import FAULTS

        with next(fault for fault in FAULTS if fault.name == case["fault"]).inject():
            result = run_request(case["request"], folder, lambda _: None)
    return {"races": result["races"], "disk": result["disk"]}


if __name__ == "__main__":
    answer_case(simulate)
