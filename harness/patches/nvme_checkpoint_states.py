# SPDX-License-Identifier: Apache-2.0
"""Saves and loads optimizer states on NVMe as ordinary shards, and reads them for engine checks and telemetry.

Upstream: A save writes empty tensors for the states that are swapped out and copies the swap files next to them; a load
leaves the optimizer out. Adam restarts from zero without a message.

Patch: `runtime/checkpoint/nvme_states.py` puts the values of the swap files into the shards. For a load it replaces the
optimizer's `load_state_dict`, for the time of `load_checkpoint`, by a function that swaps each sub-group in, fills it
and swaps it out. Engine checks and telemetry ask which sub-groups are swapped.
"""

from __future__ import annotations

from harness.patches.patch_registry import Patch, Target

_OPTIMIZER = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3"

PATCH = Patch(
    name="nvme-checkpoint-states",
    kind="use",
    targets=(
        Target(f"{_OPTIMIZER}._swappable_optimizer_subgroup", "0800d42a89630fc3"),
        Target(f"{_OPTIMIZER}._optimizer_states_and_gradient_swap_in", "99ea366ac329f270"),
        Target(f"{_OPTIMIZER}._optimizer_states_and_gradient_swap_out", "51346812cf9da71f"),
        Target(f"{_OPTIMIZER}._reassign_or_swap_out_partitioned_parameters", "b11e6e85c55eefcb"),
        Target(f"{_OPTIMIZER}.load_state_dict", "9a58f1e8ac585243"),
        Target("deepspeed.runtime.swap_tensor.optimizer_utils:OptimizerStateSwapInfo", "5133342c80244f20"),
    ),
    remove_when="DeepSpeed restores optimizer states on NVMe from a checkpoint, also on another number of ranks",
    when="stage 3 with states or parameters on NVMe",
    upstream="https://github.com/deepspeedai/DeepSpeed/issues/2082",
    is_needed=lambda run: run.stage == 3 and "nvme" in (run.optimizer_device, run.param_device),
)
