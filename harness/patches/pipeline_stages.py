# SPDX-License-Identifier: Apache-2.0
"""Creates only the layers of its own stage on each rank of a pipeline.

Upstream: `PipelineModule` builds its stage from layer specifications, but a model of `transformers` is created whole on
every rank before it can be split.

Patch: `runtime/pipeline/` overrides `PipelineModule._build`, fills the weights of the layers between `_local_start` and
`_local_stop` first, and creates the model under a `TorchDispatchMode` in which new weights have no memory. It overrides
`_is_checkpointable` for `train.gradient_checkpointing: {recompute_every: K}`, since DeepSpeed's own interval recomputes
K layers as one. It marks with `model_parallel` the parameters that this rank counts in a norm over the model: without
the mark, DeepSpeed clips an fp32 pipeline at stage 0 by the norm of the first stage alone, and counts no shard of other
tensor ranks. Where stages have different numbers of parameter groups, it lets `scaled_global_norm` of the ZeRO
optimizer take part in as many sums as the stage with most groups (`runtime/engine.py`): ZeRO sums once
for each group, and the ranks of the other stages would wait for ever."""

from __future__ import annotations

from harness.patches.patch_registry import Patch, Target

PATCH = Patch(
    name="pipeline-stages",
    kind="use",
    targets=(
        Target("deepspeed.runtime.pipe.module:PipelineModule.__init__", "e73e8aab253c0271"),
        Target("deepspeed.runtime.pipe.module:PipelineModule._build", "f25bd28404110930"),
        Target("deepspeed.runtime.pipe.module:PipelineModule._is_checkpointable", "e139154cfc37d49a"),
        Target("deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer.scaled_global_norm", "dc92e288b225d6c6"),
        Target(
            "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer._model_parallel_all_reduce", "9d2dd509135988d6"
        ),
        Target("torch.utils._python_dispatch:TorchDispatchMode", "db89cb969ced681f|af6cdcaf2b864509"),
    ),
    remove_when="`PipelineModule` has a public hook before the layers of a stage are built",
    when="`parallel.pipeline_parallel_size` above 1",
    private_names=("_layer_specs", "_local_start", "_local_stop", "_schema", "_cdata"),
    is_needed=lambda run: run.pipeline_size > 1,
)
