"""Keys of the `pipeline` block that nothing reads.

## What it checks
`pipeline.stages`, `pipeline.partition` and `pipeline.seed_layers`.

## Why it fails
DeepSpeed has defaults for the three and reads none of them: the arguments of the script's PipelineModule decide
(`num_stages`, `partition_method`, `seed_layers`). Losses are the same with any value (run on 0.19.8). `stages: 2` in
a JSON makes no pipeline.

## Example
```yaml
deepspeed:
  pipeline:
    stages: 2
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

_UNREAD = {"stages": "auto", "partition": "best", "seed_layers": False}


@gate(
    "PP013",
    "pipeline-key-that-nothing-reads",
    upstream="silent",
    cites=(Cite("runtime/config.py", '"partition": "best",'),),
    when=lambda ctx: ctx.has_key("pipeline"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """The PipelineModule decides."""
    for name, default in _UNREAD.items():
        value = ctx.ds(f"pipeline.{name}")
        if value is None or value == default:
            continue
        key = f"deepspeed.pipeline.{name}"
        stages = name == "stages" and ctx.run.kind == "spec"
        yield ctx.finding(
            f"DeepSpeed does not read {ctx.key(key)}; the script's PipelineModule decides",
            key,
            label="has no effect",
            fix=Fix(
                f"remove {ctx.key(key)}" + (", and set `parallel.pipeline_parallel_size`" if stages else ""),
                {key: None},
                safe=True,
                effect="the same",
            ),
            severity="warning",
        )
