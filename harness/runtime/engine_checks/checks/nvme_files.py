"""AT017: files below the NVMe path."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.runtime.engine_checks.engine_check import (
    CheckResult,
    EngineCheck,
    NotApplicable,
    check_failed,
    check_passed,
)
from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.observations import Observations
from harness.runtime.telemetry.nvme_io import disk_usage


def _observe(seen: Observations) -> Any:
    optimizer = seen.engine.optimizer
    if not seen.expected.nvme_paths:
        raise NotApplicable("nothing is asked to be on NVMe")
    swaps = getattr(optimizer, "swap_optimizer", False)
    large = (
        [i for i in range(len(optimizer.fp16_groups)) if optimizer._swappable_optimizer_subgroup(i)] if swaps else []
    )
    folders = list(dict.fromkeys(map(Path, seen.expected.nvme_paths)))
    return {"large": len(large), "bytes": disk_usage(folders)}


def _evaluate(asked: ExpectedSettings, found: Sequence[Any]) -> CheckResult:
    if asked.offload_optimizer != "nvme" or not any(has["large"] for has in found):
        return CheckResult("skipped", "every part is smaller than 1 MiB, which DeepSpeed does not swap")
    for rank, has in enumerate(found):
        if has["large"] and not has["bytes"]:
            return check_failed(f"no file is below {', '.join(f'`{p}`' for p in asked.nvme_paths)} on rank {rank}", has)
    return check_passed(found[0])


CHECK = EngineCheck(
    id="AT017",
    name="nothing-on-nvme",
    question="are there files below the NVMe path?",
    moment="built",
    observe=_observe,
    evaluate=_evaluate,
    key="zero.offload_optimizer.nvme_path",
    gates=("OF003",),
    fix="look at the folder: another process may have emptied it",
)
