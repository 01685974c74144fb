# SPDX-License-Identifier: Apache-2.0
"""Keys whose values the user gave on the command line: no search may choose others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from harness.facts.model_lookup import ModelFacts
from harness.plan.plan_usage import usage_error
from harness.plan.search.spec_changes import merge_changes, spec_changes_for
from harness.plan.settings.plan_settings import PlanSettings
from harness.spec.parse.source import KeyPath, join_key, split_key, value_at
from harness.spec.run_spec import RunSpec

_T = TypeVar("_T")


def key_of_override(text: str) -> KeyPath:
    """The path of the key of `--set KEY=VALUE`."""
    return split_key(text.partition("=")[0].strip())


def keep_pinned(
    choices: Iterable[_T],
    settings_of: Callable[[_T], PlanSettings],
    model: ModelFacts,
    raw: Mapping[str, Any],
    pinned: Sequence[KeyPath],
    given: Mapping[str, Any] | None = None,
) -> tuple[_T, ...]:
    """The choices whose spec, `raw` with their changes, has at the pinned keys the values of `given` (`raw` if None).

    Raises UserError where there are choices, and none has these values.
    """
    choices = tuple(choices)
    if not pinned or not choices:
        return choices
    spec = _full_spec(raw if given is None else given)
    wanted = {path: _spec_value(spec, path) for path in pinned}
    wanted = {path: value for path, value in wanted.items() if value is not None or path[0] != "train"}
    if not wanted:
        return choices

    def keeps(choice: _T) -> bool:
        settings = settings_of(choice)
        changed = merge_changes(raw, spec_changes_for(settings, model, raw))
        changed["train"] = changed.get("train", {}) | {"gradient_accumulation_steps": settings.accumulation}
        spec = _full_spec(changed)
        return all(_spec_value(spec, path) == value for path, value in wanted.items())

    kept = tuple(filter(keeps, choices))
    if not kept:
        names = " and ".join(f"`{join_key(path)}`" for path in pinned)
        fix = "leave one of them to the search; `harness plan SPEC` plans a spec that has all of them as it is"
        raise usage_error(f"the search has no settings with the given {names}", fix)
    return kept


def _full_spec(raw: Mapping[str, Any]) -> dict[str, Any]:
    """All keys, those that are not written with the values that the spec has then."""
    return RunSpec.model_validate(raw).model_dump(mode="json")


def _spec_value(spec: Mapping[str, Any], path: KeyPath) -> Any:
    """The value of a key. No offload is a section without one."""
    for section in ("offload_optimizer", "offload_param"):
        if path[:2] == ("zero", section) and value_at(spec, ("zero", section, "device")) in (None, "none"):
            return "none" if path[2:] in ((), ("device",)) else None
    return value_at(spec, path)
