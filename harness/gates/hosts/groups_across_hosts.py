"""Tensor or sequence groups that reach over hosts.

## What it checks
The slots of every host are a multiple of the tensor (or sequence) degree, so that each group of consecutive ranks
stays on one host. Hosts are those of the hostfile, else `cluster.num_nodes` x `cluster.gpus_per_node`.

## Why it fails
Nothing fails. A tensor group reduces activations twice a layer, a sequence group exchanges them four times; between
hosts that goes over the network, which is ten times slower than the links inside one, in every layer of every
micro-batch.

## Example
```yaml
parallel:
  tensor_parallel_size: 8
cluster:
  num_nodes: 4
  gpus_per_node: 4
```

## Use instead
```yaml
parallel:
  tensor_parallel_size: 4
cluster:
  num_nodes: 4
  gpus_per_node: 4
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "HO006",
    "parallel-group-across-hosts",
    upstream="silent",
    cites=(Cite("utils/groups.py", "def _init_tp_mesh_device("),),
    when=lambda ctx: ctx.tensor_parallel_size > 1 or ctx.sequence_parallel_size > 1,
    unseen="needs several hosts",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Consecutive ranks make a group."""
    slots = ctx.slots or _planned(ctx)
    if len(slots) < 2 or ctx.data_parallel_size is None:
        return
    for name, degree in (("tensor", ctx.tensor_parallel_size), ("sequence", ctx.sequence_parallel_size)):
        if degree < 2 or not _crosses(slots, degree):
            continue
        key, better = f"parallel.{name}_parallel_size", _degree(slots, degree)
        sizes = str(slots[0]) if len(set(slots)) == 1 else ", ".join(map(str, slots[:8]))
        yield ctx.finding(
            f"{name} groups of {degree} ranks reach over hosts of {sizes} slots",
            key,
            label=f"at most {max(slots)} on one host",
            related=[("cluster.gpus_per_node", "the ranks of a host"), ("launch.hostfile", "the hosts")],
            notes=["every layer communicates inside the group, over the network where it spans hosts"],
            fix=Fix(f"set {ctx.key(key)} to {better}", {key: better}, effect="more data-parallel ranks, other memory"),
            severity="warning",
        )


def _planned(ctx: Context) -> tuple[int, ...]:
    cluster = ctx.run.spec.cluster
    return (cluster.gpus_per_node or 0,) * (cluster.num_nodes or 0) if cluster.gpus_per_node else ()


def _crosses(slots: tuple[int, ...], degree: int) -> bool:
    first = 0
    for count in slots:
        if first % degree:
            return True
        first += count
    return False


def _degree(slots: tuple[int, ...], degree: int) -> int:
    return next(d for d in range(min(degree, max(slots)), 0, -1) if degree % d == 0 and not _crosses(slots, d))
