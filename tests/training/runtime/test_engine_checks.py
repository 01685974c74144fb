# SPDX-License-Identifier: Apache-2.0
"""Engine checks: healthy runs pass all of them, and a faulty run fails the one that is meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tests.support.training.engine_check_cases as table
from harness.engine_watch import source_weights
from harness.errors import ExitCode
from harness.finding_pages import load_pages
from harness.patches.patch_registry import all_patches
from harness.runtime.engine_checks.check_runner import CHECKS
from harness.runtime.engine_checks.witness_checks import WITNESS_CHECKS
from tests.support.training.forked_ranks import ForkedRanks


@pytest.fixture(scope="module")
def outcomes(forked: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Every case, those of the same degrees in the same processes."""
    return table.run((*table.HEALTHY, *table.FAULTY), tmp_path_factory.mktemp("engine-checks"), forked.run)


def test_every_check_has_a_page_of_its_name() -> None:
    pages = {id_: page.name for id_, page in load_pages().items() if id_.startswith("AT")}
    checks = (*CHECKS, *WITNESS_CHECKS.values(), source_weights.CHECK)
    assert {check.id: check.name for check in checks} == pages


def test_every_check_fails_in_some_case() -> None:
    assert {check.id for check in CHECKS} - {case.check for case in table.FAULTY} == {"AT017"}


@pytest.mark.parametrize("case", table.HEALTHY, ids=lambda case: case.name)
def test_no_alarm(case: table.Case, outcomes: dict[str, dict[str, Any]]) -> None:
    outcome = outcomes[case.name]
    assert (outcome["error"], outcome["ids"], outcome["findings"]) == (None, [], [])
    assert len(outcome["claims"]) == len(CHECKS) + len(WITNESS_CHECKS)
    assert not [c for c in outcome["claims"].values() if c["state"] == "differs" or "could not" in c.get("text", "")]
    assert sum(c["state"] == "holds" for c in outcome["claims"].values()) >= 16


@pytest.mark.parametrize("case", [c for c in table.FAULTY if c.check], ids=lambda case: case.name)
def test_alarm(case: table.Case, outcomes: dict[str, dict[str, Any]]) -> None:
    outcome = outcomes[case.name]
    assert outcome["error"] is None
    assert case.check in outcome["ids"]
    assert outcome["code"] == ExitCode.ENGINE_CHECK
    assert outcome["claims"][case.check]["state"] == "differs"


def test_a_warning_does_not_stop_the_run(outcomes: dict[str, dict[str, Any]]) -> None:
    assert outcomes["warned"]["ids"] == []
    assert outcomes["warned"]["claims"]["AT006"]["state"] == "differs"
    assert outcomes["warned"]["claims"]["AT023"]["state"] == "holds"


def test_a_check_that_the_spec_ignores_does_not_stop_the_run(outcomes: dict[str, dict[str, Any]]) -> None:
    assert outcomes["ignored"]["ids"] == []
    result = outcomes["ignored"]["claims"]["AT006"]
    assert (result["state"], result["ignored"]) == ("differs", "tried on purpose")


def test_the_patches_of_the_run_are_recorded(outcomes: dict[str, dict[str, Any]]) -> None:
    patches = outcomes["AT006-clipping"]["patches"]
    assert patches["no-mlflow"] == "applied"
    assert set(patches) == {patch.name for patch in all_patches()}
    for case in table.HEALTHY:
        assert set(outcomes[case.name]["patches"]) == set(patches)


def test_nothing_is_checked_where_it_is_off(outcomes: dict[str, dict[str, Any]]) -> None:
    assert (outcomes["not-asked"]["ids"], outcomes["not-asked"]["claims"]) == ([], {})


def test_what_a_finding_says(outcomes: dict[str, dict[str, Any]]) -> None:
    lines = outcomes["AT006-clipping"]["findings"]
    assert lines[0] == "error[AT006]: the gradient norm to clip at is 0.25, should be 1"
    assert lines[1].startswith("  = note: engine check: are gradients clipped at the norm of the spec?")
    assert lines[2] == "  = note: to continue anyway, add `ignore: {AT006: why}` to the spec"
    assert lines[3].startswith("help: write `train.max_grad_norm`")


def test_files_that_are_missing_on_nvme(tmp_path: Path) -> None:
    from types import SimpleNamespace

    from harness.runtime.engine_checks.setting_checks import NVME_FILES

    expected: Any = SimpleNamespace(offload_optimizer="nvme", nvme_paths=(str(tmp_path),))
    assert NVME_FILES.evaluate(expected, [{"large": 1, "bytes": 0}]).state == "differs"
    assert NVME_FILES.evaluate(expected, [{"large": 1, "bytes": 4096}]).state == "holds"
    assert NVME_FILES.evaluate(expected, [{"large": 0, "bytes": 0}]).state == "skipped"
