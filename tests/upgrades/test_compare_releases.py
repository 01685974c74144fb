# SPDX-License-Identifier: Apache-2.0
"""Every change is reported for the pairs of releases that it lies between, and for no others. Needs nothing; seconds."""

from __future__ import annotations

import json
from functools import cache
from typing import NamedTuple

import pytest

from harness.check.check_file import check_file
from harness.facts.deepspeed_version import DeepSpeedTarget, parse_version
from harness.gates.context import Context
from harness.upgrades import compare_releases
from harness.upgrades.behavior_changes import BEHAVIOR_CHANGES

RELEASES = """0.14.5 0.15.1 0.15.2 0.15.4 0.16.3 0.16.4 0.16.5 0.16.9 0.17.0 0.17.1 0.17.2 0.17.5 0.17.6 0.18.0 0.18.2
    0.18.3 0.18.4 0.18.5 0.18.6 0.18.8 0.18.9 0.19.0 0.19.1 0.19.2 0.19.3 0.19.4 0.19.5 0.19.6 0.19.7 0.19.8""".split()


class Row(NamedTuple):
    """A configuration, the finding that is due (id and words), the first release with it, and the first without again."""

    id: str
    words: str
    release: str
    config: dict[str, object]
    until: str = ""


ADAM = {"type": "AdamW", "params": {"lr": 1e-3}}


def ds(stage: int | None = None, **more: object) -> dict[str, object]:
    """A DeepSpeed JSON that says everything whose default moved."""
    zero = {} if stage is None else {"zero_optimization": {"stage": stage, **more.pop("zero", {})}}  # type: ignore[dict-item]
    return {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0, "optimizer": ADAM, **zero, **more}


