# SPDX-License-Identifier: Apache-2.0
"""Real engines have what `harness/runtime/engine_protocol.py` says: a release of DeepSpeed that drops a member fails here.

Needs deepspeed; 2 ranks, half a minute.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Protocol

import pytest

from harness.runtime import engine_protocol
from tests.support.training.forked_ranks import ForkedRanks
from tests.training.jobs.engine_members import PROTOCOLS

JOB = Path(__file__).parents[1] / "jobs" / "engine_members.py"
BEYOND_THE_ENGINE = {"ModelOutput"}
"""Of `transformers` and of plug-ins."""


@pytest.mark.parametrize("kind", PROTOCOLS)
def test_engines_have_every_member(forked: ForkedRanks, tmp_path: Path, kind: str) -> None:
    out = tmp_path / "differences.json"
    forked.run(JOB, kind, str(out))
    differences = json.loads(out.read_text())
    dropped = differences.pop("EngineWithMore")
    assert differences == {name: [] for name in differences}
    assert dropped == ["no weight", "no bake_bread()", "get_lr(): got an unexpected keyword argument 'of_yesterday'"]


def test_every_protocol_is_compared() -> None:
    protocols = {
        name
        for name, kind in inspect.getmembers(engine_protocol, inspect.isclass)
        if getattr(kind, "_is_protocol", False) and kind is not Protocol
    }
    of_optimizers = {kind.__name__ for _, kinds in PROTOCOLS.values() for kind in kinds}
    of_engines = {kind.__name__ for kind, _ in PROTOCOLS.values()}
    assert protocols - BEYOND_THE_ENGINE == of_engines | of_optimizers | {"EngineOptimizer", "EngineScheduler"}


def test_every_fp16_optimizer_has_its_loss_scale() -> None:
    """Read from the classes: fp16 does not run on most CPUs, and stage 0 has wrappers of its own."""
    from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer
    from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    wrappers = (FP16_Optimizer, FP16_UnfusedOptimizer, DeepSpeedZeroOptimizer, DeepSpeedZeroOptimizer_Stage3)
    members = set(engine_protocol.LossScaledOptimizer.__annotations__)
    assert [(kind.__name__, name) for kind in wrappers for name in members if not hasattr(kind, name)] == []
