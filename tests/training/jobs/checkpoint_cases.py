# SPDX-License-Identifier: Apache-2.0
"""Save and resume of the harness's own loop, several cases one after the other in the same ranks.

`checkpoint_cases.py CASES.json`: {"folder": DIR, "model": DIR, "cases": [{"name", "case", "settings", "actions"}]}. An
action is [name, arguments...] of a function of `checkpoint_actions.py`; what it returns goes to DIR/NAME/results.json.
"""

import json
import sys
from pathlib import Path

from harness.runtime.distributed import destroy_process_group, init_process_group
from tests.support.training import checkpoint_actions


def main() -> None:
    ranks = init_process_group()
    plan = json.loads(Path(sys.argv[-1]).read_text())
    for case in plan["cases"]:
        folder = Path(plan["folder"]) / case["name"]
        actions = checkpoint_actions.Actions(ranks, folder, Path(plan["model"]), case)
        results = [getattr(actions, name)(*arguments) for name, *arguments in case["actions"]]
        actions.close()
        if ranks.is_main_process:
            (folder / "results.json").write_text(json.dumps(results))
    destroy_process_group()


if __name__ == "__main__":
    main()