BF16 = {"bf16": {"enabled": True, "check_grad_overflow": True}}
CPU = {"offload_optimizer": {"device": "cpu", "pin_memory": True}}
MUON = {"type": "Muon", "params": {"lr": 1e-3}}
UNPINNED = {"offload_optimizer": {"device": "cpu"}}
AUTOTP = {"tensor_parallel": {"autotp_size": 2}}
UNIVERSAL = {"checkpoint": {"load_universal": True}}
ROWS = [
    Row("UP001", "`gradient_clipping` is 1.0", "0.19.3", {"train_micro_batch_size_per_gpu": 2, "optimizer": ADAM}),
    Row("UP001", "`bf16.check_grad_overflow` is true", "0.19.3", ds(1, bf16={"enabled": True})),
    Row("UP001", "`steps_per_print` is null", "0.15.2", ds(1)),
    Row("UP001", "`zero_optimization.offload_optimizer.pin_memory` is true", "0.19.5", ds(3, zero=UNPINNED)),
    Row("UP002", "pinned only where", "0.18.3", ds(2, zero=UNPINNED), "0.19.5"),
    Row("UP002", "trains differently", "0.19.7", ds(1, optimizer=MUON)),
    Row("UP002", "refused at stage 0", "0.19.3", ds(**BF16, data_types={"grad_accum_dtype": "fp32"})),
    Row("UP002", "1-bit optimizers are gone", "0.19.7", ds(optimizer={"type": "OneBitAdam", "params": {"lr": 1e-3}})),
    Row("UP002", "becomes NaN", "0.19.3", ds(2, zero={**CPU, "zenflow": {"select_interval": 4}})),
    Row("UP002", "times out after 10 minutes", "0.19.6", ds(1)),
    Row("UP002", "is slow where", "0.18.5", ds(2), "0.18.7"),
    Row("UP005", "trains from 0.19.4 on", "0.19.4", ds(3, **AUTOTP)),
    Row("UP005", "at stage 0 can be loaded", "0.18.5", ds(**BF16)),
    Row("UP005", "gradient norm of bf16 at stage 0", "0.18.6", ds(**BF16)),
    Row("UP005", "scales its loss", "0.18.0", ds(torch_autocast={"enabled": True, "dtype": "fp16"})),
    Row("UP005", "DeepSpeed's own optimizer", "0.17.6", ds(1, optimizer=MUON)),
    Row("UP005", "trains at stage 3", "0.18.9", ds(3, optimizer=MUON)),
    Row("UP005", "accumulated at stage 2", "0.15.2", ds(2, zero=CPU, gradient_accumulation_steps=4)),
    Row("UP005", "several backward passes", "0.19.0", ds(2, zero=CPU, gradient_accumulation_steps=4)),
    Row("UP005", "no longer leaks", "0.19.0", ds(1, **BF16, gradient_accumulation_steps=4)),
    Row(
        "UP005",
        "bf16 optimizer states work with an offloaded",
        "0.19.1",
        ds(2, zero=CPU, bf16={**BF16["bf16"], "bf16_optimizer_states": True}),
    ),
    Row("UP005", "work with AutoTP", "0.18.9", ds(1, **AUTOTP, **UNIVERSAL)),
    Row("UP005", "at stage 3 and with uneven", "0.19.6", ds(3, **AUTOTP, **UNIVERSAL)),
    Row("UP005", "works with an offloaded", "0.19.5", ds(2, zero=CPU, managed_gradient_accumulation=False)),
    Row("UP004", "`tensor_parallel` is read", "0.16.4", ds(1, **AUTOTP)),
    Row("UP004", "`torch_autocast` is read", "0.17.2", ds(1, torch_autocast={"enabled": True, "dtype": "bf16"})),
    Row("UP004", "`expert_parallel` is read", "0.19.2", ds(2, expert_parallel={"enabled": True, "autoep_size": 2})),
    Row("UP004", "`compile` is read", "0.16.6", ds(3, compile={"deepcompile": True})),
    Row("UP004", "`zero_optimization.leaf_module` is read", "0.18.0", ds(3, zero={"leaf_module": {"classes": ["A"]}})),
    Row("UP004", "`gradient_allreduce_op` is read", "0.19.6", ds(1, gradient_allreduce_op="sum")),
    Row("SP012", "`elasticity` was removed", "0.19.8", ds(1, elasticity={"enabled": False})),
    Row("SP012", "`nebula` was removed", "0.19.7", ds(1, nebula={"enabled": False})),
    Row("SP012", "`compression_training` was removed", "0.19.7", ds(1, compression_training={})),
    Row("SP012", "`zero_optimization.mics_shard_size` was removed", "0.19.7", ds(3, zero={"mics_shard_size": 2})),
    Row("SP012", "`amp` was removed", "0.19.8", ds(amp={"enabled": False})),
    Row("SP012", "`sparse_gradients` was removed", "0.19.8", ds(1, sparse_gradients=True)),
    Row("SP012", "`seq_parallel_comm_data_type` was removed", "0.16.5", ds(1, seq_parallel_comm_data_type="fp32")),
    Row("SP014", "`aio.thread_count` is an old name", "0.16.4", ds(1, aio={"thread_count": 4})),
    Row("SP005", "`bf16.foo` is not a key", "0.17.1", ds(1, bf16={**BF16["bf16"], "foo": 1})),
    Row("PR002", "", "0.18.3", ds(fp16={"enabled": True})),
    Row("ZR040", "the last of 4 micro-batches", "0.17.6", ds(2, gradient_accumulation_steps=4), "0.18.3"),
    Row(
        "UP002",
        "first step trains nothing",
        "0.15.3",
        ds(1, scheduler={"type": "WarmupLR", "params": {"warmup_max_lr": 1e-3, "warmup_num_steps": 10}}),
    ),
    Row("UP002", "no_sync", "0.16.0", ds(2) | {"gradient_accumulation_steps": 2, "train_batch_size": 8}),
]


@cache
def check_json(text: str, release: str):
    return check_file(
        "ds.json", deepspeed=DeepSpeedTarget(release, "asked for"), consumer="deepspeed", text=text, world_size=4
    )


