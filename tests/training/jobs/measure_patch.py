# SPDX-License-Identifier: Apache-2.0
"""`measure_patch.py PATCH SWITCHES OUT.json FOLDER`: the scenario of a patch with these switches, as JSON. Rank 0 writes
{"states", "measurements": [fault, result, details] of each rank}.
"""

import json
import sys
from pathlib import Path

from tests.support.training.patch_scenarios import SCENARIOS
from tests.support.training.patch_sides import Side

patch, switches, out, folder = sys.argv[-4:]
side = Side(Path(folder), json.loads(switches))
measurement = SCENARIOS[patch].measure(side)
everyone = side.distributed.all_gather_object(list(measurement))
if side.distributed.is_main_process:
    Path(out).write_text(json.dumps({"states": side.states, "measurements": everyone}))
side.close()
