# SPDX-License-Identifier: Apache-2.0
"""Silent faults of DeepSpeed 0.19.8, each provoked: the spec asks for one thing, the JSON has another.

`json` overrides what the spec renders to; None removes a key. Ids are those of the sheets: `z` for ZeRO, precision and
optimizers, `p` for parallelism, keys and launch.
"""

from __future__ import annotations

from typing import Any

from tests.support.training.engine_check_cases import BF16, CPU, Case, zero

_AUTOCAST: dict[str, Any] = {"deepspeed": {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}}
_FP16_CAST: dict[str, Any] = {"deepspeed": {"torch_autocast": {"enabled": True, "dtype": "float16"}}}
_TENSOR: dict[str, Any] = {"parallel": {"tensor_parallel_size": 2}}
_ZENFLOW: dict[str, Any] = {"select_strategy": "step", "select_interval": 4, "update_interval": 2}
_LAYER: dict[str, Any] = {"layer_specs": [{"patterns": [".*no_such_layer.*"], "partition_type": "column"}]}
_COSINE: dict[str, Any] = {**zero(1), "scheduler": {"type": "cosine"}}
_SAVED: dict[str, Any] = _COSINE | {"train": {"max_steps": 2}, "checkpoint": {"save_at_end": True}}
_RESUMED: dict[str, Any] = _COSINE | {"train": {"max_steps": 4}}


def _zero(key: str, value: Any) -> dict[str, Any]:
    return {"zero_optimization": {key: value}}


def _warm(kind: str, **params: Any) -> dict[str, Any]:
    return {"scheduler": {"type": kind, "params": params}}


def _over(**keys: Any) -> dict[str, Any]:
    return {"deepspeed": keys}


