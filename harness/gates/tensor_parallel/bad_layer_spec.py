r"""A layer spec that DeepSpeed cannot read.

## What it checks
In `tensor_parallel.partition_config.layer_specs`: each pattern is a regular expression; `shape` is a list of whole
numbers (-1 once, for what is left), with at most one list of sizes inside, which stands at `partition_dim`; a shape
has `partition_dim`'s dimension; `shape` does not go with `gather_output`.

## Why it fails
DeepSpeed compiles the patterns and reads the shapes while it shards the model, after every rank has built it:
`re.error`, `ValueError: AutoTP shape ...` or NotImplementedError (a bad pattern was run on 0.19.8, the others read).

## Example
```yaml
parallel:
  tensor_parallel_size: 2
deepspeed:
  tensor_parallel:
    partition_config:
      layer_specs:
        - patterns: ['*.o_proj.weight$']
          partition_type: row
        - patterns: ['.*\.[qkv]_proj\.weight$']
          partition_type: column
```

## Use instead
```yaml
parallel:
  tensor_parallel_size: 2
deepspeed:
  tensor_parallel:
    partition_config:
      layer_specs:
        - patterns: ['.*\.o_proj\.weight$']
          partition_type: row
        - patterns: ['.*\.[qkv]_proj\.weight$']
          partition_type: column
```
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate
from harness.gates.tensor_parallel.shapes import compiled

_SPECS = "deepspeed.tensor_parallel.partition_config.layer_specs"


@gate(
    "TP014",
    "unreadable-layer-spec",
    upstream="raises",
    cites=(Cite("module_inject/autotp_config.py", "AutoTP shape must contain only integers or a tuple at"),),
    since="0.18.6",
    when=lambda ctx: (
        ctx.tensor_parallel_size > 1 and isinstance(ctx.ds("tensor_parallel.partition_config.layer_specs"), list)
    ),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Patterns compile, shapes make sense."""
    for index, spec in enumerate(ctx.ds("tensor_parallel.partition_config.layer_specs")):
        if not isinstance(spec, dict):
            continue
        for name, what in _faults(spec):
            value = spec.get("patterns") if name == "patterns" else None
            mended = [_mended(p) for p in value] if isinstance(value, list) else None
            good = mended if mended and all(compiled(p) for p in mended if isinstance(p, str)) else None
            yield ctx.finding(
                f"layer spec {index + 1}: {what}",
                f"{_SPECS}.{index}.{name}",
                notes=["DeepSpeed fails on it while it shards the model"],
                fix=Fix(
                    f"write {', '.join(f'`{p}`' for p in good)}" if good else f"remove `{name}`",
                    {f"{_SPECS}.{index}.{name}": good},
                    effect="shards the layers that it matches" if good else "shards the weight as it is",
                ),
            )


def _faults(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    patterns = spec.get("patterns")
    for pattern in patterns if isinstance(patterns, list) else ():
        if isinstance(pattern, str) and compiled(pattern) is None:
            yield "patterns", f"`{pattern[:60]}` is no regular expression"
            break
    shape = spec.get("shape")
    if isinstance(shape, list):
        row = str(spec.get("partition_type", "column")).lower() == "row"
        given = spec.get("partition_dim")
        wrong = _wrong_shape(shape, given if isinstance(given, int) else int(row))
        if wrong:
            yield "shape", wrong
        elif spec.get("gather_output") and not row:
            yield "shape", "`shape` does not go with `gather_output`"


def _wrong_shape(shape: list[Any], dim: int) -> str:
    if not 0 <= dim < len(shape):
        return f"`partition_dim` {dim} is outside a `shape` of {len(shape)} dimensions"
    for index, size in enumerate(shape):
        if isinstance(size, list):
            if index != dim:
                return f"sizes of parts stand at dimension {index}, `partition_dim` is {dim}"
            if not size or not all(isinstance(s, int) and s > 0 for s in size):
                return "the sizes of parts in `shape` are whole numbers above 0"
        elif not isinstance(size, int) or size == 0 or size < -1:
            return f"`shape` has {size!r} where a whole number above 0, or -1, belongs"[:150]
    return ""


def _mended(pattern: Any) -> Any:
    """A shell's `*` at the beginning is a regular expression's `.*`."""
    return "." + pattern if isinstance(pattern, str) and pattern.startswith("*") else pattern
