# SPDX-License-Identifier: Apache-2.0
"""Gates of the harness's own schedules and of AutoTP's plans with values that their pages do not show."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.check.check_file import check_file

SPEC: dict[str, Any] = {
    "model": {"config": {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}},
    "data": {"train": "builtin:python-docs"},
    "train": {"max_steps": 10, "per_device_train_batch_size": 1},
    "optimizer": {"learning_rate": 1e-3},
}


def messages(write: Callable[[str, str], Path], more: dict[str, Any], gate: str) -> list[str]:
    """The messages of one gate."""
    checked = check_file(str(write("spec.yaml", json.dumps({**SPEC, **more}))), world_size=2)
    return [finding.message for finding in checked.report.findings if finding.gate == gate]


@pytest.mark.parametrize("kind", ["cosine", "polynomial", "warmup_stable_decay"])
def test_schedules_that_read_the_minimum_rate_may_have_one(kind: str, write: Callable[[str, str], Path]) -> None:
    assert messages(write, {"scheduler": {"type": kind, "min_lr_ratio": 0.1}}, "MD008") == []


@pytest.mark.parametrize(
    ("kind", "end"),
    [
        ("linear", "falls to 0"),
        ("cosine_with_restarts", "falls to 0"),
        ("constant", "stays at the peak"),
        ("inverse_sqrt", "falls without a limit"),
    ],
)
def test_schedules_without_a_minimum_rate_are_named(kind: str, end: str, write: Callable[[str, str], Path]) -> None:
    (message,) = messages(write, {"scheduler": {"type": kind, "min_lr_ratio": 0.1}}, "MD008")
    assert message == f"`scheduler.min_lr_ratio` is not read: a {kind} schedule {end}"


@pytest.mark.parametrize("patterns", [3, True, None, "x", {}, [3], [[]]])
def test_patterns_that_are_no_list_of_texts_crash_no_gate(patterns: Any, write: Callable[[str, str], Path]) -> None:
    specs = [{"patterns": patterns, "partition_type": "row", "model_types": 3}]
    more = {
        "parallel": {"tensor_parallel_size": 2},
        "deepspeed": {"tensor_parallel": {"partition_config": {"layer_specs": specs}}},
    }
    assert messages(write, more, "GT001") == []
    if isinstance(patterns, list):
        problem = f"layer spec 1: `{patterns[0]}` is no regular expression"
        checked = check_file(str(write("spec.yaml", json.dumps({**SPEC, **more}))), world_size=2)
        assert problem in [finding.message for finding in checked.report.findings]


@pytest.mark.parametrize(("written", "meant"), [(3e4, 3e-4), (1e5, 1e-5), (2.5e3, 2.5e-3), (2.0, 1e-3), (1.0, 1e-3)])
def test_a_rate_of_1_or_more_gets_one_that_trains(
    written: float, meant: float, write: Callable[[str, str], Path]
) -> None:
    spec = {**SPEC, "optimizer": {"learning_rate": written}}
    checked = check_file(str(write("spec.yaml", json.dumps(spec))), world_size=2)
    (finding,) = [finding for finding in checked.report.findings if finding.gate == "OP006"]
    assert finding.fix is not None
    assert finding.fix.sets == {"optimizer.learning_rate": meant}


@pytest.mark.parametrize(
    ("objective", "column", "is_read"),
    [
        ("causal_lm", "chosen", False),
        ("causal_lm", "text", True),
        ("dpo", "chosen", True),
        ("dpo", "label", False),
        ("kto", "rejected", True),
        ("classification", "completion", False),
        ("reward", "text", False),
        ("custom", "label", True),
    ],
)
def test_a_column_of_other_records_is_a_warning(
    objective: str, column: str, is_read: bool, write: Callable[[str, str], Path]
) -> None:
    """A plug-in may read any."""
    own = {"objective": "custom", "plugins": {"file": "own.py"}, "model": {}, "data": {}}
    more: dict[str, Any] = own if objective == "custom" else {"objective": objective}
    more["data"] = {**({} if objective == "custom" else SPEC["data"]), f"{column}_column": "mine"}
    expected = [f"`data.{column}_column` does not go with `objective: {objective}`"]
    assert messages(write, more, "MD060") == ([] if is_read else expected)
