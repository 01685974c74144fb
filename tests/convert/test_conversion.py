# SPDX-License-Identifier: Apache-2.0
"""`harness adopt`: what comes out is a valid run spec, and rendering it gives the same configuration back.

The same: every value that DeepSpeed would use is the same. It does not count how a thing is said (old names, an offload
to `none`, fp16 settings while fp16 is off, `gradient_clipping` at its default), nor what the file leaves open.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.convert.conversion import convert_file
from harness.errors import UserError
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.gates import check_run
from harness.render import render_ds_config
from harness.run.resolved_run import resolve_run
from harness.spec.spec_loader import load_spec

TARGET = DeepSpeedTarget("0.19.8", "asked for")


def adopted(file, target=TARGET):
    return convert_file(file, target)


def rendered(text, target=TARGET):
    loaded = load_spec("spec.yaml", (), target, text=text)
    assert loaded.spec is not None
    assert not [f for f in loaded.findings if f.is_error], loaded.findings
    return json.loads(render_ds_config(resolve_run(loaded.spec)).json_text)


def effective(config, version=(0, 19, 8)):
    """The values that DeepSpeed would use, under one name each."""
    used = {k: v for k, v in config.items() if k not in ("bfloat16", "zero_optimization", "fp16", "steps_per_print")}
    used.setdefault("gradient_clipping", 1.0 if version >= (0, 19, 3) else 0.0)
    if "bfloat16" in config and "bf16" not in config:
        used["bf16"] = config["bfloat16"]
    bf16 = {"enabled": False, "check_grad_overflow": version >= (0, 19, 3), **used.get("bf16", {})}
    used["bf16"] = bf16 if bf16["enabled"] else "off"
    fp16 = {
        "loss_scale": 0,
        "initial_scale_power": 16,
        "loss_scale_window": 1000,
        "hysteresis": 2,
        "min_loss_scale": 1,
        **config.get("fp16", {}),
    }
    used["fp16"] = fp16 if fp16.get("enabled") else "off"
    used["optimizer"] = {**config["optimizer"], "type": config["optimizer"]["type"].lower()}
    used["zero_optimization"] = zero(config.get("zero_optimization", {}), version)
    if used.get("tensor_parallel") in ({"autotp_size": 0}, {"autotp_size": 1}):
        del used["tensor_parallel"]
    used.setdefault("gradient_accumulation_steps", 1 if "train_batch_size" not in used else None)
    return {k: v for k, v in used.items() if v is not None}


NVME_DEFAULTS = {
    "offload_optimizer": {"buffer_count": 4, "pipeline_read": False, "pipeline_write": False, "fast_init": False},
    "offload_param": {"buffer_count": 5, "buffer_size": 100_000_000, "max_in_cpu": 1_000_000_000},
}


def zero(block, version):
    block = {"stage": int(block)} if isinstance(block, bool) else dict(block)
    for old, new in (("cpu_offload", "offload_optimizer"), ("cpu_offload_param", "offload_param")):
        if block.pop(old, None):
            block[new] = {"device": "cpu"}
    for name in ("prefetch_bucket_size", "max_live_parameters", "gather_16bit_weights_on_model_save"):
        if name in block:
            block[f"stage3_{name}"] = block.pop(name)
    for section, defaults in NVME_DEFAULTS.items():
        offload = {
            "device": "none",
            **defaults,
            "pin_memory": version >= (0, 19, 5),
            **(block.pop(section, None) or {}),
        }
        if offload["device"] != "none" and not (section == "offload_param" and block.get("stage") != 3):
            block[section] = offload
    return {"stage": 0, **block}


def optional(**keys):
    return st.fixed_dictionaries({}, optional=keys)


SIZES = st.sampled_from([1, 1000, 5e7, 500_000_000, 1e9])
OFFLOAD = optional(pin_memory=st.booleans(), buffer_count=st.integers(1, 9)).flatmap(
    lambda rest: st.sampled_from([{"device": "none"}, {"device": "cpu"}, {"device": "nvme", "nvme_path": "/nvme"}]).map(
        lambda d: {**d, **rest}
    )
)
ZERO = st.one_of(
    st.booleans(),
    optional(stage=st.integers(0, 3), overlap_comm=st.booleans(), reduce_bucket_size=SIZES, cpu_offload=st.booleans(), max_live_parameters=SIZES, ignore_unused_parameters=st.booleans()),
    optional(stage=st.just(3), offload_optimizer=OFFLOAD, offload_param=OFFLOAD, prefetch_bucket_size=SIZES, sub_group_size=SIZES, gather_16bit_weights_on_model_save=st.booleans(),
             zero_hpz_partition_size=st.integers(1, 8), leaf_module=st.just({"classes": ["Block"]})),
)  # fmt: skip
RATES = st.sampled_from([1e-5, 3e-4, 0.001, 2])
OPTIMIZERS = st.one_of(
    st.fixed_dictionaries({"type": st.sampled_from(["AdamW", "adamw", "Adam"]), "params": st.fixed_dictionaries(
        {"lr": RATES, "weight_decay": st.sampled_from([0, 0.1]), "betas": st.just([0.9, 0.95]), "eps": st.just(1e-8)}, optional={"adam_w_mode": st.booleans(), "torch_adam": st.booleans()})}),
    st.fixed_dictionaries({"type": st.just("Lion"), "params": st.just({"lr": 1e-4, "betas": [0.9, 0.99]})}, optional={"legacy_fusion": st.booleans()}),
)  # fmt: skip
FP16 = optional(
    enabled=st.booleans(),
    loss_scale=st.sampled_from([0, 128.0]),
    initial_scale_power=st.integers(1, 32),
    auto_cast=st.booleans(),
)
BATCH = st.sampled_from([{"train_batch_size": 8}, {"train_micro_batch_size_per_gpu": 2}, {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}, {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2}])  # fmt: skip
REST = optional(
    gradient_clipping=st.sampled_from([0, 0.5, 1]), zero_optimization=ZERO, fp16=FP16, bf16=optional(enabled=st.booleans(), immediate_grad_update=st.booleans()), bfloat16=optional(enabled=st.booleans()),
    wall_clock_breakdown=st.booleans(), communication_data_type=st.sampled_from([None, "fp32"]), prescale_gradients=st.booleans(), seq_parallel_communication_data_type=st.just("bf16"),
    scheduler=st.just({"type": "WarmupLR", "params": {"warmup_num_steps": 5}}), activation_checkpointing=optional(partition_activations=st.booleans(), number_checkpoints=st.just(None)),
    tensor_parallel=optional(autotp_size=st.sampled_from([0, 1])), aio=optional(block_size=st.sampled_from([4096, 1048576])), flops_profiler=optional(enabled=st.booleans(), output_file=st.sampled_from([None, "a b", "yes"])),
    data_efficiency=st.just({}), weight_quantization=st.just({"enabled": False, "post_init_quant": {"fc.1": {"num_bits": 8}, "fc": {}}}), comms_logger=optional(prof_ops=st.lists(st.sampled_from(["all_reduce", "no", "1e5"]), max_size=2)),
)  # fmt: skip


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=BATCH, optimizer=OPTIMIZERS, rest=REST, version=st.sampled_from(["0.19.8", "0.19.3", "0.19.2", "0.18.0"]))
def test_rendering_what_was_adopted_gives_the_same_configuration_back(
    batch, optimizer, rest, version, tmp_path_factory
):
    config = {**batch, "optimizer": optimizer, **rest}
    target = DeepSpeedTarget(version, "asked for")
    file = tmp_path_factory.mktemp("adopt") / "ds.json"
    file.write_text(json.dumps(config))
    try:
        result = adopted(str(file), target)
    except UserError as refused:
        assert refused.findings  # noqa: PT017
        return
    again = rendered(result.text, target)
    wanted, got = effective(config, target.version), effective(again, target.version)
    assert got == wanted, result.text


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"zero_optimization": {"stage": 2, "cpu_offload": True}}, "  offload_optimizer:\n    device: cpu\n    pin_memory: true\n"),
        ({"zero_optimization": {"stage": 2, "cpu_offload": False}}, "zero:\n  stage: 2\n  offload_optimizer:\n    device: none\n"),
        ({"zero_optimization": True}, "zero:\n  stage: 1\n"),
        ({"bfloat16": {"enabled": True}}, "precision:\n  bf16: true\n"),
        ({"zero_optimization": {"stage": 3, "prefetch_bucket_size": 7}}, "  stage3_prefetch_bucket_size: 7\n"),
        ({"zero_optimization": {"stage": 3, "stage3_gather_fp16_weights_on_model_save": True}}, "  stage3_gather_16bit_weights_on_model_save: true\n"),
        ({"optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}, "optimizer:\n  type: adamw\n  learning_rate: 0.001\n"),
        ({"optimizer": {"type": "Adam", "params": {"lr": 0.001, "adam_w_mode": False}}}, "optimizer:\n  type: adam\n"),
        ({"optimizer": {"type": "Adam", "params": {"lr": 0.001}}}, "  optimizer:\n    type: Adam\n    params:\n      lr: 0.001\n"),
        ({"tensor_parallel": {"autotp_size": 4}}, "parallel:\n  tensor_parallel_size: 4\n"),
    ],
)  # fmt: skip
def test_old_and_other_names_are_those_of_the_spec(config, expected, write):
    text = adopted(write("ds.json", json.dumps({"train_micro_batch_size_per_gpu": 1, **config}))).text
    assert expected in text


def test_what_is_open_is_listed_with_its_line(write):
    file = write(
        "ds.json",
        json.dumps({"train_batch_size": "auto", "bf16": {"enabled": "auto"}, "gradient_clipping": "auto", "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"},
                    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}}, "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}}}, indent=1),
    )  # fmt: skip
    result = adopted(file)
    notes = {note.place.line: note.message for note in result.notes}
    lines = Path(file).read_text().splitlines()
    for key in ("enabled", "reduce_bucket_size", "lr", "warmup_num_steps"):
        assert 1 + next(n for n, line in enumerate(lines) if f'"{key}"' in line) in notes, (key, notes)
    assert all(f"ds.json:{line}: {notes[line]}" in result.text for line in notes)
    again = rendered(result.text)
    assert again["scheduler"] == {"type": "WarmupLR", "params": {"warmup_num_steps": 1}}
    assert again["optimizer"]["params"]["lr"] == 5e-5


def test_what_is_adopted_passes_all_gates_that_the_file_passes(write):
    file = write("ds.json", json.dumps({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}, "bf16": {"enabled": True}}))  # fmt: skip
    loaded = load_spec("spec.yaml", (), TARGET, text=adopted(file).text)
    assert check_run(resolve_run(loaded.spec), loaded.source, deepspeed=TARGET).ok


def test_accelerate(write):
    text = (
        "distributed_type: DEEPSPEED\nnum_processes: 16\nnum_machines: 2\nmain_process_ip: 10.0.0.1\nmain_process_port: 29500\nmixed_precision: bf16\n"
        "deepspeed_config:\n  zero_stage: 3\n  offload_optimizer_device: cpu\n  deepspeed_hostfile: hosts\n  deepspeed_moe_layer_cls_names: A,B\n  zero3_init_flag: true\n"
    )
    result = adopted(write("a.yaml", text))
    for line in (
        "num_nodes: 2",
        "gpus_per_node: 8",
        "bf16: true",
        "stage: 3",
        "hostfile: hosts",
        "master_port: 29500",
        "classes: [A, B]",
    ):
        assert line in result.text
    assert [note.place.line for note in result.notes if "main_process_ip" in note.message] == [4]


AXOLOTL = """\
base_model: some/model
adapter: lora
datasets:
  - {path: texts.jsonl, type: completion, field: body}
