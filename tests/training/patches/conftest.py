# SPDX-License-Identifier: Apache-2.0
"""Ranks that import DeepSpeed themselves, for patches of that import and for overlays."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from harness.hostinfo.machine import can_link_libaio
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.patch_scenarios import SCENARIOS

JOB = Path(__file__).parents[1] / "jobs" / "measure_patch.py"
AT_THE_IMPORT = ("cpuinfo-cache", "lazy-compile", "muon-embeddings", "no-mlflow")


@pytest.fixture(scope="session")
def fresh() -> Iterator[ForkedRanks]:
    """Forked from a process that has imported torch and transformers, and not DeepSpeed."""
    ranks = ForkedRanks(imports="transformers")
    yield ranks
    ranks.close()


@pytest.fixture(scope="session")
def measure(
    forked: ForkedRanks, fresh: ForkedRanks, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., dict[str, Any]]:
    """`measure(name, off=...)`: what `jobs/measure_patch.py` writes of a patch that is switched off, or of all patches."""
    folder = tmp_path_factory.mktemp("patches")

    @cache
    def run(name: str, *, off: bool) -> dict[str, Any]:
        scenario = SCENARIOS[name]
        if scenario.needs_libaio and not can_link_libaio():
            pytest.skip("needs libaio")
        if scenario.needs_mlflow and find_spec("mlflow") is None:
            pytest.skip("needs mlflow, which the extra `trackers` brings")
        place = folder / f"{name}-{'off' if off else 'auto'}"
        out, switches = place.with_suffix(".json"), json.dumps({name: "off"} if off else "auto")
        start = fresh if name in AT_THE_IMPORT else forked
        start.run(JOB, name, switches, str(out), str(place), ranks=scenario.ranks)
        return dict(json.loads(out.read_text()))

    return run
