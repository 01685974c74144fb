# SPDX-License-Identifier: Apache-2.0
"""Uses DeepSpeed's Ulysses attention and its sequence groups for models of `transformers`.

Upstream: `UlyssesSPAttentionHF` exchanges sequence parts for heads, for one shape and without masks; groups, positions
and the loss are left to the caller. The keys of the JSON (`sequence_parallel_size`) make groups too, but ZeRO 0 to 2
then reduces over the data ranks alone, and the weights of a sequence group drift apart (run on 0.19.8).

Patch: `runtime/parallel/sequence_parallel.py` creates the groups, asks `_SEQUENCE_PARALLEL_GROUP` whether they exist,
and replaces the model's function in the attention registry of `transformers`.
"""

from __future__ import annotations

from harness.patches.patch_registry import Patch, Target

_SEQUENCE = "deepspeed.runtime.sequence_parallel"

PATCH = Patch(
    name="ulysses-attention",
    kind="use",
    targets=(
        Target(f"{_SEQUENCE}.parallel_state_sp:_SEQUENCE_PARALLEL_GROUP", "4cedd06bb8fa0f40"),
        Target(f"{_SEQUENCE}.parallel_state_sp:initialize_sequence_parallel", "a7b4fc91a4e3f0d4"),
        Target(f"{_SEQUENCE}.ulysses_sp:UlyssesSPAttentionHF", "a1721c0376e8576b"),
        Target("transformers.modeling_utils:ALL_ATTENTION_FUNCTIONS", "50cf3313c482a854"),
        Target("transformers.configuration_utils:PreTrainedConfig._attn_implementation", "91cb234ae18ae094"),
    ),
    remove_when="DeepSpeed splits masks and packed documents over a sequence group, from keys of the JSON",
    when="`parallel.sequence_parallel_size` above 1",
    is_needed=lambda run: run.sequence_size > 1,
)
