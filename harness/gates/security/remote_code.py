"""Code from a model repository is run on every rank.

## What it checks
`model.trust_remote_code: true`.

## Why it fails
`transformers` then imports Python files that the repository brings, on every rank and with the rights of the job.
Without a `model.revision` that is a full commit, what runs is whatever the repository holds at that moment: an error.
With a commit, or a folder on disk, what runs can be read beforehand: a warning.

## Example
```yaml
model:
  name_or_path: some/model
  trust_remote_code: true
```

## Use instead
```yaml
model:
  name_or_path: some/model
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate(
    "SE001",
    "remote-code-allowed",
    upstream="silent",
    needs=("a run spec",),
    policy="what `transformers` would run is not known beforehand",
)
def check(ctx: Context) -> Iterator[Finding]:
    """A pinned commit or none."""
    model = ctx.run.spec.model
    if not model.trust_remote_code:
        return
    name, revision = model.name_or_path or "", model.revision or ""
    commit = len(revision) == 40 and all(c in "0123456789abcdef" for c in revision.lower())
    fixed = commit or name.startswith(("/", "./", "../", "~"))
    note = (
        "the code can be read there before it runs" if fixed else "pin `model.revision` to a full commit that was read"
    )
    yield ctx.finding(
        f"{ctx.key('model.trust_remote_code')} runs Python files that `{name[:60]}` brings, on every rank",
        "model.trust_remote_code",
        severity="warning" if fixed else "error",
        related=[("model.revision", "the version is set here")],
        notes=[note],
        fix=Fix(
            f"remove {ctx.key('model.trust_remote_code')}",
            {"model.trust_remote_code": None},
            effect="models that `transformers` does not know cannot be loaded",
        ),
    )
