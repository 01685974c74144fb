"""Reentrant activation checkpointing of a pipeline's first layers.

## What it checks
`pipeline.activation_checkpoint_interval` above 0 with pipeline stages, unless `pipeline.use_reentrant` is false.

## Why it fails
The reentrant function gives gradients only where an input needs one. The first interval of a language model takes
nothing but token ids, so its embedding gets none: "element 0 of tensors does not require grad" in the first step (run
on 0.19.8; up to 0.19.7 the CPU accelerator fails on it with a TypeError). Megatron's `GPTModelPipe` is told apart by
its name and spares its embedding; a PipelineModule with `checkpointable_layers` can spare it too, hence a warning for
a JSON.

## Example
```yaml
train:
  gradient_accumulation_steps: 8
zero:
  stage: 1
parallel:
  pipeline_parallel_size: 2
deepspeed:
  pipeline:
    activation_checkpoint_interval: 1
```

## Use instead
```yaml
train:
  gradient_accumulation_steps: 8
zero:
  stage: 1
parallel:
  pipeline_parallel_size: 2
deepspeed:
  pipeline:
    activation_checkpoint_interval: 1
    use_reentrant: false
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "PP006",
    "reentrant-checkpointing-in-a-pipeline",
    upstream="crashes",
    cites=(
        Cite("runtime/pipe/module.py", "otherwise, the backward of the embedding layer won't receive gradients"),
        Cite("runtime/pipe/engine.py", "self._config.pipeline['use_reentrant'] = True"),
    ),
    when=lambda ctx: ctx.pipeline_parallel_size > 1,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Token ids carry no gradient."""
    interval = ctx.ds("pipeline.activation_checkpoint_interval", 0)
    if not isinstance(interval, int) or interval < 1 or ctx.ds("pipeline.use_reentrant") is False:
        return
    never = ctx.accelerator == "cpu" and ctx.target.version < (0, 19, 8)
    key, switch = "deepspeed.pipeline.activation_checkpoint_interval", "deepspeed.pipeline.use_reentrant"
    yield ctx.finding(
        f"reentrant checkpointing every {interval} layers leaves a pipeline's embedding without gradient",
        key,
        related=[(switch, "set here"), ("parallel.pipeline_parallel_size", "the pipeline is asked for here")],
        notes=["the first step fails: `element 0 of tensors does not require grad`"],
        fix=Fix(f"set {ctx.key(switch)} to false", {switch: False}, safe=True, effect="the same gradients"),
        severity="error" if ctx.run.kind == "spec" or never else "warning",
    )
