"""AutoTP with ZeRO stage 3.

## What it checks
`zero.stage: 3` together with `parallel.tensor_parallel_size` above 1.

## Why it fails
DeepSpeed's documentation promises AutoTP training at stages 0, 1 and 2. What the releases do with stage 3: 0.16.4 to
0.19.3 refuse it (0.18.2 by an AttributeError); from 0.19.4 on the check is gone, and 0.19.7 and 0.19.8 train with the
losses of stages 0 to 2 (run). Because only the documentation is a promise, stage 3 is refused on every release; a
spec that says `allow_undocumented: [TP001]` gets a warning instead, on a release that trains it. Before 0.16.4 there
is no AutoTP training at any stage: see `autotp-before-0-16-4`.

## Example
```yaml
zero:
  stage: 3
parallel:
  tensor_parallel_size: 2
```

## Use instead
```yaml
zero:
  stage: 2
parallel:
  tensor_parallel_size: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.facts.deepspeed import Version
from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate

_TRAINS_SINCE: Version = (0, 19, 4)


@gate(
    "TP001",
    "autotp-with-zero-3",
    upstream="raises",
    cites=(Cite("runtime/engine.py", "AutoTP + ZeRO stage 3 is supported for both inference and training"),),
    since="0.16.4",
    when=lambda ctx: ctx.tensor > 1 and ctx.stage == 3,
    policy="only stages 0 to 2 are documented",
)
def check(ctx: Context) -> Iterator[Finding]:
    """AutoTP is documented for stages 0 to 2."""
    version = ctx.target.version
    allowed = "TP001" in ctx.run.spec.allow_undocumented and version >= _TRAINS_SINCE
    notes = [_what_it_does(version, ctx.target.text)]
    if version >= _TRAINS_SINCE and not allowed:
        notes.append(
            "`allow_undocumented: [TP001]` makes this a warning on this release"
            if ctx.run.kind == "spec"
            else "this release trains it: `validate-config --ignore TP001` lets it pass"
        )
    yield ctx.finding(
        f"AutoTP over {ctx.tensor} ranks is documented for ZeRO stages 0 to 2, this is stage 3",
        "zero.stage",
        label="shards parameters a second time",
        related=[("parallel.tensor_parallel_size", "tensor parallelism is asked for here")],
        notes=notes,
        fix=Fix(
            f"set {ctx.key('zero.stage')} to 2", {"zero.stage": 2}, safe=True, effect="the same steps with more memory"
        ),
        severity="warning" if allowed else "error",
    )


def _what_it_does(version: Version, text: str) -> str:
    if version < _TRAINS_SINCE:
        return f"DeepSpeed {text} refuses it when the engine is built"
    return f"DeepSpeed {text} trains it, but its documentation does not promise it"
