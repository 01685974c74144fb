"""AT017: files below the NVMe path."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.runtime.attest.asked import Asked
from harness.runtime.attest.claim import Answer, Claim, NotApplicable, differs, holds
from harness.runtime.attest.seen import Seen
from harness.runtime.telemetry.swapping import bytes_in


def _look(seen: Seen) -> Any:
    optimizer = seen.engine.optimizer
    if not seen.asked.nvme:
        raise NotApplicable("nothing is asked to be on NVMe")
    swaps = getattr(optimizer, "swap_optimizer", False)
    large = (
        [i for i in range(len(optimizer.fp16_groups)) if optimizer._swappable_optimizer_subgroup(i)] if swaps else []
    )
    folders = list(dict.fromkeys(map(Path, seen.asked.nvme)))
    return {"large": len(large), "bytes": bytes_in(folders)}


def _judge(asked: Asked, found: Sequence[Any]) -> Answer:
    if asked.offload_optimizer != "nvme" or not any(has["large"] for has in found):
        return Answer("skipped", "every part is smaller than 1 MiB, which DeepSpeed does not swap")
    for rank, has in enumerate(found):
        if has["large"] and not has["bytes"]:
            return differs(f"no file is below {', '.join(f'`{p}`' for p in asked.nvme)} on rank {rank}", has)
    return holds(found[0])


CLAIM = Claim(
    id="AT017",
    name="nothing-on-nvme",
    question="are there files below the NVMe path?",
    moment="built",
    look=_look,
    judge=_judge,
    key="zero.offload_optimizer.nvme_path",
    gates=("OF003",),
    fix="look at the folder: another process may have emptied it",
)
