"""Reads the examples out of a gate's page, for the tests that walk the registry."""

from __future__ import annotations

import re

from harness.gates.registry import Gate

# What a spec needs besides the few lines that a page shows.
COMPLETE = {
    "model.name_or_path": "some/model",
    "data.train": "builtin:python-docs",
    "train.max_steps": 10,
    "train.per_device_train_batch_size": 1,
}


def yaml_of(gate: Gate, heading: str) -> str:
    """The YAML block below a heading of the page."""
    match = re.search(r"```yaml\n(.*?)```", gate.section(heading), re.DOTALL)
    if match is None:
        raise ValueError(f"{gate.id} has no YAML under `{heading}`")
    return match[1]


def completed(text: str, *, without: str = "") -> list[str]:
    """`--set` overrides that complete an example, except for keys that it writes itself or that its gate is about."""
    import yaml

    written = yaml.safe_load(text) or {}

    def has(key: str) -> bool:
        section, name = key.split(".")
        return name in (written.get(section) or {})

    batch = any(has(f"train.{k}") for k in ("global_batch_size", "per_device_train_batch_size"))
    skip = {"train.per_device_train_batch_size"} if batch else set()
    if has("model.config"):
        skip.add("model.name_or_path")
    return [
        f"{key}={value}"
        for key, value in COMPLETE.items()
        if not has(key) and key not in skip and not key.startswith(without or "-")
    ]
