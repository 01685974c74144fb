"""What torch says of this machine's accelerators, as one line of JSON on stdout. Trains nothing.

Run by itself (`harness doctor`, and before a launch), or sent as text to hosts where the harness may be missing, and
run there by `launch/probe.py`. DeepSpeed takes the CPU wherever `is_available()` is false or `device_count()` is 0
(`accelerator/real_accelerator.py`).
"""

import json
import sys

MARK = "HARNESS-TORCH "
"""Begins the one line that is ours."""


def look():
    """`words`: why torch cannot be imported, or why it can use no device; `version` is None where it is not there."""
    found = {"version": None, "cuda": None, "hip": None, "count": 0, "capabilities": [], "built_for": [], "words": ""}
    try:
        import torch
    except Exception as error:  # a broken installation says in many ways that it is one
        return found | {"words": f"{type(error).__name__}: {error}"}
    found |= {"version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip}
    try:
        if torch.cuda.is_available():
            found["count"] = torch.cuda.device_count()
            found["capabilities"] = [list(torch.cuda.get_device_capability(i)) for i in range(found["count"])]
            found["built_for"] = torch.cuda.get_arch_list()
        elif torch.version.cuda is not None:
            torch.cuda.init()  # raises, with the driver's reason
    except Exception as error:
        found["words"] = (str(error).strip() or type(error).__name__).splitlines()[0]
    return found


if __name__ == "__main__":
    sys.stdout.write(MARK + json.dumps(look()) + "\n")
