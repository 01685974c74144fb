r"""A partition plan that matches nothing, or one half of a pair.

## What it checks
`tensor_parallel.partition_config.layer_specs` against the names of the model's weights: some weight is sharded by row
or by column, and no block (attention, MLP) has only one of the two.

## Why it fails
With a `partition_config` DeepSpeed shards what it names and nothing else. A pattern that matches no weight is
ignored: the ranks of the tensor group all repeat the same work on the same samples, without a word. With one half of
a pair the first forward pass fails: "mat1 and mat2 shapes cannot be multiplied" (both run on 0.19.8). Patterns are
matched from the beginning of the name, and the names end in `.weight`.

## Example
```yaml
model:
  name_or_path: meta-llama/Llama-3.1-8B
parallel:
  tensor_parallel_size: 2
deepspeed:
  tensor_parallel:
    partition_config:
      layer_specs:
        - patterns: ['.*\.mlp\.down_proj\.weight$']
          partition_type: row
```

## Use instead
```yaml
model:
  name_or_path: meta-llama/Llama-3.1-8B
parallel:
  tensor_parallel_size: 2
deepspeed:
  tensor_parallel:
    partition_config:
      layer_specs:
        - patterns: ['.*\.mlp\.down_proj\.weight$']
          partition_type: row
        - patterns: ['.*\.mlp\.(up|gate)_proj\.weight$']
          partition_type: column
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate
from harness.gates.tensor_parallel.shapes import PRESETS, layer_specs, roles


@gate(
    "TP015",
    "partition-plan-that-shards-nothing",
    upstream="silent",
    cites=(Cite("module_inject/auto_tp.py", "With partition_config, rely only on explicit specs and skip unmatched"),),
    since="0.18.6",
    needs=("model facts",),
    when=lambda ctx: ctx.tensor_parallel_size > 1 and isinstance(ctx.ds("tensor_parallel.partition_config"), dict),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Both halves, or the layer stays whole."""
    config, preset = ctx.ds("tensor_parallel.partition_config"), str(ctx.ds("tensor_parallel.preset_model", "")).lower()
    merged = preset in PRESETS and config.get("use_default_specs", True)
    if ctx.model is None or ctx.model.built or merged:
        return
    found = roles(ctx.model, layer_specs(config))
    sharded = {name: role for name, role in found.items() if role in ("row", "column", "gathered")}
    what = _half(sharded) if sharded else "`partition_config` matches no weight of the model, nothing is sharded"
    if not what:
        return
    key, degree = "deepspeed.tensor_parallel.partition_config", "parallel.tensor_parallel_size"
    yield ctx.finding(
        what,
        f"{key}.layer_specs",
        related=[("model.name_or_path", f"a `{ctx.model.family}` model"), (degree, "tensor parallelism is asked for")],
        notes=[
            "the first forward pass fails: the shapes of the two halves do not fit"
            if sharded
            else "DeepSpeed says nothing; every rank of the tensor group repeats the same work"
        ],
        fix=Fix(
            f"remove {ctx.key(key)}, so that the plan of `transformers` counts, or name both halves",
            {key: None},
            effect="shards every layer",
        ),
    )


def _half(sharded: dict[str, str]) -> str:
    blocks: dict[str, set[str]] = {}
    for name, role in sharded.items():
        block = name.rsplit(".", 2)[0] if name.count(".") > 1 else ""
        blocks.setdefault(block, set()).add(role)
    for block, kinds in blocks.items():
        if ("row" in kinds) != ("column" in kinds) and block:
            done, missing = ("row", "column") if "row" in kinds else ("column", "row")
            return f"`{block}` has layers split by {done} and none split by {missing}: one half of a pair"
    return ""
