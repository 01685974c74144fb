# SPDX-License-Identifier: Apache-2.0
"""Defaults that differ between two releases, for keys that the file leaves out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from harness.facts.deepspeed_keys import Key, block_keys, block_paths
from harness.facts.deepspeed_version import DeepSpeedTarget, Version
from harness.findings import Finding, Fix, Severity
from harness.gates.context import Context

_EFFECTS: dict[str, tuple[Severity, str]] = {
    "gradient_clipping": ("error", "gradients are clipped at another norm, so training changes"),
    "bf16.check_grad_overflow": ("warning", "a step with an infinite gradient is skipped, where it was taken before"),
    "steps_per_print": ("info", "only what is printed"),
}
"""Dotted key -> severity and effect of another value."""
_ALWAYS_PINNED_BEFORE: Version = (0, 18, 3)
"""Before this release, stages 1 and 2 pinned their buffers in any case."""
_PINNING_EFFECT: tuple[Severity, str] = ("warning", "host memory that cannot be swapped, and faster copies")
_READ_CONDITIONS: dict[str, Callable[[Context], bool]] = {
    "bf16.check_grad_overflow": lambda ctx: ctx.is_enabled("bf16"),
    "zero_optimization.offload_optimizer.pin_memory": lambda ctx: (
        ctx.offload_device("offload_optimizer") in ("cpu", "nvme")
    ),
    "zero_optimization.offload_param.pin_memory": lambda ctx: ctx.offload_device("offload_param") in ("cpu", "nvme"),
}
"""The conditions under which DeepSpeed reads a key; it always reads the others."""


def find_changed_defaults(context: Context, before: DeepSpeedTarget, after: DeepSpeedTarget) -> Iterator[Finding]:
    """A finding for each default that differs, with the value that keeps the old behavior.

    A run spec renders to a JSON with all of these keys, so it has no findings.
    """
    if context.run.kind != "deepspeed-json":
        return
    for path, key in _iter_changed_defaults(before.version, after.version):
        name = f"{path}.{key.name}" if path else key.name
        if context.has_key(name) or (path and not context.has_key(path)) or not _is_read(name, context):
            continue
        if name.endswith("pin_memory") and context.stage < 3 and before.version < _ALWAYS_PINNED_BEFORE:
            continue  # pinned before and after
        old, new = key.default_at(before.version), key.default_at(after.version)
        release = ".".join(map(str, key.was[1])) if key.was else after.text
        severity, effect = _EFFECTS.get(name, _PINNING_EFFECT)
        yield context.finding(
            f"the default of `{name}` is {_to_json(new)} from {release} on, it was {_to_json(old)}",
            context.spec_key(path) if path else "",
            notes=[f"effect: {effect}"],
            fix=Fix(f"write `{name}: {_to_json(old)}` to keep it", {context.spec_key(name): old}, safe=True),
            severity=severity,
        )


def _is_read(name: str, context: Context) -> bool:
    return name not in _READ_CONDITIONS or _READ_CONDITIONS[name](context)


def _iter_changed_defaults(before: Version, after: Version) -> Iterator[tuple[str, Key]]:
    for path in block_paths():
        for key in (block_keys(path) or {}).values():
            if key.was is not None and before < key.was[1] <= after and key.alias is None:
                yield path, key


def _to_json(value: object) -> str:
    return json.dumps(value)
