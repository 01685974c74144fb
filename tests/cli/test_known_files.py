# SPDX-License-Identifier: Apache-2.0
"""Configurations as they circulate: the good ones have no error under the reader that is guessed, typical faults are
found. All of them are written for this test.
"""

from __future__ import annotations

import json

import pytest

from harness.check.check_file import check_file
from harness.facts.deepspeed_version import DeepSpeedTarget

TARGET = DeepSpeedTarget("0.19.8", "asked for")
OPEN = dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"), "auto")  # fmt: skip
SCALING = {"loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1}
PRECISION = {"fp16": {"enabled": "auto", **SCALING}, "bf16": {"enabled": "auto"}}
OPTIMIZER = {"type": "AdamW", "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")}
SCHEDULER = {"type": "WarmupLR", "params": dict.fromkeys(("warmup_min_lr", "warmup_max_lr", "warmup_num_steps"), "auto")}  # fmt: skip
DECAY = {"type": "WarmupDecayLR", "params": {**SCHEDULER["params"], "total_num_steps": "auto"}}
STAGE_2 = {"stage": 2, "allgather_partitions": True, "allgather_bucket_size": 5e8, "overlap_comm": True, "reduce_scatter": True, "reduce_bucket_size": 5e8, "contiguous_gradients": True}  # fmt: skip
STAGE_3 = {
    "stage": 3, "overlap_comm": True, "contiguous_gradients": True, "sub_group_size": 1e9, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto", "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9, "stage3_gather_16bit_weights_on_model_save": True,
}  # fmt: skip
CPU = {"device": "cpu", "pin_memory": True}
TALK = {"steps_per_print": 2000, "wall_clock_breakdown": False}
WARMUP = {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 1e-3, "warmup_num_steps": 1000}}
NVME = {"device": "nvme", "nvme_path": "/local_nvme", "pin_memory": True}

GOOD = {
    "trainer, stage 2": ("hf", {**OPEN, **TALK, **PRECISION, "optimizer": OPTIMIZER, "scheduler": SCHEDULER, "zero_optimization": {**STAGE_2, "offload_optimizer": CPU}}),
    "trainer, stage 3": ("hf", {**OPEN, **TALK, **PRECISION, "optimizer": OPTIMIZER, "scheduler": DECAY, "zero_optimization": {**STAGE_3, "offload_optimizer": CPU, "offload_param": CPU}}),
    "trainer, NVMe": ("hf", {**OPEN, "bf16": {"enabled": "auto"}, "zero_optimization": {**STAGE_3, "offload_optimizer": {**NVME, "buffer_count": 4, "fast_init": False}, "offload_param": {**NVME, "buffer_count": 5, "buffer_size": 1e8, "max_in_cpu": 1e9}},
                              "aio": {"block_size": 262144, "queue_depth": 32, "intra_op_parallelism": 1, "single_submit": False, "overlap_events": True}}),
    "preset, stage 0": ("hf", {**OPEN, **PRECISION, "zero_allow_untested_optimizer": True, "zero_optimization": {**STAGE_2, "stage": 0, "round_robin_gradients": True}}),
    "preset, stage 2": ("hf", {**OPEN, **PRECISION, "zero_allow_untested_optimizer": True, "zero_optimization": {**STAGE_2, "round_robin_gradients": True}}),
    "preset, stage 3": ("hf", {**OPEN, **PRECISION, "zero_allow_untested_optimizer": True, "zero_optimization": STAGE_3}),
    "preset, stage 1, fp16 as old": ("hf", {**OPEN, "wall_clock_breakdown": False, "bf16": {"enabled": True}, "fp16": {"enabled": "auto", "auto_cast": False, **SCALING, "initial_scale_power": 32}, "zero_optimization": {"stage": 1, "overlap_comm": True}}),
    "preset, ZeRO++": ("hf", {**OPEN, "bf16": {"enabled": "auto"}, "zero_optimization": {**STAGE_3, "zero_hpz_partition_size": 8, "zero_quantized_weights": True, "zero_quantized_gradients": True}}),
    "accelerate's template, stage 2": ("hf", {**OPEN, **TALK, "fp16": {"enabled": True, **SCALING}, "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto", "torch_adam": True, "adam_w_mode": True}},
                                              "scheduler": DECAY, "zero_optimization": {**STAGE_2, "offload_optimizer": {"device": "none"}}}),
    "accelerate's template, stage 3": ("accelerate", {**OPEN, **TALK, "bf16": {"enabled": True}, "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
                                              "zero_optimization": {**STAGE_3, "stage3_gather_16bit_weights_on_model_save": "auto"}}),
    "image classifier": ("deepspeed", {"train_batch_size": 16, **TALK, "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7}}, "scheduler": WARMUP,
                                       "gradient_clipping": 1.0, "prescale_gradients": False, "bf16": {"enabled": True}, "zero_optimization": {"stage": 1}}),
    "chat": ("deepspeed", {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "steps_per_print": 10, "bfloat16": {"enabled": True}, "gradient_clipping": 1.0, "prescale_gradients": False, "wall_clock_breakdown": False,
                           "zero_optimization": {"stage": 3, "overlap_comm": True, "offload_param": {"device": "none"}, "offload_optimizer": {"device": "none"}, "stage3_param_persistence_threshold": 1e4,
                                                 "stage3_max_live_parameters": 3e7, "stage3_prefetch_bucket_size": 3e7, "memory_efficient_linear": False},
                           "hybrid_engine": {"enabled": False, "max_out_tokens": 512, "inference_tp_size": 1, "release_inference_cache": False, "pin_parameters": True, "tp_gather_partition_size": 8},
                           "tensorboard": {"enabled": False, "output_path": "out", "job_name": "chat"}}),
    "language model, stage 1": ("deepspeed", {"train_batch_size": 256, "train_micro_batch_size_per_gpu": 4, **TALK, "zero_optimization": {"stage": 1}, "gradient_clipping": 1.0, "prescale_gradients": False,
                                              "fp16": {"enabled": True, **SCALING, "initial_scale_power": 11, "consecutive_hysteresis": False}}),
    "trainer, NVMe, with an old name": ("hf", {**OPEN, "fp16": {"enabled": "auto", **SCALING}, "zero_optimization": {**STAGE_3, "offload_optimizer": {**NVME, "buffer_count": 4}, "offload_param": {**NVME, "buffer_count": 5, "buffer_size": 1e8}},
                                                "aio": {"block_size": 262144, "queue_depth": 32, "thread_count": 1, "single_submit": False, "overlap_events": True}}),
    "for the autotuner": ("hf", {"train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"}, "autotuning": {"enabled": True, "fast": False}}),
    "long sequences": ("deepspeed", {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}, "optimizer": {"type": "Adam", "params": {"lr": 1e-3}}, "sequence_parallel_size": 4}),
    "profiled": ("deepspeed", {"train_micro_batch_size_per_gpu": 8, "gradient_clipping": 1.0, "zero_optimization": {"stage": 2}, "bf16": {"enabled": True}, "flops_profiler": {"enabled": True, "profile_step": 5, "module_depth": -1, "top_modules": 3, "detailed": True},
                               "comms_logger": {"enabled": True, "verbose": False, "prof_all": True, "debug": False}, "communication_data_type": "fp32"}),
}  # fmt: skip


