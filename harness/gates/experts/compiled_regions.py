"""Compiling around AutoEP where it is refused.

## What it checks
`compile.autoep_non_moe: true` with DeepCompile, a `comm_backend` other than `comm`, a tensor, pipeline or sequence
degree, ZeRO stage 3, or offload.

## Why it fails
`engine.compile()` raises ValueError for each of them: the key compiles the plain parts of the model around eager
experts, and nothing that changes those parts (read in 0.19.8).

## Example
```yaml
zero:
  stage: 3
deepspeed:
  expert_parallel:
    enabled: true
    autoep_size: 2
  compile:
    autoep_non_moe: true
```

## Use instead
```yaml
zero:
  stage: 2
deepspeed:
  expert_parallel:
    enabled: true
    autoep_size: 2
  compile:
    autoep_non_moe: true
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "EX018",
    "compiling-around-experts-refused",
    upstream="raises",
    cites=(Cite("runtime/engine.py", "compile.autoep_non_moe=True does not support ZeRO Stage 3 yet."),),
    since="0.19.8",
    when=lambda ctx: ctx.ds("compile.autoep_non_moe") is True,
    unseen="seen only when the script calls engine.compile()",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Plain parts around eager experts."""
    key = "deepspeed.compile.autoep_non_moe"
    faults = {
        "zero.stage": (ctx.stage == 3, "ZeRO stage 3"),
        "deepspeed.compile.deepcompile": (ctx.ds("compile.deepcompile") is True, "DeepCompile"),
        "deepspeed.expert_parallel.comm_backend": (ctx.ds("expert_parallel.comm_backend") == "deepep", "DeepEP"),
        "parallel.tensor_parallel_size": (ctx.tensor_parallel_size > 1, "tensor parallelism"),
        "parallel.pipeline_parallel_size": (ctx.pipeline_parallel_size > 1, "a pipeline"),
        "parallel.sequence_parallel_size": (ctx.sequence_parallel_size > 1, "sequence parallelism"),
        "zero.offload_optimizer": (ctx.offload_device("offload_optimizer") != "none", "an offloaded optimizer"),
        "zero.offload_param": (ctx.offload_device("offload_param") != "none", "offloaded parameters"),
    }
    found = {place: what for place, (there, what) in faults.items() if there}
    if not found:
        return
    yield ctx.finding(
        f"{ctx.key(key)} does not go with {', '.join(list(found.values())[:4])}",
        key,
        related=list(found.items()),
        notes=["`engine.compile()` raises ValueError"],
        fix=Fix(f"remove {ctx.key(key)}", {key: None}, effect="the model is compiled as a whole, or not at all"),
    )
