# SPDX-License-Identifier: Apache-2.0
"""Keys and values of a DeepSpeed JSON: what is told, how bad it is, what helps."""

from __future__ import annotations

import json

import pytest

from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.spec.deepspeed_json_checks import check_deepspeed_json
from harness.spec.deepspeed_mapping import spec_key
from harness.spec.deepspeed_value_checks import convert_as_deepspeed
from harness.spec.parse.source import Source


def told(config, version="0.19.8", prefix=()):
    data = config
    for part in reversed(prefix):
        data = {part: data}
    source = Source("ds.json", "json", json.dumps(data), data)
    return check_deepspeed_json(config, source, prefix, DeepSpeedTarget(version, "requested"))


def one(config, **kwargs):
    (finding,) = told(config, **kwargs)
    assert finding.message.isascii()
    assert not finding.message.endswith(".")
    assert len(finding.message) < 160
    return finding


@pytest.mark.parametrize(
    ("config", "gate", "severity", "said"),
    [
        ({"gradient_cliping": 1.0}, "SP005", "error", "did you mean `gradient_clipping`?"),
        ({"checkpoint": {"writer": {"typ": "fast"}}}, "SP005", "error", "did you mean `type`?"),
        ({"data_efficiency": {"data_sampling": {"curriculum_lerning": {}}}}, "SP005", "error", "`curriculum_learning`"),
        ({"autotuning": {"model_info": {"num_param": 1}}}, "SP005", "error", "`num_params`"),
        ({"expert_parallel": {"ep_size": 2}}, "SP005", "error", "`autoep_size`"),
        ({"tensor_parallel": {"partition_config": {"use_default_spec": True}}}, "SP005", "error", "`use_default_specs`"),
        ({"tensor_parallel": {"partition_config": {"layer_specs": [{"pattern": ["x"]}]}}}, "SP005", "error", "`patterns`"),
        ({"zero_optimization": {"aio": {}}}, "SP005", "error", "belongs at the top level"),
        ({"max_grad_norm": 1.0}, "SP005", "error", "`gradient_clipping`"),
        ({"zero": {"stage": 3}}, "SP005", "error", "`zero_optimization`"),
        ({"zero_stage": 3}, "SP005", "error", "`zero_optimization.stage`"),
        ({"zero_stage": 3, "zero_optimization": {"stage": 2}}, "SP005", "error", "remove it, since"),
        ({"gradient_checkpointing": True}, "SP005", "warning", "for the script"),
        ({"cuda_visible_devices": "0"}, "SP005", "warning", "silently ignores it"),
        ({"zero3_init_flag": True}, "SP005", "warning", "silently ignores it"),
        ({"optimizer": {"type": "AdamW", "colour": 1}}, "SP005", "error", "silently ignores it"),
        ({"bf16": {"mode": "x"}}, "SP005", "error", "remove it, or look"),
        ({"_comment": "for 8 GPUs"}, "SP005", "info", "a comment"),
        ({"zero_optimization": {"_comment": ""}}, "SP005", "error", "refuses unknown keys"),
        ({"optimizer": {"type": "AdamW", "lr": 1e-3}}, "SP005", "error", "belongs in `optimizer.params`"),
        ({"bf16": {"loss_scale": 0}}, "SP005", "error", "belongs in `fp16`"),
        ({"zero_optimization": {"gradient_clipping": 1.0}}, "SP005", "error", "belongs at the top level"),
        ({"stage3_max_live_parameters": 1}, "SP005", "error", "belongs in `zero_optimization`"),
        ({"zero_optimization": {"nvme_path": "/x"}}, "SP005", "error", "belongs in `zero_optimization.offload_"),
        ({"amp": {"enabled": True}}, "SP012", "error", "use `bf16`"),
        ({"aio": {"thread_count": 1}}, "SP014", "warning", "intra_op_parallelism"),
        ({"zero_optimization": {"cpu_offload": True}}, "SP014", "warning", "use `offload_optimizer`"),
        ({"zero_optimization": True}, "SP014", "warning", '{"stage": 1}'),
        ({"zero_optimization": 2}, "SP006", "error", 'a map, such as `{"stage": 2}`'),
        ({"zero_optimization": {"offload_param": True}}, "SP006", "error", 'such as `{"device": "cpu"}`'),
        ({"zero_optimization": {"offload_param": "nvme"}}, "SP006", "error", 'such as `{"device": "nvme"}`'),
        ({"flops_profiler": False}, "SP006", "error", 'such as `{"enabled": false}`'),
        ({"optimizer": None}, "SP006", "error", "names no key"),
        ({"timers": "auto", "flops_profiler": ["x"]}, "SP006", "error", "names no key"),
        ({"prescale_gradients": "false"}, "SP006", "error", "any text is true"),
        ({"prescale_gradients": "true"}, "SP006", "warning", "takes it as `true`"),
        ({"wall_clock_breakdown": "true"}, "SP006", "error", "names no key"),
        ({"zero_optimization": {"overlap_comm": "off"}}, "SP006", "warning", "takes it as `false`"),
        ({"zero_optimization": {"stage": "2"}}, "SP006", "warning", "takes it as `2`"),
        ({"zero_optimization": {"stage": 4}}, "SP007", "error", "at most 3"),
        ({"zero_optimization": {"reduce_bucket_size": 0}}, "SP007", "error", "more than 0"),
        ({"zero_optimization": {"offload_optimizer": {"device": "gpu"}}}, "SP007", "error", "`cpu`"),
        ({"tensor_parallel": {"autotp_size": "2"}}, "SP006", "error", "compares it with 0"),
        ({"tensor_parallel": {"dtype": "fp16"}}, "SP006", "error", "JSON cannot express"),
        ({"train_micro_batch_size_per_gpu": 1.5}, "SP006", "error", "computes with the fraction"),
        ({"gradient_accumulation_steps": True}, "SP006", "error", "counts it as 1"),
        ({"gradient_clipping": None}, "SP006", "error", "at the first step"),
        ({"checkpoint": {"tag_validation": "Stop"}}, "SP007", "error", "none of"),
        ({"autotuning": {"results_dir": ""}}, "SP007", "error", "is empty"),
        ({"zero_optimization": {"stage3_max_live_parameters": 1, "max_live_parameters": 1}}, "SP022", "error", "two names"),
        ({"zero_optimization": {"cpu_offload": False, "offload_optimizer": None}}, "SP022", "error", "refuses them"),
    ],
)  # fmt: skip
def test_what_is_told(config, gate, severity, said):
    finding = one(config)
    assert (finding.gate, finding.severity) == (gate, severity)
    assert finding.fix is not None
    assert said in " ".join((finding.message, *finding.notes, finding.fix.title))


