# SPDX-License-Identifier: Apache-2.0
"""Makes the first gathers of a forward pass wait for the shards that the optimizer has just updated.

Upstream: The step writes the 16-bit shards on the default stream (`stage3.py`,
`_reassign_or_swap_out_partitioned_parameters`), and the next forward pass gathers them on another stream, which does
not wait (`partitioned_param_coordinator.py`, `__all_gather_params`). If some parameters are persistent, `_post_step`
gathers these, which makes the host wait. With `stage3_param_persistence_threshold: 0`, a tuned default, nothing orders
the two: a rank could send a half-updated shard. Found by the race detector of `harness simulate --races`; not
seen on a GPU, since the project had none.

Patch: After `_post_step` the gather stream waits for the default stream. The recipe `llama-3.1-8b-zero3` has a race
without it and none with it (`tests/training/simulation/test_race_detector.py`).
"""

from __future__ import annotations

from typing import Any

from harness.patches.patch_registry import Patch, RankAgreement, Target

_STAGE3 = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3"
_COORDINATOR = "deepspeed.runtime.zero.partitioned_param_coordinator:PartitionedParameterCoordinator"


def order_gathers_after_step(engine: Any, _: RankAgreement) -> None:
    """From now on the gathers of this engine wait for its last step. Without streams of the device nothing happens."""
    optimizer = engine.optimizer
    post_step = getattr(optimizer, "_post_step", None)
    if post_step is None or not hasattr(optimizer, "parameter_offload"):
        return

    def ordered_post_step(timer_names: Any) -> None:
        from deepspeed.accelerator import get_accelerator

        post_step(timer_names)
        stream = optimizer.parameter_offload._DeepSpeedZeRoOffload__allgather_stream
        if stream is not None:
            stream.wait_stream(get_accelerator().current_stream())

    optimizer._post_step = ordered_post_step


PATCH = Patch(
    name="zero3-updated-shards",
    kind="correctness",
    targets=(
        Target(f"{_STAGE3}._post_step", "743cadfd4b6a8880"),
        Target(f"{_STAGE3}._reassign_or_swap_out_partitioned_parameters", "b11e6e85c55eefcb"),
        Target(f"{_COORDINATOR}.__all_gather_params_", "b92281aeefc65494"),
        Target("deepspeed.runtime.zero.parameter_offload:DeepSpeedZeRoOffload.__init__", "c23bd642b915f51a"),
    ),
    remove_when="the gather stream waits for the current stream before it gathers",
    when="stage 3",
    private_names=("_DeepSpeedZeRoOffload__allgather_stream",),
    is_needed=lambda run: run.stage == 3,
    on_engine=order_gathers_after_step,
)
