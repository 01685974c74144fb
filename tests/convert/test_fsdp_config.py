# SPDX-License-Identifier: Apache-2.0
"""accelerate's YAML for FSDP, adopted: the ZeRO settings that train the same, and what they do otherwise."""

from __future__ import annotations

import pytest

from harness.convert.conversion import convert_file
from harness.convert.fsdp_config import _STRATEGIES
from harness.errors import UserError
from harness.facts.deepspeed_version import DeepSpeedTarget

TARGET = DeepSpeedTarget("0.19.8", "asked for")
FILE = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_use_orig_params: true
{fields}
mixed_precision: bf16
num_machines: {hosts}
num_processes: {ranks}
"""


def adopt(write, *fields: str, hosts: int = 1, ranks: int = 8):
    text = FILE.format(fields="\n".join(f"  fsdp_{field}" for field in fields), hosts=hosts, ranks=ranks)
    return convert_file(write("fsdp.yaml", text), TARGET)


@pytest.mark.parametrize(
    ("field", "stage", "lossy"),
    [
        ("sharding_strategy: FULL_SHARD", 3, ""),
        ("sharding_strategy: 1", 3, ""),
        ("sharding_strategy: SHARD_GRAD_OP", 2, "between steps"),
        ("sharding_strategy: NO_SHARD", 0, ""),
        ("sharding_strategy: HYBRID_SHARD_ZERO2", 2, "within a host"),
        ("reshard_after_forward: true", 3, ""),
        ("reshard_after_forward: 'false'", 2, "between steps"),
        ("version: 2", 3, ""),
    ],
)
def test_a_strategy_is_a_stage(write, field: str, stage: int, lossy: str) -> None:
    converted = adopt(write, field)
    assert converted.draft.get("zero.stage") == stage
    assert [lossy in note.message for note in converted.notes_of("lossy")] == ([True] if lossy else [])
    assert converted.draft.get("train.max_grad_norm") is None
    assert not any("not known" in note.message for note in converted.notes)


def test_a_hybrid_shard_over_hosts_is_hpz(write) -> None:
    draft = adopt(write, "sharding_strategy: HYBRID_SHARD", hosts=2, ranks=16).draft
    assert draft.get("deepspeed.zero_optimization.zero_hpz_partition_size") == 8
    assert draft.get("cluster.num_nodes") == 2


def test_offload_and_recomputation_are_carried_over(write) -> None:
    draft = adopt(write, "offload_params: true", "activation_checkpointing: true").draft
    assert draft.get("zero.offload_param.device") == draft.get("zero.offload_optimizer.device") == "cpu"
    assert draft.get("train.gradient_checkpointing") is True
    assert adopt(write, "offload_params: true", "sharding_strategy: 2").draft.get("zero.offload_param") is None


def test_what_is_not_known_is_said(write) -> None:
    notes = adopt(write, "new_thing: 3").notes_of("manual")
    assert any("fsdp_new_thing" in note.message for note in notes)
    with pytest.raises(UserError) as refused:
        adopt(write, "sharding_strategy: FULLY")
    assert "FULL_SHARD, SHARD_GRAD_OP" in refused.value.findings[0].fix.title


def test_the_strategies_are_torchs() -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    assert [each.name.strip("_") for each in fsdp.ShardingStrategy] == list(_STRATEGIES)