@pytest.mark.parametrize(
    "config",
    [
        {"zero_optimization": {"reduce_bucket_size": 5e8, "stage": 2}},
        {"checkpoint": {"tag_validation": "warn"}},
        {"zero_optimization": {"stage": "auto", "overlap_comm": "auto"}},
        {"bf16": None, "aio": None},
        {"steps_per_print": None, "communication_data_type": None},
        {"data_efficiency": {"data_sampling": {"curriculum_learning": {"curriculum_metrics": {"my_own": {}}}}}},
        {"zero_optimization": {"max_live_parameters": 1}},
        {"optimizer": {"type": "X", "params": {"anything": 1}}},
        {"datastates_ckpt": {"host_cache_size": 1}},
    ],
)
def test_what_is_not(config):
    assert told(config) == []


@pytest.mark.parametrize(
    ("config", "version", "gate"),
    [
        ({"elasticity": {}}, "0.19.7", None),
        ({"elasticity": {}}, "0.19.8", "SP012"),
        ({"zero_optimization": {"leaf_module": {}}}, "0.17.6", "SP013"),
        ({"torch_autocast": {"enabled": True}}, "0.16.9", "SP013"),
        ({"bf16": {"what": 1}}, "0.17.0", "SP005"),
    ],
)
def test_releases_differ(config, version, gate):
    assert [f.gate for f in told(config, version=version)] == ([gate] if gate else [])


def test_an_unknown_key_is_ignored_or_refused_by_block_and_release():
    assert "silently ignores it" in one({"bf16": {"what": 1}}, version="0.17.0").notes[0]
    assert "refuses unknown keys" in one({"bf16": {"what": 1}}, version="0.17.1").notes[0]


def test_fixes_name_keys_of_the_run_spec():
    assert spec_key(("zero_optimization", "stage")) == "zero.stage"
    assert spec_key(("deepspeed", "aio", "queue_depth")) == "deepspeed.aio.queue_depth"
    assert one({"zero_optimization": {"overlap_comm": 1}}).fix.sets == {"zero.overlap_comm": True}
    assert one({"gradient_cliping": 0.5}).fix.sets == {"deepspeed.gradient_cliping": None, "train.max_grad_norm": 0.5}
    block = {"stage": 2, "offload-optimizer": {"device": "cpu", "Pin-Memory": True, "other-key": 1}, "a_b": 1, "a-b": 2}
    renamed = one({"zero-optimization": block}).fix
    inner = {"device": "cpu", "pin_memory": True, "other-key": 1}
    assert [*renamed.sets.values()] == [None, {"stage": 2, "offload_optimizer": inner, "a_b": 1, "a-b": 2}]
    moved = one({"zero_optimization": {"cpu_offload": True}}).fix
    assert moved.safe
    assert moved.sets == {
        "deepspeed.zero_optimization.cpu_offload": None,
        "deepspeed.zero_optimization.offload_optimizer.device": "cpu",
    }


def test_a_key_that_belongs_elsewhere_is_moved_there():
    assert one({"zero_optimization": {"aio": {"queue_depth": 1}}}).fix.sets == {
        "deepspeed.zero_optimization.aio": None,
        "deepspeed.aio": {"queue_depth": 1},
    }
    assert one({"optimizer": {"type": "AdamW", "lr": 1e-3}}, prefix=("deepspeed",)).fix.sets == {
        "deepspeed.optimizer.lr": None,
        "deepspeed.optimizer.params.lr": 1e-3,
    }


def test_the_deepspeed_section_of_a_spec_is_checked_the_same():
    finding = one({"prescale_gradient": True}, prefix=("deepspeed",))
    assert finding.key == "deepspeed.prescale_gradient"
    assert set(finding.fix.sets) == {"deepspeed.prescale_gradient", "deepspeed.prescale_gradients"}


def test_values_that_deepspeed_converts_are_read_as_it_reads_them():
    config = {"zero_optimization": {"stage": "2", "overlap_comm": "yes", "sub_group_size": 1e9}, "dump_state": "false"}
    read = convert_as_deepspeed(config, DeepSpeedTarget("0.19.8", "requested"))
    assert read["zero_optimization"] == {"stage": 2, "overlap_comm": True, "sub_group_size": 1000000000}
    assert read["dump_state"] == "false"  # an error, and not what DeepSpeed makes of it
    assert config["zero_optimization"]["stage"] == "2"
