"""bf16 in a pipeline without ZeRO.

## What it checks
`precision.bf16` with pipeline stages at ZeRO stage 0.

## Why it fails
DeepSpeed takes its `BF16_Optimizer` there, which shards masters and states over the data-parallel ranks as stage 1
does, and saves them so. On load it looks whether ZeRO is on, finds stage 0, and hands the state of one rank to code
that expects those of all: `KeyError: 0` (run on 0.19.8). The harness gets around that when it resumes, but neither
`harness export` nor a resume in another shape reads such a checkpoint. Stage 1 shards the same, and is read everywhere.

## Example
```yaml
train:
  gradient_accumulation_steps: 8
precision:
  bf16: true
parallel:
  pipeline_parallel_size: 2
```

## Use instead
```yaml
train:
  gradient_accumulation_steps: 8
precision:
  bf16: true
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
    "PP017",
    "bf16-pipeline-at-stage-0",
    upstream="crashes",
    cites=(Cite("runtime/bf16_optimizer.py", "current_rank_sd = state_dict_list[dp_rank]"),),
    needs=("a run spec",),
    when=lambda ctx: ctx.pipeline_parallel_size > 1 and ctx.stage == 0,
)
def check(ctx: Context) -> Iterator[Finding]:
    """A checkpoint that nothing else can read."""
    if not ctx.run.spec.precision.bf16:
        return
    yield ctx.finding(
        f"checkpoints of a bf16 pipeline of {ctx.pipeline_parallel_size} stages at ZeRO stage 0 cannot be exported",
        "precision.bf16",
        related=[("parallel.pipeline_parallel_size", "the pipeline is asked for here"), ("zero.stage", "the stage")],
        notes=["DeepSpeed shards the optimizer all the same, and fails to load what it saved: `KeyError: 0`"],
        fix=Fix(f"set {ctx.key('zero.stage')} to 1", {"zero.stage": 1}, effect="the same shards, in the usual files"),
    )
