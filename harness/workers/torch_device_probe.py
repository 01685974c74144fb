# SPDX-License-Identifier: Apache-2.0
"""Prints torch's view of this machine's accelerators as one line of JSON on stdout. Trains nothing.

Run by itself (`harness doctor`, and before a launch), or sent as text to hosts where the harness may be missing, where
`host_probe.py` runs it. DeepSpeed takes the CPU wherever `is_available()` is false or `device_count()` is 0
(`accelerator/real_accelerator.py`).
"""

from __future__ import annotations

import json
import sys

MARK = "HARNESS-TORCH "
"""Begins the one line that is ours."""


def probe_torch_devices() -> dict[str, object]:
    """Version, devices and, in `words`, why torch cannot be imported or used; `version` is None where it is missing."""
    answer: dict[str, object] = {
        "version": None,
        "cuda": None,
        "hip": None,
        "xpu": None,
        "xpu_count": 0,
        "count": 0,
        "capabilities": [],
        "names": [],
        "built_for": [],
        "words": "",
    }
    try:
        import torch
    except Exception as error:  # a broken installation says in many ways that it is one
        return answer | {"words": f"{type(error).__name__}: {error}"}
    answer |= {"version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip}
    answer["xpu"] = getattr(torch.version, "xpu", None)
    try:
        if answer["xpu"] is not None and torch.xpu.is_available():
            answer["xpu_count"] = torch.xpu.device_count()
        if torch.cuda.is_available():
            count = answer["count"] = torch.cuda.device_count()
            answer["capabilities"] = [list(torch.cuda.get_device_capability(i)) for i in range(count)]
            answer["built_for"] = torch.cuda.get_arch_list()
            answer["names"] = [torch.cuda.get_device_name(i) for i in range(count)]
        elif torch.version.cuda is not None:
            torch.cuda.init()  # raises, with the driver's reason
    except Exception as error:
        answer["words"] = (str(error).strip() or type(error).__name__).splitlines()[0]
    return answer


if __name__ == "__main__":
    sys.stdout.write(MARK + json.dumps(probe_torch_devices()) + "\n")
