# SPDX-License-Identifier: Apache-2.0
"""Settings from a run: DeepSpeed's defaults, the spec's values, the raw section. Needs nothing; milliseconds."""

from __future__ import annotations

import pytest

from harness.plan.settings.plan_settings import settings_of
from harness.run.resolved_run import resolve_run
from harness.spec.hostfile import Cluster
from harness.spec.run_spec import RunSpec
from tests.support.plan_inputs import offload, run_of, settings


def test_deepspeed_defaults() -> None:
    plan_settings = settings()
    assert (
        plan_settings.reduce_bucket_size,
        plan_settings.sub_group_size,
        plan_settings.param_persistence_threshold,
        plan_settings.prefetch_bucket_size,
    ) == (
        500_000_000,
        1_000_000_000,
        100_000,
        50_000_000,
    )
    assert plan_settings.overlap_comm
    assert not settings(zero={"stage": 2}).overlap_comm


def test_a_field_wins_over_the_raw_section_and_that_over_the_default() -> None:
    raw = {"zero_optimization": {"reduce_bucket_size": 5e6, "sub_group_size": 7}}
    plan_settings = settings(zero={"stage": 3, "sub_group_size": 9}, deepspeed=raw)
    assert (plan_settings.reduce_bucket_size, plan_settings.sub_group_size) == (5_000_000, 9)


def test_nonsense_in_the_raw_section_is_left_to_the_gates() -> None:
    plan_settings = settings(deepspeed={"zero_optimization": ["x"], "bf16": 3, "data_types": {"grad_accum_dtype": 8}})
    assert (plan_settings.reduce_bucket_size, plan_settings.grad_bytes) == (500_000_000, 2)


@pytest.mark.parametrize(
    ("precision", "raw", "expected"),
    [
        ({"bf16": False}, {}, (4, 4, 4, 4)),
        ({"bf16": True}, {}, (2, 2, 4, 4)),
        ({"bf16": False, "fp16": True}, {}, (2, 2, 4, 4)),
        ({"bf16": True}, {"data_types": {"grad_accum_dtype": "fp32"}}, (2, 4, 4, 4)),
        (
            {"bf16": True},
            {"bf16": {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}},
            (2, 2, 2, 2),
        ),
    ],
)
def test_bytes_an_element(precision: dict[str, bool], raw: dict[str, object], expected: tuple[int, ...]) -> None:
    plan_settings = settings(precision=precision, deepspeed=raw)
    assert (
        plan_settings.param_bytes,
        plan_settings.grad_bytes,
        plan_settings.master_bytes,
        plan_settings.state_bytes,
    ) == expected


def test_nvme_below_stage_3_is_the_cpu_and_at_stage_0_nothing_is_offloaded() -> None:
    assert settings(zero=offload("nvme", stage=2)).optimizer_device == "cpu"
    assert settings(zero=offload("cpu", stage=0)).optimizer_device == "none"
    assert settings(zero=offload("none", "cpu", stage=2)).param_device == "none"


@pytest.mark.parametrize(
    ("optimizer", "states"), [({"type": "adamw"}, 2), ({"type": "sgd"}, 0), ({"type": "sgd", "momentum": 0.9}, 1)]
)
def test_optimizer_states(optimizer: dict[str, object], states: int) -> None:
    assert settings(optimizer=optimizer).num_states == states


def test_hosts_come_from_the_hostfile() -> None:
    spec = RunSpec.model_validate({"train": {"per_device_train_batch_size": 2}})
    plan_settings = settings_of(resolve_run(spec, cluster=Cluster.from_pairs([("a", 4), ("b", 4)])))
    assert plan_settings is not None
    assert (
        plan_settings.num_hosts,
        plan_settings.ranks_per_host,
        plan_settings.world_size,
        plan_settings.tokens_per_step,
    ) == (2, 4, 8, 2 * 8 * 1024)


def test_without_ranks_or_micro_batch_there_are_none() -> None:
    assert settings_of(run_of(ranks=None, cluster={"gpus_per_node": None})) is None
    assert settings_of(run_of(train={"per_device_train_batch_size": None})) is None
