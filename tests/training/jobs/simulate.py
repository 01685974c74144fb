# SPDX-License-Identifier: Apache-2.0
"""`simulate.py REQUEST.json FOLDER`: simulates the rank that the environment names, and writes FOLDER/RANK.json.

In ranks forked by `ForkedRanks(imports="simulation")`: they share no process group, and simulate at the same time.
"""

import json
import os
import sys
import traceback
from pathlib import Path

from harness.workers.simulation_worker import run_request


def main(body: dict, folder: Path, rank: int) -> None:
    out = folder / f"{rank}.json"
    body["rank"] |= {"rank": rank, "local_rank": rank % body["rank"]["ranks_per_host"]}
    folder = folder / f"nvme-{rank}"
    folder.mkdir()
    try:
        with out.open("w") as file:  # the simulation allows no file to be opened for writing
            result = run_request(body, folder, lambda _: None)
            answer = {name: result[name] for name in ("states", "collective_order", "collective_callers", "checkpoint")}
            json.dump(answer, file)
    except Exception as error:
        traceback.print_exc()
        print(f"failed: {error}")
        raise


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[-2]).read_text()), Path(sys.argv[-1]), int(os.environ["RANK"]))