def checked(write, config, **kwargs):
    text = config if isinstance(config, str) else json.dumps(config, indent=2)
    return check_file(write("ds_config.json", text), deepspeed=TARGET, **kwargs)


@pytest.mark.parametrize("name", GOOD)
def test_a_good_configuration_has_no_error(name, write):
    _, config = GOOD[name]
    found = checked(write, config).report
    assert [f"{f.gate} {f.message}" for f in found.errors] == []


@pytest.mark.parametrize("name", GOOD)
def test_the_reader_is_guessed_by_what_is_open(name, write):
    from harness.spec.spec_loader import load_spec

    reader, config = GOOD[name]
    assert load_spec(write("a.json", json.dumps(config)), (), TARGET).consumer == reader


YAMLS = {
    "stage 2": "compute_environment: LOCAL_MACHINE\ndebug: false\ndeepspeed_config:\n  deepspeed_multinode_launcher: standard\n  offload_optimizer_device: none\n  offload_param_device: none\n  zero3_init_flag: false\n  zero_stage: 2\n"
    "distributed_type: DEEPSPEED\ndowncast_bf16: 'no'\nmachine_rank: 0\nmain_training_function: main\nmixed_precision: 'bf16'\nnum_machines: 1\nnum_processes: 8\nrdzv_backend: static\nsame_network: true\ntpu_env: []\ntpu_use_cluster: false\ntpu_use_sudo: false\nuse_cpu: false\n",
    "stage 3 with offload": "deepspeed_config:\n  gradient_accumulation_steps: 4\n  gradient_clipping: 1.0\n  offload_optimizer_device: cpu\n  offload_param_device: cpu\n  zero3_init_flag: true\n  zero3_save_16bit_model: true\n  zero_stage: 3\n  deepspeed_multinode_launcher: standard\n"
    "distributed_type: DEEPSPEED\nfsdp_config: {}\nmixed_precision: fp16\nnum_machines: 2\nnum_processes: 16\nmain_process_ip: 10.0.0.1\nmain_process_port: 29500\n",
    "short": "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 1}\nnum_processes: 2\n",
}  # fmt: skip


@pytest.mark.parametrize("name", YAMLS)
def test_a_good_accelerate_yaml_has_no_error(name, write):
    found = check_file(write("a.yaml", YAMLS[name]), deepspeed=TARGET).report
    assert [f"{f.gate} {f.message}" for f in found.errors] == []


