# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.support.recipe_run RECIPE FOLDER`: a run directory as a launch of a recipe on 8 H100 would leave it.

Nobody trained it: its steps are made up, of the versions that are installed here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from harness import __version__
from harness.hostinfo.machine import package_version
from harness.run.resolved_run import resolve_run
from harness.spec.spec_loader import load_spec
from tests.support.sample_run import head, on_device, step

SHARES = {"data": 0.002, "forward": 0.2, "backward": 0.64, "optimizer": 0.155, "loop": 0.003}
SECONDS = 200.0
MEMORY = {"memory_gpu_peak_bytes": 55 * 2**30, "memory_gpu_reserved_bytes": 63 * 2**30}


def write_recipe_run(recipe: Path, folder: Path) -> None:
    """The files that a calibration reads: the spec, 12 steps, and the status of a rank that ended."""
    spec = load_spec(str(recipe)).spec
    assert spec is not None
    run = resolve_run(spec, name=recipe.stem)
    versions = {name: package_version(name) or "2.8.0" for name in ("torch", "deepspeed")}
    machine = {"cpu": "Intel(R) Xeon(R) Platinum 8480C", "host_memory_bytes": 2 * 10**12, "harness": __version__}
    gpu = {"device": "NVIDIA H100 80GB HBM3", "device_memory_bytes": 80 * 2**30, "clock": "device"}
    steps = [step(number, SECONDS, SHARES) | on_device(number) | MEMORY for number in range(1, 13)]
    lines = [head(run, **gpu, machine=machine | versions), *steps]
    (folder / "status").mkdir(parents=True)
    (folder / "spec.resolved.json").write_text(json.dumps(run.to_json()), "utf-8")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    (folder / "status" / "rank-00000.json").write_text(json.dumps({"rank": 0, "state": "completed"}), "utf-8")


if __name__ == "__main__":
    write_recipe_run(Path(sys.argv[1]), Path(sys.argv[2]))