def findings_between(config: dict[str, object], before: str, after: str):
    """The findings on a configuration between two releases."""
    text = json.dumps(config)
    old, new = check_json(text, before), check_json(text, after)
    targets = DeepSpeedTarget(before, "asked for"), DeepSpeedTarget(after, "asked for")
    context = Context(new.run, new.source, targets[1], "deepspeed") if new.run and new.source else None
    return compare_releases(old.report.findings, new.report.findings, context, targets)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.id} {row.words or row.release}")
def test_reported_between_the_right_releases_and_no_others(row):
    first_release = parse_version(row.release)
    end_release = parse_version(row.until) if row.until else (1, 0)
    near = {RELEASES.index(r) for r in (row.release, row.until) if r in RELEASES}
    indices = {0, len(RELEASES) - 1, *(i + d for i in near for d in (-2, -1, 0, 1))}
    releases = [r for i, r in enumerate(RELEASES) if i in indices]
    failures = []
    for i, before in enumerate(releases):
        for after in releases[i:]:
            is_reported = any(
                f.gate == row.id and row.words in f.message for f in findings_between(row.config, before, after)
            )
            if is_reported != (parse_version(before) < first_release <= parse_version(after) < end_release):
                failures.append((before, after, is_reported))
    assert failures == []


@pytest.mark.parametrize(
    ("words", "before", "after", "config"),
    [
        ("in one all-reduce", "0.12.3", "0.12.4", ds(2)),
        (
            "on two devices",
            "0.14.0",
            "0.14.1",
            ds(3) | {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}},
        ),
    ],
)
def test_changes_below_the_verified_releases(words, before, after, config):
    assert any(words in f.message for f in findings_between(config, before, after))
    assert not any(words in f.message for f in findings_between(config, after, "0.16.0"))


def test_every_change_has_a_row():
    words = [row.words for row in ROWS if row.id in ("UP002", "UP005")]
    words += ["in one all-reduce", "on two devices"]
    assert [change.name for change in BEHAVIOR_CHANGES if not any(w in f"{change.message}" for w in words)] == []


def test_the_fix_of_a_moved_default_ends_it():
    config = {"train_micro_batch_size_per_gpu": 2, "optimizer": ADAM, "steps_per_print": 10}
    (finding,) = [f for f in findings_between(config, "0.19.2", "0.19.8") if f.gate == "UP001"]
    assert finding.is_error
    assert finding.fix is not None
    assert finding.fix.safe
    assert list(finding.fix.sets.values()) == [0.0]
    assert not [
        f for f in findings_between({**config, "gradient_clipping": 0.0}, "0.19.2", "0.19.8") if f.gate == "UP001"
    ]


def test_one_release_has_no_changes():
    assert [row.words for row in ROWS if findings_between(row.config, "0.19.8", "0.19.8")] == []


def test_a_block_that_is_off_trains_the_same_when_it_is_read():
    (finding,) = [
        f for f in findings_between(ds(1, torch_autocast={"enabled": False}), "0.16.9", "0.19.8") if f.gate == "UP004"
    ]
    assert finding.severity == "info"


def test_a_fixed_bug_is_reported_with_what_it_did_to_runs():
    config = ds(2, gradient_accumulation_steps=4)
    (finding,) = [f for f in findings_between(config, "0.18.2", "0.18.4") if f.gate == "UP003"]
    assert finding.severity == "info"
    assert "trains on the last of 4 micro-batches alone" in finding.message
    assert any("do not compare their losses" in note for note in finding.notes)
    assert "ZR040, found with DeepSpeed 0.18.2" in finding.notes
    assert not [f for f in findings_between(config, "0.17.5", "0.18.4") if f.gate in ("UP003", "ZR040")]


@pytest.mark.parametrize("text", ["host[1-9]", [1], 3])
def test_a_key_that_nobody_can_read_is_an_error_and_no_crash(text):
    """Whether Muon trains, which a change depends on, is in `optimizer.params` as well."""
    config = ds(0, optimizer={"type": "AdamW", "params": text}, zero=CPU)
    (finding,) = [f for f in findings_between(config, "0.16.9", "0.19.8") if f.is_error]
    assert finding.key == "optimizer.params"
    assert finding.notes[-1] == "the effect of an upgrade on this file is not known"
