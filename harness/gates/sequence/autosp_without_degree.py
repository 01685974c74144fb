"""AutoSP without a sequence degree.

## What it checks
`autosp` in `compile.passes` while the sequence degree is 1.

## Why it fails
AutoSP takes the mesh of `sequence_parallel_size` and `data_parallel_size` from the JSON, and there is nothing to
split over one rank (read in 0.19.8).

## Example
```yaml
zero:
  stage: 1
deepspeed:
  compile:
    deepcompile: true
    passes: [autosp]
```

## Use instead
```yaml
zero:
  stage: 1
parallel:
  sequence_parallel_size: 2
deepspeed:
  compile:
    deepcompile: true
    passes: [autosp]
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "SQ008",
    "autosp-without-a-sequence-degree",
    upstream="silent",
    cites=(Cite("compile/init_sp.py", "sp_size, dp_size = extract_mesh_size(config._param_dict)"),),
    since="0.18.9",
    when=lambda ctx: ctx.sequence_parallel_size == 1 and "autosp" in (ctx.ds("compile.passes") or ()),
    unseen="DeepCompile needs CUDA",
)
def check(ctx: Context) -> Iterator[Finding]:
    """A mesh of one rank splits nothing."""
    key, degree = "deepspeed.compile.passes", "parallel.sequence_parallel_size"
    yield ctx.finding(
        f"the pass `autosp` has nothing to split: {ctx.key(degree)} is 1",
        key,
        fix=Fix(
            f"set {ctx.key(degree)}, or take `autosp` out of {ctx.key(key)}",
            {degree: 2},
            effect="splits each sequence over two ranks",
        ),
    )
