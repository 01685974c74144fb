# SPDX-License-Identifier: Apache-2.0
"""`train_with_overlay.py OVERLAY PATCHES SECTIONS OUT.json FOLDER`: the harness's loop with sources of an overlay in place of
the installed ones. Writes {"states", "losses", "error": finding or null, "engines": how many were built, "found":
patch -> its targets that this process has}. PATCHES: names, with commas between.
"""

import json
import sys
from importlib import import_module
from pathlib import Path

from harness.errors import UserError
from harness.patches.patch_registry import all_patches
from tests.support.changed_sources import OverlayFinder
from tests.support.training.patch_sides import Side

overlay, names, sections, out, folder = sys.argv[-5:]
assert "deepspeed" not in sys.modules
if overlay != "none":
    sys.path.insert(0, overlay)
    sys.meta_path.insert(0, OverlayFinder(Path(overlay)))


def is_defined(target: str) -> bool:
    """In the module that this process imports."""
    module, _, qualified_name = target.partition(":")
    scope = import_module(module)
    for part in qualified_name.split("."):
        mangled = f"_{scope.__name__}{part}" if part.startswith("__") and not part.endswith("__") else part
        if not hasattr(scope, mangled):
            return False
        scope = getattr(scope, mangled)
    return True


side = Side(Path(folder))
import deepspeed  # noqa: E402

engines, initialize = [], deepspeed.initialize
deepspeed.initialize = lambda **named: engines.append(1) or initialize(**named)
error, losses = None, []
try:
    side.train("run", **json.loads(sections))
    losses = [row["loss"] for row in side.rows("run")]
except UserError as refused:
    finding = refused.findings[0]
    error = [finding.gate, finding.message, *finding.notes, finding.fix.title if finding.fix else ""]
found = {
    patch.name: [target.name for target in patch.targets if is_defined(target.name)]
    for patch in all_patches()
    if patch.name in names.split(",")
}
outcome = {"states": side.states, "losses": losses, "error": error, "engines": len(engines), "found": found}
Path(out).write_text(json.dumps(outcome))
side.close()
