"""Parallel writing of pipeline layers without a pipeline.

## What it checks
`checkpoint.parallel_write.pipeline_stage: true` with one pipeline stage.

## Why it fails
Only a PipelineModule reads the switch: its data-parallel ranks share the writing of a stage's layers. A plain engine
writes as it always does (run on 0.19.8).

## Example
```yaml
deepspeed:
  checkpoint:
    parallel_write:
      pipeline_stage: true
```

## Use instead
```yaml
checkpoint:
  save_steps: 5
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "CK007",
    "parallel-write-without-pipeline",
    upstream="silent",
    cites=(
        Cite(
            "runtime/pipe/engine.py",
            "self.module.checkpoint_parallel_write_pipeline = self._config.checkpoint_parallel_write_pipeline",
        ),
    ),
)
def check(ctx: Context) -> Iterator[Finding]:
    """A switch of the pipeline's."""
    if ctx.pipeline_parallel_size > 1 or ctx.ds("checkpoint.parallel_write.pipeline_stage") is not True:
        return
    if ctx.run.kind == "deepspeed-json" and ctx.has_key("pipeline"):
        return  # the script brings the stages
    key = ctx.spec_key("checkpoint.parallel_write.pipeline_stage")
    yield ctx.finding(
        f"{ctx.key(key)} is read by a pipeline only, and this run has one stage",
        key,
        severity="warning",
        label="has no effect",
        fix=Fix(f"remove {ctx.key(key)}", {key: None}, safe=True),
    )
