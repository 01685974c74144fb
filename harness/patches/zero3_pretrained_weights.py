# SPDX-License-Identifier: Apache-2.0
"""Loads pretrained weights into the shards of ZeRO-3, one tensor at a time.

Upstream: `from_pretrained` under ZeRO-3 creates every parameter whole first, and rank 0 maps all files: four times the
model in host memory with 4 ranks and 1 GB of weights.

Patch: `runtime/models/zero3_weights.py` matches stored names with those of the model through undocumented functions of
`transformers`, and passes `deepspeed.zero.Init` one parameter after the other.
"""

from __future__ import annotations

from harness.patches.patch_registry import Patch, Target

PATCH = Patch(
    name="zero3-pretrained-weights",
    kind="use",
    targets=(
        Target("deepspeed.runtime.keep_in_fp32:keep_in_fp32_pattern", "37fbb68368bd9da5"),
        Target("deepspeed.runtime.keep_in_fp32:keep_buffers_in_fp32", "b42e76bbb232a8ad"),
        Target("deepspeed.runtime.zero.partition_parameters:Init.__init__", "7e92831cea9391a6"),
        Target("transformers.conversion_mapping:get_model_conversion_mapping", "ee0b27c166649faf"),
        Target("transformers.core_model_loading:WeightConverter", "fc46b713a25c4e9f"),
        Target("transformers.core_model_loading:rename_source_key", "ba2a1f761f958ac8"),
        Target("transformers.initialization:no_init_weights", "47148cfa6855bae0"),
    ),
    remove_when="`from_pretrained` under ZeRO-3 holds one whole tensor at a time",
    when="stage 3 without AutoTP, with pretrained weights that no plug-in loads",
    refuses_when_used=True,
    is_needed=lambda run: run.stage == 3 and run.is_pretrained and run.tensor_size == 1,
)
