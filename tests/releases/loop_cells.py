# SPDX-License-Identifier: Apache-2.0
"""Releases of packages with which the harness's loop trains to the bits of this environment, measured on two gloo ranks.

    python -m tests.releases.loop_cells deepspeed==0.19.3 transformers==5.6.0 deepspeed==0.18.9,transformers==5.6.0 ...

puts an overlay of each release, or of several together, in front of this environment, trains the cells with it, and prints
which cells agree with this environment to the bit, which targets of patches differ, and what failed. An overlay is a folder
`PACKAGE-RELEASE` below `--overlays` (default: the cache folder); pip of this interpreter fills it where it is not there.
The results are in `harness/facts/loop_releases.json` with `--write`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness.hostinfo.torch_extensions import VARIABLE
from tests.releases.archives import CACHE
from tests.releases.trials import OVERLAYS
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.runtime_helpers import JOBS, ROOT, TINY

PACKAGES = ("deepspeed", "torch", "transformers", "peft", "accelerate")
LIMIT_S = 900.0
LLAMA = {**TINY, "attention_dropout": 0.0, "tie_word_embeddings": True}
_ADAM = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1, "torch_adam": True}}}
_COMPANIONS = {"transformers": ("tokenizers", "huggingface-hub")}
"""A release refuses others of these when it is imported."""
_SAVED = {"save_steps": 2, "save_at_end": False}


def _cell(stage: int, **sections: Any) -> dict[str, Any]:
    zero = {"stage": stage, **sections.pop("zero", {})}
    return {"zero": zero, "checkpoint": _SAVED, "deepspeed": _ADAM, **sections}


LOOP_CELLS = {
    **{f"zero-{stage}": _cell(stage) for stage in range(4)},
    **{f"zero-{stage}-bf16": _cell(stage, precision={"bf16": True}) for stage in (2, 3)},
    **{f"zero-{stage}-lora": _cell(stage, model={"config": LLAMA, "lora": {"r": 2}}) for stage in (2, 3)},
    "zero-3-checkpointing": _cell(3, train={"max_steps": 4, "gradient_checkpointing": True}),
    "tensor-2": _cell(1, parallel={"tensor_parallel_size": 2}),
    "pipeline-2": _cell(1, parallel={"pipeline_parallel_size": 2}),
}
"""Specs of tiny runs, by name: four steps, a checkpoint after two of them, and a resume from it."""


def overlay_of(requirement: str) -> Path:
    """The folder that has this release, `PACKAGE==RELEASE`, and nothing else; filled by pip where it is not there."""
    package, _, release = requirement.partition("==")
    place = OVERLAYS / release if package == "deepspeed" else CACHE / "package-releases" / f"{package}-{release}"
    if not (place / package).is_dir():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
        environment = {**os.environ, "DS_BUILD_OPS": "0"}
        subprocess.run([*pip, "--target", str(place), requirement], check=True, env=environment)
        for needed in _COMPANIONS.get(package, ()):
            file = next(place.glob(f"{package}-*.dist-info/METADATA"))
            line = next(line for line in file.read_text().splitlines() if line.startswith(f"Requires-Dist: {needed}"))
            bound = line.partition(": ")[2].partition(";")[0]
            subprocess.run([*pip, "--target", str(place), bound], check=True, env=environment)
    return place


def train_cells(requirements: str = "", cells: list[str] | None = None) -> dict[str, Any]:
    """What `jobs/loop_cells.py` writes of the cells with these releases in front: `deepspeed==0.19.3,transformers==5.6.0`.
    After a cell that fails, new ranks train the others. Raises SystemExit where the ranks had another release.
    """
    asked = dict(each.split("==") for each in requirements.split(",") if each)
    places, left = [overlay_of(each) for each in requirements.split(",") if each], list(cells or LOOP_CELLS)
    answer: dict[str, Any] = {"cells": {}}
    while left:
        part = _start_ranks(places, left)
        if "error" in part:
            part["cells"] = {left[0]: {"error": part["error"]}}
        answer["cells"] |= part["cells"]
        answer["versions"] = part.get("versions", {})
        left = [name for name in left if name not in answer["cells"]]
        other = {package: answer["versions"].get(package) for package in asked} if answer["versions"] else asked
        if other != asked:
            raise SystemExit(f"asked for {asked}, the ranks had {other}")
    return answer


def _start_ranks(places: list[Path], cells: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="loop-") as scratch:
        out = Path(scratch, "out.json")
        environ = {"PYTHONPATH": os.pathsep.join(map(str, [*places, ROOT]))}
        if places:  # ops of another release never into the folder of this environment
            environ[VARIABLE] = str(places[0] / "torch-extensions")
        ranks = ForkedRanks(environ=environ)
        try:
            answer = ranks.run(
                JOBS / "loop_cells.py", str(out), f"{scratch}/runs", *cells, timeout=LIMIT_S, check=False
            )
        finally:
            ranks.close()
        if out.is_file():
            return dict(json.loads(out.read_text(encoding="utf-8")))
        return {"error": answer["output"][answer["first"]][-1500:]}


def compare(here: dict[str, Any], there: dict[str, Any]) -> dict[str, str]:
    """Of each cell: `same`, or what differs."""
    verdicts = {}
    for name, cell in there["cells"].items():
        own = here["cells"][name]
        if "error" in cell or "error" in own:
            verdicts[name] = cell.get("error") or f"this environment: {own['error']}"
        elif any(cell[key] != own[key] for key in ("losses", "weights_of_ranks", "resumed")):
            verdicts[name] = f"differs: {cell['losses']} for {own['losses']}"
        else:
            verdicts[name] = "same"
    return verdicts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "releases", nargs="+", help="such as deepspeed==0.19.3 or deepspeed==0.18.9,transformers==5.6.0"
    )
    parser.add_argument("--cells", nargs="*", help=f"of {', '.join(LOOP_CELLS)} (default: all)")
    arguments = parser.parse_args()
    here = train_cells(cells=arguments.cells)
    for requirements in arguments.releases:
        there = train_cells(requirements, arguments.cells)
        print(f"{requirements}:", json.dumps(compare(here, there), indent=1), flush=True)
        changed = sorted({target for cell in there.get("cells", {}).values() for target in cell.get("changed", ())})
        print("  changed targets that these runs used:", ", ".join(changed) or "none", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
