"""A variable that chooses code which every rank runs.

## What it checks
`launch.env` sets no variable that tells Python, the loader, a shell, a compiler or a launcher what to run: such as
`PYTHONPATH`, `LD_PRELOAD`, `BASH_ENV`, `PATH`, `CXX`, `CUDA_HOME`, `PDSH_SSH_ARGS`, `TORCH_EXTENSIONS_DIR`.

## Why it fails
A spec is data, and it may come from somebody else; a `sitecustomize.py` in the folder of `PYTHONPATH` runs in the
launcher and in every rank, with all rights that you have. Only whoever starts the run can allow that, by
`--allow-local-code` of `harness launch`, `tune`, `rehearse` and `preflight`; `ignore` of the spec does not count. A
variable that `--set` sets is treated alike. `harness validate-config --ignore SE008` leaves the finding out.

## Example
```yaml
launch:
  env:
    PYTHONPATH: ./lib
```

## Use instead
```yaml
launch:
  env:
    PYTHONUNBUFFERED: 1
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.facts.environment_variables import code_loading_reason
from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate(
    "SE008",
    "code-in-the-environment",
    upstream="silent",
    needs=("a run spec",),
    policy="a spec of somebody else's would run what it likes",
    ignorable=False,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Settings, and no code."""
    if ctx.allow_code:
        return
    for name, value in ctx.run.spec.launch.env.items():
        why = code_loading_reason(name, value)
        if why is None:
            continue
        key = f"launch.env.{name}"
        yield ctx.finding(
            f"{ctx.key(key)} chooses code that every rank would run: {why}",
            key,
            notes=["it would run with all rights that you have, on every host"],
            fix=Fix(
                "set it where the run is started; or look at what it names, then start with `--allow-local-code`",
                {key: None},
                effect="ranks have it from their own environment",
            ),
        )