ROWS: tuple[Case, ...] = (
    Case("zZ02 stage auto", zero(2), 1, _zero("stage", "auto")),
    Case("zZ02 no stage", zero(2), 1, {"zero_optimization": {"stage": None, "overlap_comm": False}}),
    Case("zZ03 stage true", zero(2), 1, _zero("stage", True)),
    Case("zZ04 zero true", zero(2), 1, {"zero_optimization": True}),
    Case("zZ05 hpz at stage 2", zero(2) | _over(zero_optimization={"zero_hpz_partition_size": 2}), 2),
    Case("zZ06 overlap at stage 0", zero(0), 1, _zero("overlap_comm", True)),
    Case("zZ09 bucket auto", zero(2, reduce_bucket_size=100000), 1, _zero("reduce_bucket_size", "auto")),
    Case(
        "zZ12 summed gradients",
        zero(1) | {"optimizer": {"type": "sgd", "weight_decay": 0.0}},
        2,
        {"gradient_allreduce_op": "sum"},
    ),
    Case("zZ13 round robin at stage 3", zero(3), 1, _zero("round_robin_gradients", True)),
    Case("zZ16 disable allgather", zero(1), 1, {"disable_allgather": True}),
    Case("zZ22 leaf of no class", zero(3), 1, _zero("leaf_module", {"classes": ["NoSuchBlock"]})),
    Case("zQ02 hpz above the world", zero(3) | _over(zero_optimization={"zero_hpz_partition_size": 8}), 2),
    Case("zQ03 hpz of none", zero(3), 1, _zero("zero_hpz_partition_size", 0)),
    Case(
        "zO01 nvme at stage 2",
        zero(2, offload_optimizer={"device": "nvme", "nvme_path": "/nowhere/at/all", "pin_memory": False}),
        1,
    ),
    Case("zO02 parameters at stage 2", zero(2, offload_param=CPU), 1),
    Case("zO03 offload at stage 0", zero(0, offload_optimizer=CPU), 1),
    Case("zO04 no device", zero(2, offload_optimizer=CPU), 1, _zero("offload_optimizer", {"device": None})),
    Case("zO04 device auto", zero(2, offload_optimizer=CPU), 1, _zero("offload_optimizer", {"device": "auto"})),
    Case(
        "zO18 super offload at stage 2",
        zero(2, offload_optimizer=CPU),
        1,
        _zero("offload_optimizer", {"super_offload": True}),
    ),
    Case("zO28 aio threads", zero(2), 1, {"aio": {"thread_count": 4}}),
    Case("zN02 zenflow auto", zero(2, offload_optimizer=CPU), 1, _zero("zenflow", {})),
    Case(
        "zN03 zenflow accumulation",
        zero(2, offload_optimizer=CPU),
        1,
        _zero("zenflow", {**_ZENFLOW, "update_interval": 4}),
    ),
    Case("zN14 zenflow", zero(2, offload_optimizer=CPU), 1, _zero("zenflow", _ZENFLOW)),
    Case("zP03 hidden step", zero(0) | BF16, 1),
    Case("zP06 fp16 autocast clips", zero(1) | _FP16_CAST, 1),
    Case("zP08 autocast on bf16", zero(1) | BF16, 1, _AUTOCAST["deepspeed"]),
    Case("zP09 fp16 autocast on bf16", zero(2) | BF16 | _FP16_CAST, 1),
    Case("zP11 no overflow check", zero(2) | BF16, 1, {"bf16": {"check_grad_overflow": False}}),
    Case("zP14 autocast not enabled", zero(1) | _AUTOCAST, 1, {"torch_autocast": {"enabled": None}}),
    Case("zP15 autocast false", zero(1), 1, {"torch_autocast": {"enabled": "false", "dtype": "bfloat16"}}),
    Case("zP22 bf16 empty", zero(1) | BF16, 1, {"bf16": {"enabled": None, "check_grad_overflow": None}}),
    Case("zP23 bf16 auto", zero(1) | BF16, 1, {"bf16": {"enabled": "auto"}}),
    Case("zP24 two spellings", zero(1) | BF16, 1, {"bfloat16": {"enabled": True}, "bf16": {"enabled": False}}),
    Case(
        "zP28 masters of no bf16",
        zero(2) | BF16,
        1,
        {"bf16": {"enabled": False, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}},
    ),
    Case("zP33 accumulates int8", zero(2) | BF16, 1, {"data_types": {"grad_accum_dtype": "int8"}}),
    Case(
        "zP35 accumulation misspelt",
        zero(2) | BF16 | _over(data_types={"grad_accum_dtype": "fp32"}),
        1,
        {"data_types": {"grad_accum_dtype": None, "grad_acc_dtype": "fp32"}},
    ),
    Case("zP39 fp16 messages", zero(2), 1, {"communication_data_type": "fp16"}),
    Case(
        "zC01 clipping by default",
        zero(1) | {"train": {"max_steps": 2, "max_grad_norm": 0.0}},
        1,
        {"gradient_clipping": None},
    ),
    Case("zC02 negative clipping", zero(1), 1, {"gradient_clipping": -1.0}),
    Case("zC04 clipping true", zero(1), 1, {"gradient_clipping": True}),
    Case(
        "zC06 clipping misspelt",
        zero(1) | {"train": {"max_steps": 2, "max_grad_norm": 0.5}},
        1,
        {"gradient_clipping": None, "gradient_cliping": 0.5},
    ),
    Case(
        "zW01 adam is adamw",
        zero(1) | {"optimizer": {"type": "adam"}},
        1,
        {"optimizer": {"params": {"adam_w_mode": None}}},
    ),
    Case("zW02 adamw flag", zero(1), 1, {"optimizer": {"params": {"adam_w_mode": False}}}),
    Case("zW03 no decay", zero(1), 1, {"optimizer": {"params": {"weight_decay": None}}}),
    Case("zW09 param", zero(1), 1, {"optimizer": {"params": None, "param": {"lr": 0.1}}}),
    Case("zW12 negative rate", zero(1), 1, {"optimizer": {"params": {"lr": -0.001}}}),
    Case("zW15 untested false", zero(1), 1, {"zero_allow_untested_optimizer": "false"}),
    Case("zW21 legacy fusion", zero(1), 1, {"optimizer": {"legacy_fusion": True}}),
    Case("zS01 warm-up", zero(1), 1, _warm("WarmupLR", warmup_num_steps=10)),
    Case(
        "zS02 peak by default",
        zero(1)
        | {"optimizer": {"learning_rate": 5e-4}}
        | _over(**_warm("WarmupDecayLR", total_num_steps=9, warmup_num_steps=2)),
        1,
    ),
    Case("zS04 peak of its own", zero(1), 1, _warm("WarmupLR", warmup_max_lr=0.01, warmup_num_steps=2)),
    Case("zS05 falls", zero(1), 1, _warm("WarmupLR", warmup_min_lr=0.01, warmup_num_steps=3)),
    Case(
        "zS06 cosine", zero(1), 1, _warm("WarmupCosineLR", total_num_steps=9, warmup_num_steps=3, warmup_min_ratio=0.1)
    ),
    Case(
        "zS09 too short", zero(1), 1, _warm("WarmupDecayLR", total_num_steps=2, warmup_num_steps=2, warmup_max_lr=0.001)
    ),
    Case(
        "zS12 scheduler name",
        zero(1) | {"scheduler": {"type": "cosine"}},
        1,
        {"scheduler": {"name": "WarmupLR", "params": {}}},
    ),
    Case(
        "zS18 one cycle", zero(1), 1, _warm("OneCycle", cycle_min_lr=1e-5, cycle_max_lr=1e-3, cycle_first_step_size=4)
    ),
    Case("zK01 deepcompile", zero(1) | _over(compile={"deepcompile": True}), 1),
    Case("zI01 bare zero.Init", zero(3), 1, fault="bare-init"),
    Case("pT05 autotp 1", zero(1) | _TENSOR, 2, {"tensor_parallel": {"autotp_size": 1}}),
    Case("pT06 tp_size alone", zero(1) | _TENSOR, 2, {"tensor_parallel": {"autotp_size": None, "tp": {"tp_size": 2}}}),
    Case("pT21 preset of no model", zero(1) | _TENSOR, 2, {"tensor_parallel": {"preset_model": "nobody"}}),
    Case("pT22 preset of another", zero(1) | _TENSOR, 2, {"tensor_parallel": {"preset_model": "bloom"}}),
    Case(
        "pT23 pattern of nothing",
        zero(1) | _TENSOR,
        2,
        {"tensor_parallel": {"partition_config": {**_LAYER, "use_default_specs": False}}},
    ),
    Case("pT24 plan misspelt", zero(1) | _TENSOR, 2, {"tensor_parallel": {"partition_config": {"layer_spec": []}}}),
    Case("pT39 other rows", zero(1) | {"parallel": {"sequence_parallel_size": 2}}, 2, fault="own-rows"),
    Case("pL02 stages clip", zero(0) | {"parallel": {"pipeline_parallel_size": 2}}, 2),
    Case("pL05 pipeline stages", zero(1) | {"parallel": {"pipeline_parallel_size": 2}}, 2, {"pipeline": {"stages": 4}}),
    Case("pS01 sequence key", zero(1), 2, {"sequence_parallel_size": 2, "train_batch_size": None}),
    Case("pE09 experts not enabled", zero(1) | _over(expert_parallel={"autoep_size": 2}), 2),
    Case("pE10 experts misspelt", zero(1) | _over(expert_parallel={"enabled": True, "ep_size": 2}), 2),
    Case("pE11 dense experts", zero(1) | _over(expert_parallel={"enabled": True, "autoep_size": 2}), 2),
    Case("pB08 micro 1.5", zero(1), 1, {"train_micro_batch_size_per_gpu": 1.5, "train_batch_size": None}),
    Case("pB09 accumulation 1.5", zero(1), 1, {"gradient_accumulation_steps": 1.5, "train_batch_size": None}),
    Case(
        "pB16 micro misspelt",
        zero(1),
        1,
        {"train_micro_batch_size_per_gpu": None, "train_micro_batch_size": 2, "gradient_accumulation_steps": 1},
    ),
    Case("pK01 zero misspelt", zero(2), 1, {"zero_optimization": None, "zero_optimizaton": {"stage": 2}}),
    Case("pK39 prescale false", zero(0), 1, {"prescale_gradients": "false"}),
    Case("pA03 autocast auto", zero(1), 1, {"torch_autocast": {"enabled": "auto", "dtype": "bfloat16"}}),
    Case("pD13 checkpointing block", zero(1), 1, {"activation_checkpointing": {"partition_activations": True}}),
    Case("saved", _SAVED, 2),
    Case("pC08 round robin at resume", _RESUMED, 2, _zero("round_robin_gradients", True), resume="saved"),
    Case("pC09 rate at resume", _RESUMED | {"optimizer": {"learning_rate": 0.01}}, 2, resume="saved"),
    Case("pC11 schedule dropped", _RESUMED, 2, {"scheduler": {"params": {}}}, resume="saved"),
)

