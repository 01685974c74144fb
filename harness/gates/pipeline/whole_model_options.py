"""What needs the whole model in one place, in a pipeline.

## What it checks
`model.lora`, `train.torch_compile`, `train.gradient_checkpointing_use_reentrant` and `train.offload_activations` are
off when there are pipeline stages.

## Why it fails
Adapters and a compiled model are made around one whole model, which no rank of a pipeline has. Layers of a pipeline are
computed anew by DeepSpeed's function that is not reentrant; with the reentrant one the embedding gets no gradient (see
PP006), and DeepSpeed's offload of activations is part of that one.

## Example
```yaml
model:
  name_or_path: Qwen/Qwen2.5-1.5B
  lora: {r: 8}
train:
  gradient_accumulation_steps: 8
zero:
  stage: 1
parallel:
  pipeline_parallel_size: 2
```

## Use instead
```yaml
model:
  name_or_path: Qwen/Qwen2.5-1.5B
train:
  gradient_accumulation_steps: 8
zero:
  stage: 1
parallel:
  pipeline_parallel_size: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate(
    "PP016",
    "pipeline-with-what-needs-the-whole-model",
    upstream="silent",
    needs=("a run spec",),
    when=lambda ctx: ctx.pipeline_parallel_size > 1,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Each of them is for a model that one rank has whole."""
    spec = ctx.run.spec
    found = {
        "model.lora": spec.model.lora is not None,
        "train.torch_compile": spec.train.torch_compile,
        "train.gradient_checkpointing_use_reentrant": spec.train.gradient_checkpointing_use_reentrant,
        "train.offload_activations": spec.train.offload_activations,
    }
    for key, there in found.items():
        if there:
            yield ctx.finding(
                f"{ctx.key(key)} is not built for {ctx.pipeline_parallel_size} pipeline stages",
                key,
                related=[("parallel.pipeline_parallel_size", "the pipeline is asked for here")],
                notes=["`zero.stage: 3` divides a large model and works with it"],
                fix=Fix(f"remove {ctx.key(key)}", {key: None}, effect="trains without it"),
            )
