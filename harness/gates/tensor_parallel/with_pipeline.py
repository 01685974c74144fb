"""AutoTP under a PipelineModule.

## What it checks
A tensor degree together with pipeline stages.

## Why it fails
AutoTP looks for the layers of a Hugging Face model and finds none in a PipelineModule: "Not able to determine model
policy automatically. Please provide policy.", an assertion at initialisation (run on 0.19.8 with one and with two
stages). Tensor parallelism in a pipeline is Megatron's, with layers that are parallel themselves.

## Example
```yaml
train:
  gradient_accumulation_steps: 8
zero:
  stage: 1
parallel:
  tensor_parallel_size: 2
  pipeline_parallel_size: 2
```

## Use instead
```yaml
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
from harness.gates.registry import Cite, Context, gate


@gate(
    "TP018",
    "autotp-in-a-pipeline",
    upstream="asserts",
    cites=(
        Cite("module_inject/auto_tp.py", "Not able to determine model policy automatically. Please provide policy."),
    ),
    since="0.16.4",
    when=lambda ctx: ctx.tensor_parallel_size > 1 and ctx.pipeline_parallel_size > 1,
)
def check(ctx: Context) -> Iterator[Finding]:
    """One of the two."""
    tensor, stages = "parallel.tensor_parallel_size", "parallel.pipeline_parallel_size"
    yield ctx.finding(
        f"AutoTP over {ctx.tensor_parallel_size} ranks finds no layers in a PipelineModule of "
        f"{ctx.pipeline_parallel_size} stages",
        tensor,
        related=[(stages, "the pipeline is asked for here")],
        notes=["DeepSpeed asserts this at initialisation, after every rank has its weights"],
        fix=Fix(f"set {ctx.key(tensor)} to 1", {tensor: 1}, effect="more data-parallel ranks, other memory"),
    )
