"""A checkpoint writer that DeepSpeed cannot build.

## What it checks
A `checkpoint.writer` block: on the CPU always; elsewhere without `data_parallel`, below ZeRO stage 3, without tensor
or pipeline parallelism.

## Why it fails
Whatever `type` says, DeepSpeed takes its fast or its decoupled writer and asks a record for `dp_rank`, which that
record has not: `AttributeError: 'UniversalParallelInfo' object has no attribute 'dp_rank'` when the engine is built
(run on 0.19.8 at stages 0, 1 and 2, with the types mock, python and fast and with an empty block). With
`data_parallel`, or at stage 3, the CPU accelerator is refused (run on 0.19.8).

## Example
```yaml
zero:
  stage: 2
deepspeed:
  checkpoint:
    writer:
      type: fast
```

## Use instead
```yaml
zero:
  stage: 2
checkpoint:
  save_steps: 5
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "CK006",
    "checkpoint-writer-without-ranks",
    upstream="raises",
    cites=(
        Cite(
            "runtime/model_checkpointing/data_parallel_writer_factory.py",
            "dp_rank = self._uni_parallel_info.dp_rank if mpu_info is None else mpu_info.dp_rank",
        ),
    ),
    since="0.19.8",
    when=lambda ctx: ctx.has_key("checkpoint.writer"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """The default writer works."""
    writer = ctx.ds("checkpoint.writer")
    key = ctx.spec_key("checkpoint.writer")
    if not isinstance(writer, dict):
        return
    if writer.get("data_parallel") or ctx.stage == 3 or ctx.tensor_parallel_size > 1 or ctx.pipeline_parallel_size > 1:
        if ctx.accelerator != "cpu":
            return
        message = f"{ctx.key(key)} needs an accelerator, and this run is on the CPU"
        note = "DeepSpeed says `Cannot access accelerator device when none is available`"
    else:
        message = f"{ctx.key(key)} fails in DeepSpeed's own code below ZeRO stage 3, this is stage {ctx.stage}"
        note = "its record of ranks has no `dp_rank`, which the writer asks for"
    yield ctx.finding(
        message,
        key,
        of_key=True,
        related=[("zero.stage", "the stage is set here")],
        notes=[note],
        fix=Fix(f"remove {ctx.key(key)}", {key: None}, safe=True, effect="checkpoints are written by `torch.save`"),
    )
