"""A number format that DeepSpeed does not know.

## What it checks
`torch_autocast.dtype`, `data_types.grad_accum_dtype`, `data_types.param_dtype` and `data_types.buffer_dtype` against
DeepSpeed's names: `fp32`, `float32`, `float`, `fp16`, `float16`, `half`, `bf16`, `bfloat16`, `int8`, each also with
`torch.` before its long form.

## Why it fails
The name of the autocast format is looked up while the configuration is read, the others when the engine is built:
`ValueError: 'bf_16' is not a valid DtypeEnum` on every rank (run on 0.19.8).

## Example
```yaml
zero:
  stage: 2
deepspeed:
  data_types:
    grad_accum_dtype: float8
```

## Use instead
```yaml
zero:
  stage: 2
deepspeed:
  data_types:
    grad_accum_dtype: float32
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.dtypes import DTYPE_NAMES, dtype_of
from harness.gates.registry import Cite, Context, gate

_KEYS = (
    ("torch_autocast.dtype", (0, 17, 2)),
    ("data_types.grad_accum_dtype", (0, 0, 0)),
    ("data_types.param_dtype", (0, 19, 2)),
    ("data_types.buffer_dtype", (0, 19, 2)),
)


@gate(
    "PR006",
    "unknown-number-format",
    upstream="raises",
    cites=(
        Cite("runtime/config.py", "return DtypeEnum(param_dict[TORCH_AUTOCAST][TORCH_AUTOCAST_DTYPE]).value"),
        Cite("runtime/engine.py", "grad_accum_dtype = DtypeEnum(self._config.grad_accum_dtype).value"),
    ),
    when=lambda ctx: ctx.has_key("torch_autocast") or ctx.has_key("data_types"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """A format has one of DeepSpeed's names."""
    from harness.spec.suggestions import nearest_name

    for key, since in _KEYS:
        name = ctx.ds(key)
        if not isinstance(name, str) or dtype_of(name) or ctx.target.version < since:
            continue
        better = nearest_name(name, (n for names in DTYPE_NAMES.values() for n in names)) or "bf16"
        place = f"deepspeed.{key}"
        yield ctx.finding(
            f"{ctx.key(place)} is `{name[:30]}`, which is no number format of DeepSpeed's",
            place,
            notes=["it knows fp32, fp16, bf16 and int8, also written out as in `bfloat16`"],
            fix=Fix(f"set {ctx.key(place)} to `{better}`", {place: better}, effect=f"takes {better} as the format"),
        )
