# SPDX-License-Identifier: Apache-2.0
"""Loads DeepSpeed's universal layout, tensor by tensor, into an engine of any stage and degree.

Upstream: The loading of stages 1 and 2 fails on a rank that has no part of some group, and assigns the settings of
groups by index; that of stage 3 gives every group the settings of the first, supports only Adam's states and cannot
fill an optimizer on NVMe; stage 0 has no such loading. All loading unpickles whatever a file
holds (`weights_only=False`).

Patch: `runtime/checkpoint/reshard/from_universal.py` has its own loops around DeepSpeed's functions for one parameter,
and sets the counters of the engine (`global_steps`, `global_samples`, `skipped_steps`). Whether a resume needs it is
known once the engine is built; then a changed target refuses the resume. While these functions run, `torch.load` is a
reader of the harness, which takes a file with one tensor, or the count of steps, and refuses any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.patches.patch_registry import Patch, Target


@contextmanager
def read_universal_files(read: Callable[[Path], Any]) -> Iterator[None]:
    """In this context DeepSpeed's functions read a file of the universal layout with `read`."""
    import torch

    original = torch.load

    def load(file: Any, *arguments: Any, **options: Any) -> Any:
        is_path = isinstance(file, str | Path)  # ranks gather objects meanwhile, from memory
        return read(Path(file)) if is_path else original(file, *arguments, **options)

    torch.load = load  # type: ignore[assignment]  # by name alone: DeepSpeed's modules look it up in torch
    try:
        yield
    finally:
        torch.load = original


PATCH = Patch(
    name="universal-checkpoint",
    kind="use",
    targets=(
        Target("deepspeed.checkpoint.universal_checkpoint:_resolve_autotp_partition", "6f972d3a69ac2aad"),
        Target("deepspeed.checkpoint.universal_checkpoint:load_hp_checkpoint_state", "0944373249c370f8"),
        Target("deepspeed.utils.tensor_fragment:map_to_flat_opt_states", "423f58c171b79948"),
        Target("deepspeed.utils.tensor_fragment:tensor_fragment", "35a4fdbea0b9234c"),
        Target(
            "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3.load_hp_checkpoint_state", "662771852760c75e"
        ),
    ),
    remove_when="DeepSpeed's universal loading restores every stage, several groups and other states than Adam's",
    when="resumes in another layout than that of the checkpoint",
    upstream="https://github.com/deepspeedai/DeepSpeed/issues/8608",
    private_names=("_hp_mapping",),
    is_needed=lambda run: run.is_resumed,
    refuses_when_used=True,
)
