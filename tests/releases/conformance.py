# SPDX-License-Identifier: Apache-2.0
"""The conformance sample of a release: drawn DeepSpeed JSONs, each given to that release and to the gates with it named.

`tests/conformance` draws and judges. Here a case is cheap: a model without transformers, one rank in most cases and two
in the others, nothing compiled (the CPU ops of the installed release stand for those of each other one), no NVMe. Cases
are drawn in the order of their numbers until the release has parsed `PARSED` of them.

A release's answers are kept in a folder of the cache, so that a change of the gates is judged without DeepSpeed.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, TextIO

from harness.facts.deepspeed_keys import block_keys
from harness.facts.deepspeed_version import parse_version
from tests.conformance.case import Case, clone, drop
from tests.conformance.draw import draw
from tests.conformance.judge import Judge, Memory
from tests.conformance.outcome import Outcome, judged
from tests.conformance.report import SHOWN, line
from tests.releases.archives import CACHE
from tests.releases.grid_file import CONFORMANCE_FILE
from tests.releases.trials import overlay

ANSWERS = CACHE / "deepspeed-conformance"
SEED, PARSED = 27, 150
WORLDS = (1, 1, 1, 1, 2)
_STEPS, _CASE_LIMIT_S = 3, 12
_ELSEWHERE = ("MD:", "EX:", "TP:", "SQ:", "PP:")
"""Families of faults that need a model of transformers, or several ranks."""


def draw_sample(release: str) -> Iterator[Case]:
    """Cases without end: those of the suite that a JSON, a small model and a host can be.

    They are the same for each release, but that good settings which the release does not have yet are left out of three
    in four.
    """
    number = 0
    while True:
        case = draw(SEED, number, ("plain",), WORLDS)
        number += 1
        if case.tensor * case.sequence * case.pipeline == 1 and case.model == {"kind": "llama"} and _is_here(case):
            options = {"load": case.options.get("load", False), "steps": _STEPS, "limit": _CASE_LIMIT_S}
            case = replace(case, form="json", model={"kind": "mlp"}, options=options)
            yield case if number % 4 == 0 else _without_newer_settings(case, release)


def _is_here(case: Case) -> bool:
    return "nvme" not in json.dumps(case.config) and not any(fault.startswith(_ELSEWHERE) for fault in case.faults)


def _without_newer_settings(case: Case, release: str) -> Case:
    """The case without the good settings that the release does not read, unless its fault is there."""
    settings = [name.removeprefix("with ") for name in case.features if name.startswith("with ")]
    newer = [path for path in (*settings, "torch_autocast") if _is_newer(path, release)]
    config, meant = clone(case.config), clone(case.meant)
    for path in newer:
        if not any(path in fault for fault in case.faults):
            drop(config, path)
            if meant is not None:
                drop(meant, path)
    return case if case.text is not None else replace(case, config=config, meant=meant)


def _is_newer(path: str, release: str) -> bool:
    """Does the key, or a block around it, come with a later release?"""
    block, _, name = path.rpartition(".")
    key = (block_keys(block) or {}).get(name)
    since = key.since if key is not None else None
    return bool(since and parse_version(release) < since) or bool(block and _is_newer(block, release))


def run_sample(release: str) -> list[tuple[Outcome, bool]]:
    """Each case of a release's sample, judged, and whether the release parsed it.

    A disagreement on two ranks is asked once more: at stage 3 some releases read a parameter on gloo before it is
    gathered, now and then.
    """
    ANSWERS.mkdir(parents=True, exist_ok=True)
    outcomes: list[tuple[Outcome, bool]] = []
    judge = Judge(ANSWERS / f"{release}.log", overlay(release))
    try:
        asked = _ParsedJudge(Memory(judge, ANSWERS / f"{release}.jsonl"))
        for case in draw_sample(release):
            more: dict[str, Any] = {"shared_memory": False, "save": case.options["load"]}
            outcome = judged(case, asked, release, **more)
            if outcome.kind in SHOWN and case.world > 1:
                asked.forget()
                outcome = judged(case, asked, release, **more)
            outcomes.append((outcome, asked.is_parsed))
            if sum(is_parsed for _, is_parsed in outcomes) >= PARSED:
                break
    finally:
        judge.close()
    if judge.versions and judge.versions["deepspeed"] != release:
        raise ValueError(f"asked for {release}, the server has {judge.versions['deepspeed']}")
    return outcomes


class _ParsedJudge:
    """A judge that remembers whether the last configuration was parsed, and can ask once more."""

    def __init__(self, judge: Memory) -> None:
        self._judge, self.is_parsed = judge, True
        self._is_fresh = False

    def forget(self) -> None:
        """Ask DeepSpeed the next time, whatever is remembered."""
        self._is_fresh = True

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """The answer to a job."""
        answer = self._judge.run(job, is_fresh=self._is_fresh)
        self._is_fresh = False
        self.is_parsed = all(rank.get("parsed", True) for rank in answer.get("ranks", []))
        return answer


def run_conformance(releases: Iterable[str], *, again: bool, log: TextIO) -> None:
    """Run releases one after another, each into the file as soon as it is done. `again`: also those with a result,
    with the answers that are kept.
    """
    for release in releases:
        if release in load_results()["releases"] and not again:
            continue
        start = time.monotonic()
        outcomes = run_sample(release)
        result = summarize(outcomes) | {"seconds": round(time.monotonic() - start)}
        save_result(release, result)
        print(f"{release} conformance: {result['counts']}, {result['seconds']} s", file=log, flush=True)
        for outcome, _ in outcomes:
            if outcome.kind in SHOWN:
                print("   ", line(outcome), file=log, flush=True)


def summarize(outcomes: list[tuple[Outcome, bool]]) -> dict[str, Any]:
    """Counts by class, and each disagreement: its class, what was made odd, what DeepSpeed did."""
    return {
        "cases": len(outcomes),
        "parsed": sum(is_parsed for _, is_parsed in outcomes),
        "counts": dict(Counter(outcome.kind for outcome, _ in outcomes).most_common()),
        "different": {
            outcome.case.id: [outcome.kind, "; ".join(outcome.case.faults), outcome.did[:120]]
            for outcome, _ in outcomes
            if outcome.kind in SHOWN
        },
    }


def load_results() -> dict[str, Any]:
    """The file as it is now; without results where there is none."""
    if not CONFORMANCE_FILE.is_file():
        return {"seed": SEED, "releases": {}}
    results: dict[str, Any] = json.loads(CONFORMANCE_FILE.read_text(encoding="utf-8"))
    return results


def save_result(release: str, result: dict[str, Any]) -> None:
    """Put a release's result into the file, a line a release."""
    results = load_results()
    result |= {"date": f"{datetime.now(UTC):%Y-%m-%d}", "torch": version("torch").partition("+")[0]}
    results["releases"][release] = result
    ordered = sorted(results["releases"], key=lambda text: [int(number) for number in text.split(".")])
    lines = [f"    {json.dumps(name)}: {json.dumps(results['releases'][name])}" for name in ordered]
    text = f'{{\n  "seed": {SEED},\n  "releases": {{\n' + ",\n".join(lines) + "\n  }\n}\n"
    CONFORMANCE_FILE.write_text(text, encoding="utf-8")