sequence_len: 2048
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
num_epochs: 3
optimizer: adamw_torch_fused
lr_scheduler: cosine
learning_rate: 0.0002
bf16: auto
flash_attention: true
warmup_ratio: 0.1
output_dir: ./out
deepspeed: ds/zero2.json
"""
FACTORY = """\
model_name_or_path: some/model
stage: sft
finetuning_type: full
dataset: identity
cutoff_len: 4096
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
learning_rate: 1.0e-5
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
ddp_timeout: 180000000
deepspeed: ds/zero2.json
"""
ZERO_2 = {
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 2, "overlap_comm": True},
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "lines", "unmapped"),
    [
        (AXOLOTL, ["name_or_path: some/model", "train: [texts.jsonl]", "text_column: body", "max_length: 2048", "num_train_epochs: 3", "per_device_train_batch_size: 2", "learning_rate: 0.0002", "type: cosine",
                   "warmup_ratio: 0.1", "bf16: true", "attn_implementation: auto", "stage: 2", "overlap_comm: true", "r: 8"], {}),
        (FACTORY, ["max_length: 4096", "per_device_train_batch_size: 1", "num_train_epochs: 3.0", "learning_rate: 1.0e-5", "bf16: true", "stage: 2"], {4: "dataset", 13: "ddp_timeout"}),
    ],
)  # fmt: skip
def test_trainers(text, lines, unmapped, write):
    write("ds/zero2.json", json.dumps(ZERO_2))
    result = adopted(write("train.yaml", text))
    for line in lines:
        assert f"{line}\n" in result.text or f"{line}  #" in result.text, (line, result.text)
    notes = {note.place.line: note.message for note in result.notes if note.place.file.endswith("train.yaml")}
    own = {1, 13, 16} if text is AXOLOTL else set()  # the kernel, `bf16: auto`, and a save after each epoch
    assert notes.keys() == unmapped.keys() | own, notes
    for line, word in unmapped.items():
        assert word in notes[line]


@pytest.mark.parametrize(
    ("more", "lines", "note"),
    [
        ("adapter: lora\nlora_r: 16\nlora_alpha: 32\nlora_target_linear: true\n", ["r: 16", "lora_alpha: 32", "target_modules: all-linear"], None),
        ("datasets: [{path: a/b, type: alpaca}]\nsample_packing: true\n", ["train: [{path: a/b, format: alpaca}]", "packing: true"], None),
        ("datasets: [{path: c.jsonl, type: chat_template, field_messages: turns}]\ntrain_on_inputs: true\n", ["train: [{path: c.jsonl, format: messages}]", "messages_column: turns", "assistant_only_loss: false"], None),
        ("datasets: [{path: c.jsonl, type: chat_template, roles: {user: [x]}}]\n", [], "has a role `x`"),
        ("datasets: [{path: c.jsonl, type: pygmalion}]\n", [], "is of type `pygmalion`"),
    ],
)  # fmt: skip
def test_data_sets_and_adapters(more, lines, note, write):
    text = "base_model: some/model\nsequence_len: 2048\nmicro_batch_size: 2\nnum_epochs: 1\nsave_steps: 9\n" + more
    result = adopted(write("train.yaml", text))
    for line in lines:
        assert f"{line}\n" in result.text, result.text
    messages = [n.message for n in result.notes if n.place.line > 5]
    assert [n for n in messages if note and note in n] if note else not messages, messages


AXOLOTL_BASE = "base_model: some/model\nsequence_len: 2048\nmicro_batch_size: 2\nnum_epochs: 1\n"
FACTORY_BASE = "model_name_or_path: some/model\nlearning_rate: 1.0e-5\nnum_train_epochs: 1\n"


@pytest.mark.parametrize(
    ("more", "key"),
    [
        *((f"stage: {stage}\nfinetuning_type: full\n", "stage") for stage in ("rlhf", "ppo", "[dpo]", "7", "{a: b}")),
        *((f"finetuning_type: {kind}\n", "finetuning_type") for kind in ("freeze", "oft", "[lora]", "12")),
        *((f"finetuning_type: lora\n{key}: {value}\n", key) for key, value in (("quantization_bit", 8), ("quantization_bit", "eight"), ("quantization_method", "hqq"), ("load_in_8bit", "true"), ("load_in_4bit", "[1]"))),
        *((f"finetuning_type: lora\n{key}: {value}\n", key) for key, value in (("use_dora", "true"), ("pissa_init", "true"), ("use_llama_pro", "true"))),
        *((f"finetuning_type: full\n{key}: true\n", key) for key in ("use_galore", "use_badam", "use_dft_loss")),
        ("beta: 0.1\n", "beta"),
        ("loss_type: dft\n", "loss_type"),
        ("reward_funcs: [accuracy]\nnum_generations: 8\n", "reward_funcs"),
    ],
)  # fmt: skip
def test_what_llama_factory_and_trl_train_otherwise_is_refused(more, key, write):
    with pytest.raises(UserError) as refused:
        adopted(write("train.yaml", FACTORY_BASE + more))
    (finding,) = refused.value.findings
    assert (finding.gate, finding.key, finding.place.line > 3) == ("SP040", key, True)
    assert f"`{key}: " in finding.message


@pytest.mark.parametrize(
    ("more", "key"),
    [
        *((f"rl: {loss}\n", "rl") for loss in ("orpo", "simpo", "grpo", "true", "[dpo]")),
        ("process_reward_model: true\n", "process_reward_model"),
        ("adapter: qlora\nload_in_4bit: false\nlora_r: 16\n", "adapter"),
        ("adapter: lora\nload_in_8bit: true\n", "load_in_8bit"),
        ("adapter: lora\npeft: {backend: torchao, weight_dtype: nf4}\n", "peft.weight_dtype"),
        ("adapter: lora\ngptq: true\n", "gptq"),
        ("adapter: llama-adapter\n", "adapter"),
        ("adapter: [lora]\n", "adapter"),
        ("adapter: 4\n", "adapter"),
        ("adapter: lora\npeft_use_dora: true\n", "peft_use_dora"),
        ("adapter: lora\nrelora: true\n", "relora"),
        ("unfrozen_parameters: [lm_head]\n", "unfrozen_parameters"),
    ],
)
def test_what_axolotl_trains_otherwise_is_refused(more, key, write):
    with pytest.raises(UserError) as refused:
        adopted(write("train.yaml", AXOLOTL_BASE + more))
    assert [(f.gate, f.key) for f in refused.value.findings] == [("SP040", key)]


@pytest.mark.parametrize(
    ("base", "more", "double"),
    [
        (AXOLOTL_BASE, "adapter: qlora\nload_in_4bit: true\nlora_r: 16\n", None),
        (AXOLOTL_BASE, "adapter: lora\nload_in_4bit: true\nlora_r: 16\n", None),
        (FACTORY_BASE, "finetuning_type: lora\nquantization_bit: 4\nquantization_method: bnb\nlora_rank: 16\n", None),
        (
            FACTORY_BASE,
            "finetuning_type: lora\nquantization_bit: 4\ndouble_quantization: false\nlora_rank: 16\n",
            False,
        ),
        (FACTORY_BASE + "dataset_name: a/b\n", "use_peft: true\nload_in_4bit: true\nlora_r: 16\n", False),
        ("model: a/b\ndataset: x.jsonl\n", "tuner_type: lora\nquant_bits: 4\nquant_method: bnb\nlora_rank: 16\n", None),
    ],
)
def test_four_bits_of_bitsandbytes_under_lora_are_qlora(base, more, double, write):
    draft = adopted(write("train.yaml", base + more)).draft
    assert (draft.get("model.quantization.load_in_4bit"), draft.get("model.lora.r")) == (True, 16)
    assert draft.get("model.quantization.bnb_4bit_use_double_quant") is double


def test_lora_of_trl_has_its_own_defaults(write):
    draft = adopted(write("train.yaml", FACTORY_BASE + "dataset_name: a/b\nuse_peft: true\n")).draft
    assert draft.get("model.lora") == {"r": 16, "lora_alpha": 32, "lora_dropout": 0.05}


def test_four_bit_weights_at_stage_3_go_to_stage_2(write):
    write("z3.json", json.dumps({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}))
    result = adopted(write("train.yaml", AXOLOTL_BASE + "adapter: qlora\nload_in_4bit: true\ndeepspeed: z3.json\n"))
    assert (result.draft.get("zero.stage"), result.draft.get("zero.offload_param")) == (2, None)
    assert any("MD043" in note.message for note in result.notes_of("harmless"))


def test_two_ways_of_training_otherwise_are_told_together(write):
    with pytest.raises(UserError) as refused:
        adopted(write("train.yaml", FACTORY_BASE + "stage: ppo\nfinetuning_type: lora\nquantization_bit: 8\n"))
    assert [f.key for f in refused.value.findings] == ["stage", "quantization_bit"]


@pytest.mark.parametrize("off", ["", "null", "false", "none", '""', "[]", "0"])
def test_a_way_of_training_that_is_off_passes(off, write):
    keys = "rl reward_model load_in_4bit load_in_8bit gptq qat relora unfrozen_parameters peft_use_dora".split()
    plain = adopted(write("plain.yaml", AXOLOTL_BASE)).text
    result = adopted(write("plain.yaml", AXOLOTL_BASE + "".join(f"{key}: {off}\n" for key in (*keys, "adapter"))))
    assert result.text.partition("\nmodel:")[2] == plain.partition("\nmodel:")[2]
    keys = "quantization_bit quantization_method use_dora use_peft beta stage".split()
    plain = adopted(write("plain.yaml", FACTORY_BASE + "finetuning_type: full\n")).text
    more = "finetuning_type: full\n" + "".join(f"{key}: {off}\n" for key in keys)
    result = adopted(write("plain.yaml", FACTORY_BASE + more))
    assert result.text.partition("\nmodel:")[2] == plain.partition("\nmodel:")[2]


@pytest.mark.parametrize("stage", ["sft", "pt"])
def test_llama_factory_trains_lora_where_it_is_not_told(stage, write):
    result = adopted(write("train.yaml", FACTORY_BASE + f"stage: {stage}\n"))
    for line in ("lora:", "r: 8", "lora_alpha: 16", "target_modules: all-linear"):
        assert line in result.text, result.text
    assert any("LLaMA-Factory trains LoRA then" in n.message for n in result.notes)
    full = adopted(write("train.yaml", FACTORY_BASE + f"stage: {stage}\nfinetuning_type: full\n"))
    assert "lora" not in full.text


def test_what_is_read_with_fp16_alone_is_left_out_without_it(write):
    scaling = {"enabled": "auto", "auto_cast": False, "initial_scale_power": 32, "hysteresis": 2}
    file = write(
        "ds.json", json.dumps({"fp16": scaling, "zero_optimization": {"stage": 1}, "train_batch_size": "auto"})
    )
    result = adopted(file)
    assert "fp16:" not in result.text.replace("#", "\n#").split("model:")[1]
    assert any("set `precision.initial_scale_power` to 32" in note.message for note in result.notes)
    loaded = load_spec("spec.yaml", (), TARGET, text=result.text)
    assert loaded.findings == ()


def test_another_optimizer_or_schedule_is_told(write):
    text = "base_model: m\nmicro_batch_size: 1\noptimizer: lion_8bit\nlr_scheduler: rex\n"
    messages = [note.message for note in adopted(write("axolotl.yml", text)).notes]
    assert "`optimizer: lion_8bit`: states of 8 bit; the run spec's `lion` has states of 32 bit" in messages
    assert any(
        message.startswith("`lr_scheduler: rex`: the run spec trains with `scheduler.type: cosine`")
        for message in messages
    )


def test_a_trainer_whose_json_is_not_here(write):
    result = adopted(write("train.yaml", FACTORY))
    assert any("is not on this machine" in note.message and note.place.line == 14 for note in result.notes)


def test_values_that_a_spec_does_not_take_are_left_out_and_noted(write):
    result = adopted(
        write("train.yaml", FACTORY.replace("cutoff_len: 4096", "cutoff_len: many").replace("1.0e-5", "-1"))
    )
    left_out = [note.message for note in result.notes if note.message.startswith("left out")]
    assert len(left_out) == 2


@pytest.mark.parametrize(
    ("name", "text", "gate"),
    [
        ("a.yaml", "train: {max_steps: 1}\nzero: {stage: 1}\n", "SP016"),
        ("a.json", '{"train_batch_size": 1, "zero_optimisation": {}}', "SP005"),
        ("a.json", '{"train_batch_size": $B}', "SP017"),
        ("a.yaml", "distributed_type: MULTI_GPU\n", "SP016"),
        ("a.yaml", "a: [\n", "SP002"),
        ("none.json", None, "SP001"),
    ],
)
def test_what_cannot_be_adopted_says_why(name, text, gate, write, tmp_path):
    with pytest.raises(UserError) as refused:
        adopted(write(name, text) if text is not None else str(tmp_path / name))
    assert refused.value.findings[0].gate == gate
