"""A tensor-parallel preset for another architecture.

## What it checks
`tensor_parallel.preset_model` names the layers that this model has.

## Why it fails
A preset is a list of patterns for names of weights. Where none matches, nothing is sharded: DeepSpeed still takes the
ranks for a tensor group, so that they all repeat the same work on the same samples, without a word (run on 0.19.8:
`bloom` on a Llama). Where only one half of a pair of layers matches, the first forward pass fails with "mat1 and mat2
shapes cannot be multiplied" (run: `phi3` on a Llama). `phi3` fits no model any more: the code of `transformers` cuts
query, key and value out of the whole width, and fails in the same way (run with 4 heads and 4 key-value heads; with
fewer key-value heads the preset is refused while it shards).

## Example
```yaml
model:
  name_or_path: meta-llama/Llama-3.1-8B
parallel:
  tensor_parallel_size: 2
deepspeed:
  tensor_parallel:
    preset_model: bloom
```

## Use instead
```yaml
model:
  name_or_path: meta-llama/Llama-3.1-8B
parallel:
  tensor_parallel_size: 2
deepspeed:
  tensor_parallel:
    preset_model: llama
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate
from harness.gates.tensor_parallel.shapes import PRESETS, SPLIT_HEAD_NORMS


@gate(
    "TP009",
    "tensor-preset-of-another-model",
    upstream="silent",
    cites=(Cite("module_inject/auto_tp.py", "With partition_config, rely only on explicit specs and skip unmatched"),),
    since="0.18.6",
    needs=("model facts",),
    when=lambda ctx: (
        ctx.tensor_parallel_size > 1
        and str(ctx.ds("tensor_parallel.preset_model", "")).lower() in PRESETS
        and not ctx.ds("tensor_parallel.partition_config")
    ),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Presets are patterns of names."""
    model, preset = ctx.model, str(ctx.ds("tensor_parallel.preset_model")).lower()
    if model is None or model.built:
        return
    if model.family in PRESETS[preset]:
        return
    if preset == model.family == "phi3":
        what = "the preset `phi3` shards what a `phi3` model's own code still cuts at full width"
    else:
        what = f"the preset `{preset}` names other layers than a `{model.family}` model has"
    key, degree = "deepspeed.tensor_parallel.preset_model", "parallel.tensor_parallel_size"
    better = next((name for name, families in PRESETS.items() if model.family in families and name != preset), None)
    plain = better if model.family not in SPLIT_HEAD_NORMS else None
    yield ctx.finding(
        what,
        key,
        label="matches nothing, or one half of a pair",
        related=[("model.name_or_path", "the model"), (degree, "tensor parallelism is asked for here")],
        notes=["DeepSpeed checks nothing: unsharded layers are computed by every rank of the group"],
        fix=Fix(f"set {ctx.key(key)} to `{plain}`", {key: plain}, effect="shards the layers")
        if plain
        else Fix(f"remove {ctx.key(key)}", {key: None}, effect="the plan of `transformers` counts")
        if model.family in SPLIT_HEAD_NORMS | {"gpt_neox", "falcon", "phi"}
        else Fix(f"set {ctx.key(degree)} to 1", {degree: 1, key: None}, effect="trains data parallel"),
    )
