# SPDX-License-Identifier: Apache-2.0
"""`loop_cells.py OUT.json FOLDER [CELL ...]`: the harness's loop with the packages that this process finds, in small runs of
`LOOP_CELLS`. Rank 0 writes {"cells": {name: {"losses", "weights": digest, "resumed": digest, "changed": targets} or
{"error"}}, "versions", "files"}. A changed target is counted and does not stop a run; a missing one does.
"""

import json
import sys
import traceback
from pathlib import Path
from typing import Any

import deepspeed.comm

from harness.hostinfo.installed_packages import find_version
from harness.patches import patch_registry
from tests.releases.loop_cells import LOOP_CELLS, PACKAGES
from tests.support.training.patch_sides import Side, digest_weights

out, folder, *names = sys.argv[1:]
# Compiled for minutes. By the name of the module: `deepspeed.comm.torch` is torch itself.
sys.modules[f"{deepspeed.comm.__name__}.torch"].build_shm_op = lambda: None
check, changed = patch_registry.check_target, set()


def note_target(target: Any) -> Any:
    state = check(target)
    if state == "changed":
        changed.add(target.name)
    return "as tested" if state == "changed" else state


patch_registry.check_target = note_target
side = Side(Path(folder))
cells: dict[str, Any] = {}
for name in names or LOOP_CELLS:
    changed.clear()
    sections = LOOP_CELLS[name]
    try:
        trained = digest_weights(side.train(name, **sections).engine.module)
        saved = side.folder / name / "checkpoints" / "step-00000002"
        resumed = digest_weights(side.train(f"{name}-resumed", resume=saved, **sections).engine.module)
        losses = [row["loss"] for row in side.rows(name)]
        own = {"losses": losses, "weights": trained, "resumed": resumed, "changed": sorted(changed)}
    except Exception as error:
        findings = getattr(error, "findings", None)
        text = f"{findings[0].gate} {findings[0].message}" if findings else f"{type(error).__name__}: {error}"
        own = {"error": text[:400], "at": traceback.format_exc()[-600:]}
    everyone = side.distributed.all_gather_object(own)
    cells[name] = {**everyone[0], "weights_of_ranks": [each.get("weights") for each in everyone]}
    if "error" in own:
        break  # the ranks may be apart
if side.distributed.is_main_process:
    versions = {package: find_version(package) for package in PACKAGES}
    Path(out).write_text(json.dumps({"versions": versions, "cells": cells}, indent=1))
side.close()