UNSEEN = {
    "zZ06": "DeepSpeed does not read the key at this stage, and trains the same",
    "zZ09": "the default size of a bucket changes speed alone",
    "zZ12": "the engine does what it says: gradients are summed",
    "zZ13": "DeepSpeed does not read the key at this stage, and trains the same",
    "zZ16": "DeepSpeed reads the key nowhere",
    "zZ22": "a leaf of no class changes nothing here",
    "zQ03": "hpZ of 0 is none",
    "zO18": "DeepSpeed does not read the key at this stage, and offloads as asked",
    "zO28": "DeepSpeed swallows the key; another number of threads changes speed alone",
    "zP03": "mended: the harness undoes the hidden step before it is asked",
    "zP11": "shows only when a gradient is not finite",
    "zP33": "DeepSpeed accumulates in the model's format all the same",
    "zP39": "the engine has the format that it says, and rounds a little",
    "zW02": "AdamW is AdamW: the flag is ignored",
    "zW15": "shows only with an optimizer that ZeRO would refuse",
    "zW21": "DeepSpeed does not read the key with this wrapper",
    "pT21": "an unknown preset falls back to the model's own plan: layers are cut as asked",
    "pL02": "each stage's own norm is a plausible one; the harness's own pipelines clip by the norm of all stages",
    "pL05": "DeepSpeed reads the key nowhere",
    "pK39": "prescaling with the default factor gives the same mean",
    "pC08": "no check reads the moments that a checkpoint brings; the harness refuses the change of its own spec",
    "pD13": "shows in memory alone",
}
"""The reason why no check fails, by the first word of the name."""
