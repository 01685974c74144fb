"""Blocks that a pipeline does not look at.

## What it checks
`hybrid_engine`, `compile.deepcompile`, a `data_efficiency` curriculum or the `activation_checkpointing` block with
pipeline stages.

## Why it fails
The pipeline engine has its own loop, its own data loader and its own checkpointing (`pipeline.
activation_checkpoint_interval`). Each of these blocks is accepted and changes nothing: engine class and losses are
the same (run on 0.19.8). Calling `engine.compile()` with DeepCompile fails in a pipeline.

## Example
```yaml
train:
  gradient_accumulation_steps: 8
zero:
  stage: 1
parallel:
  pipeline_parallel_size: 2
deepspeed:
  hybrid_engine:
    enabled: true
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

_CURRICULUM = "data_efficiency.data_sampling.curriculum_learning"


@gate(
    "PP010",
    "block-that-a-pipeline-ignores",
    upstream="silent",
    cites=(Cite("__init__.py", "if not isinstance(model, PipelineModule):"),),
    when=lambda ctx: ctx.pipeline_parallel_size > 1,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Accepted, and without effect."""
    found = {
        "hybrid_engine": ctx.is_enabled("hybrid_engine"),
        "compile.deepcompile": ctx.ds("compile.deepcompile") is True,
        "activation_checkpointing": bool(ctx.ds("activation_checkpointing")),
        "data_efficiency": ctx.is_enabled("data_efficiency") and ctx.is_enabled(_CURRICULUM),
    }
    for name, there in found.items():
        if not there:
            continue
        key = f"deepspeed.{name}"
        yield ctx.finding(
            f"a pipeline does not look at {ctx.key(key)}",
            key,
            label="has no effect",
            related=[("parallel.pipeline_parallel_size", "the pipeline is asked for here")],
            fix=Fix(f"remove {ctx.key(key)}", {key: None}, safe=name != "data_efficiency", effect="the same"),
            severity="warning",
        )
