"""Checkpoint shards that stay on the host that wrote them.

## What it checks
`checkpoint.use_node_local_storage: true` with more than one host.

## Why it fails
Each host then writes only the files of its own ranks, numbered by local rank. On disks that are not shared no host
has a whole checkpoint: a resume on other hosts, or with their order changed, does not find its shards, and nothing
can be exported. (Read in 0.19.8; on a single host the flag changes nothing, which was run.)

## Example
```yaml
deepspeed:
  checkpoint:
    use_node_local_storage: true
```
```hostfile
worker-0 slots=2
worker-1 slots=2
```

## Use instead
```yaml
checkpoint:
  save_steps: 5
```
```hostfile
worker-0 slots=2
worker-1 slots=2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "CK005",
    "node-local-checkpoints-on-several-hosts",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "rank = self.local_rank if self.use_node_local_storage() else dp_rank"),),
    needs=("hosts",),
    when=lambda ctx: ctx.ds("checkpoint.use_node_local_storage") is True,
    unseen="needs several hosts",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Hosts that share nothing share no checkpoint."""
    hosts = len(ctx.slots or ())
    if hosts < 2:
        return
    key = ctx.spec_key("checkpoint.use_node_local_storage")
    yield ctx.finding(
        f"with {ctx.key(key)} none of the {hosts} hosts has a whole checkpoint",
        key,
        severity="warning",
        notes=["a resume on other hosts, or in another order, does not find its shards"],
        fix=Fix(
            f"remove {ctx.key(key)} and save to a shared folder", {key: None}, effect="all hosts save to one folder"
        ),
    )
