"""The values of a configuration that are "auto", and what DeepSpeed itself makes of them.

For the gates beside this file; no gate of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.gates.registry import Context
from harness.spec.auto_values import auto_in_deepspeed, find_auto_values
from harness.spec.parse.source import join_key


def read_by_deepspeed(ctx: Context) -> bool:
    """Does DeepSpeed get the values as they are written? So it is for a run spec, too."""
    return ctx.consumer in (None, "deepspeed")


def left_to_deepspeed(ctx: Context, meaning: str) -> Iterator[str]:
    """The DeepSpeed keys that are "auto" where DeepSpeed makes `meaning` of it (see `by_deepspeed`)."""
    data = ctx.source.data if ctx.run.kind == "deepspeed-json" else ctx.run.spec.deepspeed
    for path in find_auto_values(data):
        if auto_in_deepspeed(path, ctx.target.version) == meaning:
            yield join_key(path)
