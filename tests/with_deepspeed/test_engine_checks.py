"""Runs that ask their own engine: no alarm where nothing is wrong, and the claim that is meant where something is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import engine_check_cases as table
import pytest
from forked_ranks import ForkedRanks

from harness.errors import ExitCode
from harness.finding_pages import load_pages
from harness.runtime.engine_checks.checks import CHECKS


@pytest.fixture(scope="module")
def outcomes(forked: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Every case, those of the same degrees in the same processes."""
    return table.run((*table.HEALTHY, *table.SPOILED), tmp_path_factory.mktemp("attest"), forked.run)


def test_every_claim_has_a_page_of_its_name() -> None:
    told = {id_: page.name for id_, page in load_pages().items() if id_.startswith("AT")}
    assert {claim.id: claim.name for claim in CHECKS} == told


def test_every_claim_is_made_to_fail() -> None:
    assert {claim.id for claim in CHECKS} - {case.claim for case in table.SPOILED} == {"AT017"}


@pytest.mark.parametrize("case", table.HEALTHY, ids=lambda case: case.name)
def test_no_alarm(case: table.Case, outcomes: dict[str, dict[str, Any]]) -> None:
    outcome = outcomes[case.name]
    assert (outcome["error"], outcome["ids"], outcome["findings"]) == (None, [], [])
    assert len(outcome["claims"]) == len(CHECKS)
    assert not [c for c in outcome["claims"].values() if c["state"] == "differs" or "could not" in c.get("text", "")]
    assert sum(c["state"] == "holds" for c in outcome["claims"].values()) >= 16


@pytest.mark.parametrize("case", [c for c in table.SPOILED if c.claim], ids=lambda case: case.name)
def test_alarm(case: table.Case, outcomes: dict[str, dict[str, Any]]) -> None:
    outcome = outcomes[case.name]
    assert outcome["error"] is None
    assert case.claim in outcome["ids"]
    assert outcome["code"] == ExitCode.ENGINE_CHECK
    assert outcome["claims"][case.claim]["state"] == "differs"


def test_a_warning_goes_on(outcomes: dict[str, dict[str, Any]]) -> None:
    assert outcomes["warned"]["ids"] == []
    assert outcomes["warned"]["claims"]["AT006"]["state"] == "differs"
    assert outcomes["warned"]["claims"]["AT023"]["state"] == "holds"


def test_a_claim_that_the_spec_puts_up_with_goes_on(outcomes: dict[str, dict[str, Any]]) -> None:
    assert outcomes["ignored"]["ids"] == []
    told = outcomes["ignored"]["claims"]["AT006"]
    assert (told["state"], told["ignored"]) == ("differs", "tried on purpose")


def test_nothing_is_asked_where_it_is_off(outcomes: dict[str, dict[str, Any]]) -> None:
    assert (outcomes["not-asked"]["ids"], outcomes["not-asked"]["claims"]) == ([], {})


def test_what_a_finding_says(outcomes: dict[str, dict[str, Any]]) -> None:
    told = outcomes["AT006-clipping"]["findings"]
    assert told[0] == "error[AT006]: the gradient norm to clip at is 0.25, should be 1"
    assert told[1].startswith("  = note: asked of the engine: are gradients clipped where they are asked to be?")
    assert told[2] == "  = note: to go on all the same, put `ignore: {AT006: why}` into the spec"
    assert told[3].startswith("help: write `train.max_grad_norm`")


def test_files_that_are_missing_on_nvme(tmp_path: Path) -> None:
    from types import SimpleNamespace

    from harness.runtime.engine_checks.checks.nvme_files import CHECK

    asked: Any = SimpleNamespace(offload_optimizer="nvme", nvme_paths=(str(tmp_path),))
    assert CHECK.evaluate(asked, [{"large": 1, "bytes": 0}]).state == "differs"
    assert CHECK.evaluate(asked, [{"large": 1, "bytes": 4096}]).state == "holds"
    assert CHECK.evaluate(asked, [{"large": 0, "bytes": 0}]).state == "skipped"
