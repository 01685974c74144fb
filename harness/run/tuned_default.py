# SPDX-License-Identifier: Apache-2.0
"""A tuned default as a value. Decides nothing."""

from __future__ import annotations

from typing import Any, NamedTuple


class TunedDefault(NamedTuple):
    """A setting for speed or memory that the harness chooses because the spec leaves it out.

    `key`: of DeepSpeed's JSON, dotted, or of the run spec where `ours`. `default`: DeepSpeed's or the spec's own value.
    """

    name: str
    key: str
    value: Any
    default: Any
    reason: str
    ours: bool = False

    @property
    def provenance(self) -> str:
        """The reason, as the provenance of the rendered JSON has it."""
        return f"tuned default: {self.reason}; DeepSpeed's default is `{_format_value(self.default)}`"

    def to_json(self) -> dict[str, Any]:
        """For `spec.resolved.json` and `plan.json`."""
        return {
            "name": self.name,
            "key": self.key,
            "value": self.value,
            "default": self.default,
            "reason": self.reason,
            "ours": self.ours,
        }

    @staticmethod
    def from_json(body: dict[str, Any]) -> TunedDefault:
        """The inverse of `to_json`."""
        return TunedDefault(**body)


def _format_value(value: Any) -> str:
    return {True: "true", False: "false", None: "null"}[value] if isinstance(value, bool | None) else str(value)
