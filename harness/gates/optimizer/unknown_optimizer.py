"""An optimizer that DeepSpeed does not have.

## What it checks
`optimizer.type` of the DeepSpeed configuration: one of DeepSpeed's own names in any case (`Adam`, `AdamW`, `Adagrad`,
`Lamb`, `Lion`, `MuAdam`, `MuAdamW`, `MuSGD`, `Muon`), or the exact name of a class in `torch.optim`.

## Why it fails
`AssertionError: DeepSpeedCPUAdam is not a supported DeepSpeed Optimizer`, on every rank when the engine is built (run
on 0.19.8). Names of classes such as `FusedAdam` or `DeepSpeedCPUAdam` are not names of the configuration: DeepSpeed
picks the class itself. Muon is known from 0.17.6 on, the 1-bit optimizers up to 0.19.6.

## Example
```yaml
zero:
  stage: 2
  offload_optimizer:
    device: cpu
deepspeed:
  optimizer:
    type: DeepSpeedCPUAdam
    params:
      lr: 1.0e-5
      weight_decay: 0.0
```

## Use instead
```yaml
zero:
  stage: 2
  offload_optimizer:
    device: cpu
deepspeed:
  optimizer:
    type: AdamW
    params:
      lr: 1.0e-5
      weight_decay: 0.0
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.optimizer.known import ONE_BIT, OWN, TORCH, UNUSABLE
from harness.gates.registry import Cite, Context, gate

_CLASSES = {
    "fusedadam": "AdamW",
    "cpuadam": "AdamW",
    "deepspeedcpuadam": "AdamW",
    "zenflowcpuadam": "AdamW",
    "fusedlamb": "Lamb",
    "fusedlion": "Lion",
    "deepspeedcpulion": "Lion",
    "deepspeedcpuadagrad": "Adagrad",
    "muonwithauxadam": "Muon",
}
"""Classes that people write where DeepSpeed wants the optimizer's name."""


@gate(
    "OP001",
    "unknown-optimizer",
    upstream="asserts",
    cites=(Cite("runtime/engine.py", "{} is not a supported DeepSpeed Optimizer"),),
    when=lambda ctx: ctx.has_key("optimizer.type"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """A name that DeepSpeed or torch has."""
    name = _written(ctx)
    known = _known(ctx)
    if (
        name is None
        or name in TORCH
        or name in UNUSABLE
        or name.lower() in {k.lower() for k in known}
        or name == "auto"
    ):
        return
    better = _CLASSES.get(name.lower()) or _nearest(name, known)
    place = "deepspeed.optimizer.type"
    yield ctx.finding(
        f"`{name[:40]}` is no optimizer of DeepSpeed {ctx.target.text} or torch",
        place,
        notes=_why(name),
        fix=Fix(f"use `{better}`", {place: better}, effect=f"trains with {better}"),
    )


def _written(ctx: Context) -> str | None:
    """The name as the file has it: a JSON's `sgd` has become the run spec's `sgd`, which means another name."""
    if ctx.optimizer.key == "optimizer":
        if ctx.run.kind == "spec":
            return None
        block = ctx.source.data.get("optimizer")
        name = block.get("type") if isinstance(block, dict) else None
    else:
        name = ctx.optimizer.type
    return name if isinstance(name, str) else None


def _known(ctx: Context) -> list[str]:
    version = ctx.target.version
    own = [name for name in OWN if name != "Muon" or version >= (0, 17, 6)]
    return own + (list(ONE_BIT) if version < (0, 19, 7) else [])


def _nearest(name: str, known: list[str]) -> str:
    if "adam" in name.lower():
        return "AdamW"
    from harness.spec.suggestions import nearest_name

    return nearest_name(name, [*TORCH, *known]) or "AdamW"


def _why(name: str) -> list[str]:
    if name.lower() in _CLASSES:
        return ["this is the name of a class; DeepSpeed picks the class by the device and the offload settings"]
    if name.lower() == "muon":
        return ["DeepSpeed's Muon came with 0.17.6, and torch's takes matrices alone"]
    if name in ONE_BIT:
        return ["the 1-bit optimizers were removed in 0.19.7"]
    if name.lower() in {torch_name.lower() for torch_name in TORCH}:
        return ["names of torch.optim must be written exactly as torch writes them"]
    return ["DeepSpeed asserts this when it builds the engine"]
