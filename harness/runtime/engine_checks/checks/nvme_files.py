# SPDX-License-Identifier: Apache-2.0
"""AT017: swap files below the NVMe path."""

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
from harness.runtime.nvme_io import disk_usage


def _observe(observations: Observations) -> Any:
    optimizer: Any = observations.engine.optimizer  # ZeRO-3's, with a method that is private
    if not observations.expected.nvme_paths:
        raise NotApplicable("the spec puts nothing on NVMe")
    is_swapping = getattr(optimizer, "swap_optimizer", False)
    large_groups = (
        [i for i in range(len(optimizer.fp16_groups)) if optimizer._swappable_optimizer_subgroup(i)]
        if is_swapping
        else []
    )
    folders = list(dict.fromkeys(map(Path, observations.expected.nvme_paths)))
    return {"large": len(large_groups), "bytes": disk_usage(folders)}


def _evaluate(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    if expected.offload_optimizer != "nvme" or not any(values["large"] for values in rank_values):
        return CheckResult("skipped", "every part is smaller than 1 MiB, which DeepSpeed does not swap")
    for rank, values in enumerate(rank_values):
        if values["large"] and not values["bytes"]:
            return check_failed(
                f"no file is below {', '.join(f'`{p}`' for p in expected.nvme_paths)} on rank {rank}", values
            )
    return check_passed(rank_values[0])


CHECK = EngineCheck(
    id="AT017",
    name="nothing-on-nvme",
    question="are there files below the NVMe path?",
    moment="built",
    observe=_observe,
    evaluate=_evaluate,
    key="zero.offload_optimizer.nvme_path",
    gates=("OF003",),
    fix="check the folder: another process may have emptied it",
)
