# SPDX-License-Identifier: Apache-2.0
"""Faults of DeepSpeed that the harness works around, or refuses: bare DeepSpeed is run to see that each is still there.

When a test fails, a release has mended the fault: look at what is named, delete it or give the gate an `until`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deepspeed
import pytest

from tests.support.training.forked_ranks import ForkedRanks

JOB = Path(__file__).parents[1] / "jobs" / "tripwires.py"
SEEN_ON = "0.19.8"

FAULTS: dict[int, dict[str, tuple[str, str]]] = {
    1: {
        "initialisation_lost": (
            "`zero.Init` around `from_config`",
            "runtime/models/zero3_weights.py: sharded_creation",
        ),
        "warmup_starts_at_nothing_twice": (
            "two first steps at rate 0",
            "runtime/lr_schedule.py: no DeepSpeed schedules",
        ),
        "warmup_decay_forgets_the_rate": ("a peak of 0.001", "gate OP027, claim AT021"),
        "zenflow_scrambles": ("ZenFlow scrambles matrices", "gate ZR030, claim AT011"),
        "nvme_below_stage_3": ("an optimizer on NVMe at stage 2 is in memory", "gate OF003, claim AT003"),
        "parameter_offload_below_stage_3": ("parameters at stage 2 are not offloaded", "gate OF001, claim AT004"),
        "stage_auto_is_none": ("a stage of `auto` is 0", "gate ZR001, claim AT001"),
        "bf16_auto_is_fp32": ("`bf16.enabled: auto` is off", "gate PR004, claim AT005"),
        "checkpoint_runs_code": ("a checkpoint's pickle runs code", "patches/torch_safe_globals.py"),
        "nothing_to_load_is_no_error": ("nothing to load is no error", "runtime/checkpoint/restore.py: CK104"),
        "stale_lock_waits": ("a lock left behind is waited for without end", "launching/ops/local_build.py"),
    },
    2: {
        "autotp_counts_the_world": ("AutoTP's batch counts tensor ranks", "render/ds_config.py: no `train_batch_size`"),
        "autotp_saves_a_part": ("AutoTP's 16-bit file is a part", "runtime/export"),
        "autotp_looks_at_data_once": ("other data on a tensor rank after the first step", "claim AT025"),
        "sequence_key_alone_makes_no_group": (
            "`sequence_parallel_size` alone",
            "runtime/parallel/sequence_parallel.py",
        ),
        "pipeline_clips_by_stage": (
            "in fp32 at stage 0 pipeline stages clip by norms of their own",
            "runtime/pipeline: the mark `model_parallel`",
        ),
    },
}


@pytest.fixture(scope="module")
def found(forked: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What bare DeepSpeed does, by fault."""
    folder, answers = tmp_path_factory.mktemp("tripwires"), {}
    for ranks in FAULTS:
        forked.run(JOB, str(folder / f"{ranks}.json"), ranks=ranks)
        answers.update(json.loads((folder / f"{ranks}.json").read_text()))
    return answers


@pytest.mark.parametrize("fault", [name for faults in FAULTS.values() for name in faults])
def test_fault_is_still_there(fault: str, found: dict[str, Any]) -> None:
    what, workaround = {**FAULTS[1], **FAULTS[2]}[fault]
    hint = f"{what}: seen on {SEEN_ON}, not on {deepspeed.__version__}; see {workaround}"
    assert found[fault] is True, f"{hint} ({found[fault]})"


def test_every_fault_is_tried(found: dict[str, Any]) -> None:
    assert set(found) == {name for faults in FAULTS.values() for name in faults}
