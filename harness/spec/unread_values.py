# SPDX-License-Identifier: Apache-2.0
"""Values of a DeepSpeed JSON that nothing reads, because their block is for NVMe and nothing is on NVMe, or because
accelerate overwrites them.

A wrong value there changes nothing where DeepSpeed accepts it: a warning instead of an error. An old name that
accelerate does not know is the opposite.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from harness.facts.deepspeed_keys import block_keys, is_typed_block
from harness.facts.deepspeed_values import interpret_value
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.findings import Finding
from harness.spec.parse.source import KeyPath, split_key, value_at
from harness.spec.run_spec import Consumer

NVME_KEYS = ("nvme_path", "buffer_count", "buffer_size", "max_in_cpu", "pipeline_read", "pipeline_write", "fast_init")
"""Keys of an offload section that only NVMe reads."""
_NOTE = "nothing reads it: no state and no parameter is on NVMe"


def soften_unread_values(
    findings: Iterable[Finding], config: Mapping[str, Any], target: DeepSpeedTarget
) -> list[Finding]:
    """The findings, with those about values that nothing reads as warnings."""
    return [
        finding._replace(severity="warning", notes=(_NOTE,))
        if finding.is_error and finding.gate in ("SP006", "SP007") and is_unread(finding.key, config, target)
        else finding
        for finding in findings
    ]


def adapt_to_reader(
    findings: Iterable[Finding], config: Mapping[str, Any], reader: Consumer | None
) -> Iterator[Finding]:
    """The findings as they are where accelerate reads the file, which the Trainer does too."""
    for finding in findings:
        if reader not in ("hf", "accelerate"):
            yield finding
        elif finding.gate == "SP006" and finding.key == "steps_per_print":
            yield finding._replace(severity="warning", notes=(_OVERWRITTEN,))
        elif finding.gate == "SP014" and finding.key == _OLD_OFFLOAD and _is_optimizer_of_program(config):
            yield finding._replace(
                severity="error", message=f"accelerate does not know `{_OLD_OFFLOAD}`", notes=_REFUSED
            )
        else:
            yield finding


_OVERWRITTEN = "accelerate overwrites it with infinity"  # accelerate/utils/dataclasses.py, DeepSpeedPlugin
_OLD_OFFLOAD = "zero_optimization.cpu_offload"
_REFUSED = (
    "it makes the optimizer a CPU Adam by `offload_optimizer` alone; DeepSpeed offloads, and refuses torch's AdamW with"
    " a ZeRORuntimeException",
)


def _is_optimizer_of_program(config: Mapping[str, Any]) -> bool:
    """Does DeepSpeed get an optimizer that it refuses with an offload?"""
    is_offloaded = value_at(config, split_key(_OLD_OFFLOAD)) is True
    return is_offloaded and "optimizer" not in config and config.get("zero_force_ds_cpu_optimizer") is not False


def is_unread(name: str, config: Mapping[str, Any], target: DeepSpeedTarget) -> bool:
    """Is this a key of `aio` or of NVMe offload that DeepSpeed accepts as it is, and reads for NVMe alone?"""
    path = split_key(name)
    if path[:1] == ("aio",) and len(path) == 2:
        has_writer = value_at(config, ("checkpoint", "writer")) is not None  # which reads `aio`
        return not any(_is_on_nvme(config, section) for section in _SECTIONS) and not has_writer
    if len(path) != 3 or path[:2] not in _SECTIONS or path[2] not in NVME_KEYS or _is_on_nvme(config, path[:2]):
        return False
    block = ".".join(map(str, path[:2]))
    key = (block_keys(block) or {}).get(str(path[2]))
    value = value_at(config, path)
    if key is None:
        return False
    is_typed = is_typed_block(block, target.version)
    return interpret_value(key, value, is_typed=is_typed, version=target.version).outcome == "as written"


_SECTIONS: tuple[KeyPath, ...] = (("zero_optimization", "offload_optimizer"), ("zero_optimization", "offload_param"))


def _is_on_nvme(config: Mapping[str, Any], section: KeyPath) -> bool:
    device = value_at(config, (*section, "device"))
    return device is not None and device not in ("none", "cpu")
