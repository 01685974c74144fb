"""AutoEP under a PipelineModule.

## What it checks
An enabled `expert_parallel` block with pipeline stages.

## Why it fails
The expert groups are made for the ranks of one stage, but the layers of a PipelineModule are not those that AutoEP's
presets name, so nothing is found and every rank keeps all experts. With one data-parallel rank a stage it is refused:
"must divide the stage size" (run on 0.19.8). With tensor parallelism beside it DeepSpeed refuses any pipeline.

## Example
```yaml
train:
  gradient_accumulation_steps: 8
zero:
  stage: 1
parallel:
  pipeline_parallel_size: 2
deepspeed:
  expert_parallel:
    enabled: true
    autoep_size: 2
```

## Use instead
```yaml
zero:
  stage: 1
deepspeed:
  expert_parallel:
    enabled: true
    autoep_size: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.experts.autoep import enabled
from harness.gates.registry import Cite, Context, gate


@gate(
    "EX015",
    "expert-parallelism-in-a-pipeline",
    upstream="silent",
    cites=(Cite("module_inject/auto_ep_folding.py", "folding currently supports pp_size=1 only"),),
    since="0.19.2",
    when=lambda ctx: enabled(ctx) and ctx.pipeline_parallel_size > 1,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Presets name the layers of Hugging Face models."""
    key = "deepspeed.expert_parallel.enabled"
    yield ctx.finding(
        f"AutoEP finds no layers to replace in a pipeline of {ctx.pipeline_parallel_size} stages",
        key,
        related=[("parallel.pipeline_parallel_size", "the pipeline is asked for here")],
        fix=Fix(f"set {ctx.key(key)} to false", {key: False}, effect="every rank of a stage owns all its experts"),
    )