HF = GOOD["trainer, stage 2"][1]
RAW = GOOD["language model, stage 1"][1]
FAULTS = {
    "misspelt block": ({**HF, "zero_optimisation": {"stage": 3}}, "SP005", "zero_optimisation"),
    "aio in the wrong block": ({**HF, "zero_optimization": {**STAGE_2, "aio": {"block_size": 1}}}, "SP005", "zero_optimization.aio"),
    "aio in an offload block": ({**HF, "zero_optimization": {**STAGE_3, "offload_param": {**NVME, "aio": {}}}}, "SP005", "zero_optimization.offload_param.aio"),
    "parameters offloaded at stage 2": ({**RAW, "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}, "OF001", "zero_optimization.offload_param.device"),
    "open loss scale": ({**HF, "fp16": {"enabled": "auto", "loss_scale": "auto"}}, "HF004", "fp16.loss_scale"),
    "open stage": ({**HF, "zero_optimization": {"stage": "auto"}}, "HF005", "zero_optimization.stage"),
    "no clipping": ({k: v for k, v in HF.items() if k != "gradient_clipping"}, "HF006", "gradient_clipping"),
    "not gathered": ({**HF, "zero_optimization": {"stage": 3}}, "HF007", "zero_optimization.stage"),
    "a text for a number": ({**RAW, "gradient_accumulation_steps": "8"}, "SP006", "gradient_accumulation_steps"),
    "gone": ({**RAW, "elasticity": {"enabled": False}}, "SP012", "elasticity"),
    "old compile block": ({**HF, "compile": {"disable": False, "backend": "inductor"}}, "SP005", "compile.disable"),
    "apex": ({**RAW, "fp16": {"enabled": True, "opt_level": "O2"}}, "SP005", "fp16.opt_level"),
}  # fmt: skip


@pytest.mark.parametrize("value", [{}, {"stage3_gather_16bit_weights_on_model_save": False},
                                   {"stage3_gather_16bit_weights_on_model_save": "auto"}])  # fmt: skip
def test_weights_that_nobody_gathers_are_a_warning_however_it_is_written(value, write):
    report = checked(write, {**HF, "zero_optimization": {"stage": 3, **value}}).report
    (found,) = (f for f in report.findings if f.gate == "HF007")
    assert found.severity == "warning"
    assert "4 bytes a parameter, twice a bf16 model" in found.notes[0]


@pytest.mark.parametrize("name", FAULTS)
def test_a_typical_fault_is_found_at_its_key(name, write):
    config, gate, key = FAULTS[name]
    found = [(f.gate, f.key) for f in checked(write, config).report.findings]
    assert (gate, key) in found


@pytest.mark.parametrize(
    "text",
    ['{"train_batch_size": $BATCH, "zero_optimization": {"stage": $STAGE}}', '{"train_batch_size": "{{ batch }}", "bf16": {"enabled": "{{ bf16 }}"}}',
     '{"train_batch_size": GLOBAL_BATCH,\n"zero_optimization": {"stage": ZERO_STAGE\n}}', '{"train_batch_size": "${BATCH}", "fp16": {"enabled": "<fp16>"}}', '{\n{% if fp16 %}\n"fp16": {}\n{% endif %}}'],
)  # fmt: skip
def test_a_template_is_one_finding(text, write):
    found = checked(write, text).report.findings
    assert [f.gate for f in found] == ["SP017"]


def test_one_cause_is_one_finding(write):
    misplaced = {**RAW, "optimizer": {"type": "AdamW", "lr": 1e-4}}
    assert [f.gate for f in checked(write, misplaced).report.findings] == ["SP005"]
    for block in (3, {"stag": 3}):
        found = checked(write, {**RAW, "zero_optimization": block}).report.errors
        assert len([f for f in found if not f.gate.startswith("PR")]) == 1
    misspelt = {**RAW, "tensorboard": {"enable": True}}
    assert [f.gate for f in checked(write, misspelt).report.findings] == ["SP005"]


def test_elasticity_chose_the_batch_where_it_was_there(write):
    text = json.dumps({"elasticity": {"enabled": True, "max_train_batch_size": 2000, "micro_batch_sizes": [2, 4]}})
    report = check_file(write("ds_config.json", text), deepspeed=DeepSpeedTarget("0.17.6", "asked for")).report
    assert report.errors == ()


def test_a_fix_that_changes_a_running_json_is_not_safe(write):
    config = {**RAW, "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}
    found = next(f for f in checked(write, config).report.findings if f.gate == "OF001")
    assert found.fix is not None
    assert not found.fix.safe


def test_absurd_values_end_soon(write):
    assert checked(write, {"optimizer": 1}).report.errors
    huge = {**RAW, "sequence_parallel_size": 10**20, "data_parallel_size": 1}
    assert "SQ004" in {f.gate for f in checked(write, huge, overrides=["model.name_or_path=gpt2"]).report.findings}


def test_a_configuration_can_be_given_its_context(write):
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}
    alone = checked(write, config).report
    assert "PP001" not in {f.gate for f in alone.findings}
    piped = checked(write, config, overrides=["parallel.pipeline_parallel_size=2"], world_size=4).report
    assert "PP001" in {f.gate for f in piped.findings}
    ranks = checked(
        write, {"train_batch_size": 6, "train_micro_batch_size_per_gpu": 2}, overrides=["launch.num_gpus=4"]
    )
    assert any(f.gate.startswith("BT") for f in ranks.report.errors)


def test_only_zero_is_a_part_of_a_configuration(write):
    assert checked(write, {"zero_optimization": {"stage": 1}}).report.ok
    assert not checked(write, {}).report.ok
