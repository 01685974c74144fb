"""A partition method whose pattern cannot be read, or that nothing asks for.

## What it checks
`parallel.pipeline_partition_method: type:PATTERN` has a regular expression after the colon, and there are pipeline
stages when a method is set.

## Why it fails
DeepSpeed compiles the pattern on every rank when the PipelineModule is built, after the data has been prepared. Without
stages no PipelineModule is built, and the method means nothing.

## Example
```yaml
train:
  gradient_accumulation_steps: 8
zero:
  stage: 1
parallel:
  pipeline_parallel_size: 2
  pipeline_partition_method: "type:(Decoder"
```

## Use instead
```yaml
train:
  gradient_accumulation_steps: 8
zero:
  stage: 1
parallel:
  pipeline_parallel_size: 2
  pipeline_partition_method: "type:DecoderLayer"
```
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "PP015",
    "pipeline-partition-that-cannot-be-made",
    upstream="raises",
    cites=(Cite("runtime/pipe/module.py", "typeregex = regex.compile(layername, regex.IGNORECASE)"),),
    needs=("a run spec",),
)
def check(ctx: Context) -> Iterator[Finding]:
    """The pattern compiles, and somebody uses it."""
    key = "parallel.pipeline_partition_method"
    method = ctx.run.spec.parallel.pipeline_partition_method
    fix = Fix(f"remove {ctx.key(key)}", {key: None}, effect="stages of about as many parameters each")
    if ctx.pipeline_parallel_size == 1:
        if ctx.source.has_key(key):
            yield ctx.finding(
                f"{ctx.key(key)} is set, but there are no pipeline stages",
                key,
                label="has no effect",
                fix=fix,
                severity="warning",
            )
        return
    try:
        re.compile(method.removeprefix("type:"))
    except re.error as error:
        yield ctx.finding(
            f"`{method}` has no regular expression after the colon: {error}",
            key,
            related=[("parallel.pipeline_parallel_size", "the pipeline is asked for here")],
            fix=fix,
        )
