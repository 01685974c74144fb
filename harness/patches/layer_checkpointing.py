# SPDX-License-Identifier: Apache-2.0
"""Passes `transformers` the function by which layers recompute their activations.

Upstream: `gradient_checkpointing_enable` of `transformers` takes options for torch's `checkpoint` only, not DeepSpeed's
function, which can keep the inputs of layers in host memory.

Patch: `runtime/models/activation_checkpointing.py` calls `_set_gradient_checkpointing` with either function.
DeepSpeed's gets inputs that are no views: a view's base would stay on the device while its copy waits in host memory.
For `{keep: attention}` two `TorchDispatchMode`s keep the outputs of attention kernels: torch's own for this task
compares every operator of both passes, which differ under ZeRO-3 (`runtime/models/kept_attention.py`).
"""

from __future__ import annotations

from harness.patches.patch_registry import Patch, Target

PATCH = Patch(
    name="layer-checkpointing",
    kind="use",
    targets=(
        Target("transformers.modeling_utils:PreTrainedModel._set_gradient_checkpointing", "990d7bd8a9d92a00"),
        Target("transformers.modeling_layers:GradientCheckpointingLayer", "854419dcb072563b|1b0a5d4f061a5bf9"),
        Target("torch.utils._python_dispatch:TorchDispatchMode", "db89cb969ced681f|af6cdcaf2b864509"),
        Target("torch.utils._pytree:tree_map_only", "6fd846efc4250ffd"),
    ),
    remove_when="`gradient_checkpointing_enable` takes a function",
    when="`train.gradient_checkpointing`",
    package="transformers",
    tested=("5.23.0", "5.24.0"),
    private_names=("_is_view",),
    is_needed=lambda run: run.has_layer_checkpointing,
)
