# SPDX-License-Identifier: Apache-2.0
"""Creates only the layers of its own stage on each rank of a pipeline.

Upstream: `PipelineModule` builds its stage from layer specifications, but a model of `transformers` is created whole on
every rank before it can be split.

Patch: `runtime/pipeline/` overrides `PipelineModule._build`, fills the weights of the layers between `_local_start` and
`_local_stop` first, and creates the model under a `TorchDispatchMode` in which new weights have no memory. It overrides
`_is_checkpointable` for `train.gradient_checkpointing: {every: K}`, since DeepSpeed's own interval recomputes K layers
as one. It marks with `model_parallel` the parameters that this rank counts in a norm over the model: without the mark,
DeepSpeed clips an fp32 pipeline at stage 0 by the norm of the first stage alone, and counts no shard of other tensor
ranks.
"""

from __future__ import annotations

from harness.patches.patch_registry import Patch, Target

PATCH = Patch(
    name="pipeline-stages",
    kind="use",
    targets=(
        Target("deepspeed.runtime.pipe.module:PipelineModule.__init__", "e73e8aab253c0271"),
        Target("deepspeed.runtime.pipe.module:PipelineModule._build", "f25bd28404110930"),
        Target("deepspeed.runtime.pipe.module:PipelineModule._is_checkpointable", "e139154cfc37d49a"),
        Target("torch.utils._python_dispatch:TorchDispatchMode"),
    ),
    remove_when="`PipelineModule` has a public hook before the layers of a stage are built",
    when="`parallel.pipeline_parallel_size` above 1",
    private_names=("_layer_specs", "_local_start", "_local_stop", "_schema", "_cdata"),
    is_needed=lambda run: run.pipeline_size > 1,
)
