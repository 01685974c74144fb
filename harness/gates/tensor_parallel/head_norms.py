"""Norms over split heads whose gradients are not summed.

## What it checks
Families that normalise queries and keys head by head (qwen3, qwen3_moe, gemma3): AutoTP has a plan that sums the
gradients of `q_norm` and `k_norm` over the tensor group. A preset has none; neither has any release up to 0.19.5; a
`partition_config` has one where a spec with `partition_type: skip` and `grad_allreduce: true` matches them.

## Why it fails
`q_norm` and `k_norm` are one small weight for all heads. Each tensor rank has some of the heads, so it computes a
part of the gradient, and steps with that part alone: the copies of the weight drift apart from the first step on,
without a word. Run on 0.19.8 with a small qwen3 on two ranks: after three steps the preset `llama` had left sums of
16.0218 and 16.0142 on the two ranks, the plan of `transformers` and a `partition_config` with `grad_allreduce`
16.0362 on both, as one rank does. With gemma3 the preset drifts as well. What releases up to 0.19.5 do was read.

## Example
```yaml
model:
  name_or_path: Qwen/Qwen3-8B
parallel:
  tensor_parallel_size: 2
deepspeed:
  tensor_parallel:
    preset_model: llama
```

## Use instead
```yaml
model:
  name_or_path: Qwen/Qwen3-8B
parallel:
  tensor_parallel_size: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate
from harness.gates.tensor_parallel.shapes import PRESETS, SPLIT_HEAD_NORMS, compiled, layer_specs


@gate(
    "TP010",
    "head-norms-drift-apart",
    upstream="silent",
    cites=(Cite("module_inject/autotp_config.py", "so the gradients must be summed across the"),),
    since="0.16.4",
    needs=("model facts",),
    when=lambda ctx: ctx.tensor_parallel_size > 1,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Replicated weights need whole gradients."""
    model = ctx.model
    if model is None or model.family not in SPLIT_HEAD_NORMS:
        return
    preset, partition = (
        str(ctx.ds("tensor_parallel.preset_model", "")).lower(),
        ctx.ds("tensor_parallel.partition_config"),
    )
    old = ctx.target.version < (0, 19, 6)
    if not old and ((preset not in PRESETS and not partition) or _summed(partition, model.layer_path)):
        return
    degree, key = "parallel.tensor_parallel_size", "deepspeed.tensor_parallel.preset_model"
    own = "deepspeed.tensor_parallel.partition_config"
    where = degree if old else own if partition else key
    why = f"DeepSpeed {ctx.target.text}" if old else "the `partition_config`" if partition else f"the preset `{preset}`"
    yield ctx.finding(
        f"{why} does not sum the gradients of `q_norm` and `k_norm` over {ctx.tensor_parallel_size} tensor ranks",
        where,
        label="the ranks' copies drift apart",
        related=[("model.name_or_path", f"a `{model.family}` model"), (degree, "the heads are split here")],
        notes=["nothing is checked or told; the losses stay plausible"],
        fix=Fix(f"set {ctx.key(degree)} to 1", {degree: 1}, effect="trains data parallel")
        if old
        else Fix(
            f"remove {ctx.key(where)}",
            {key: None, own: None},
            effect="the plan of `transformers` counts, which sums them",
        ),
    )


def _summed(partition: object, layers: str) -> bool:
    """Does a spec of the `partition_config` sum the gradients of the norms?"""
    names = [f"{layers}.0.self_attn.{name}.weight" for name in ("q_norm", "k_norm")]
    patterns = [
        found
        for spec in layer_specs(partition)
        if spec.get("grad_allreduce") and str(spec.get("partition_type", "")).lower() == "skip"
        for pattern in spec.get("patterns") or ()
        if isinstance(pattern, str) and (found := compiled(pattern)) is not None
    ]
    return all(any(p.match(name) for p in patterns) for name in names)
