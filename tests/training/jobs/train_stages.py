# SPDX-License-Identifier: Apache-2.0
"""`train_stages.py CASES SWITCHES OUT.json FOLDER`: the harness's loop for each case with these switches. Of each, a list
over the ranks: {"losses", "weights", "states", "effects": which memory and performance patches its engine has}.
"""

import json
import sys
from pathlib import Path

from tests.support.training.patch_sides import Side, digest_weights

cases, switches, out, folder = sys.argv[-4:]
side = Side(Path(folder), json.loads(switches))
outcomes = {}
for name, sections in json.loads(cases).items():
    side.states = {}
    ctx = side.train(name, **sections)
    from deepspeed.runtime.zero import partitioned_param_coordinator as coordinator

    effects = {
        "zero3-leaf-params": hasattr(coordinator.iter_params, "original"),
        "cpu-offload-single-grad": getattr(ctx.engine.optimizer, "holds_gradients_once", False),
        "one-pass-adam": hasattr(ctx.engine.optimizer, "one_pass_op"),
    }
    outcome = {"losses": [row["loss"] for row in side.rows(name)], "weights": digest_weights(ctx.engine.module)}
    outcome |= {"states": side.states, "effects": [patch for patch, is_there in effects.items() if is_there]}
    outcomes[name] = side.distributed.all_gather_object(outcome)
    ctx.engine.destroy()
if side.distributed.is_main_process:
    Path(out).write_text(json.dumps(outcomes))
side.close()
