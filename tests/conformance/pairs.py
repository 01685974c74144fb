# SPDX-License-Identifier: Apache-2.0
"""Features that should, or may, not go together: each a change of a good configuration. Data, and the way to apply it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .case import Case, Json, clone, drop, put
from .faults import tensor_degree
from .space import MUON_ODD, ZENFLOW_GOOD, ZENFLOW_ODD


def combine(rng: random.Random, case: Case) -> Case:
    """Two features that should, or may, not go together."""
    name = rng.choice(list(PAIRS))
    config = clone(case.config)
    changed = PAIRS[name](rng, config, case)
    return replace(changed, faults=(*case.faults, f"{name.partition(' ')[0]}:{name}"))


def _pair(*changes: tuple[str, Any], **fields: Any) -> Callable[[random.Random, Json, Case], Case]:
    def change(rng: random.Random, config: Json, case: Case) -> Case:
        for path, value in changes:
            if value is None:
                drop(config, path)
            else:
                put(config, path, clone(value))
        return replace(case, config=config, **{"tensor": tensor_degree(case, config), **fields})

    return change


_BF16 = (("fp16", None), ("torch_autocast", None), ("bf16.enabled", True))
_ADAM = ("optimizer", {"type": "AdamW", "params": {"lr": 0.01}})
_FP16 = (("bf16", None), ("torch_autocast", None), ("fp16", {"enabled": True}))
_AUTO = (("bf16", None), ("fp16", None))
_SGD = ("optimizer", {"type": "SGD", "params": {"lr": 0.5}})
_UNT = ("zero_allow_untested_optimizer", True)
_CPU = ("zero_optimization.offload_optimizer", {"device": "cpu"})
_NVME = {"device": "nvme", "nvme_path": "{DIR}/nvme"}
_MICRO = (
    ("train_batch_size", None),
    ("gradient_accumulation_steps", None),
    ("train_micro_batch_size_per_gpu", 2),
)
_ONE = {"tensor": 1, "pipeline": 1, "sequence": 1, "model": {"kind": "llama"}}
_PLAIN = (("tensor_parallel", None), ("sequence_parallel_size", None), ("data_parallel_size", None))
_NO = ("zero_optimization.offload_optimizer", None)


def _zero(stage: int, *more: tuple[str, Any]) -> tuple[tuple[str, Any], ...]:
    return (("zero_optimization", {"stage": stage}), *more)


PAIRS: dict[str, Callable[[random.Random, Json, Case], Case]] = {
    "PR both formats": _pair(("fp16.enabled", True), ("bf16.enabled", True)),
    "PR fp16 at stage 0": _pair(*_zero(0), *_FP16, *_PLAIN, *_MICRO, **_ONE),
    "PR fp16 at stage 0, SGD": _pair(*_zero(0), *_FP16, _SGD, *_PLAIN, *_MICRO, **_ONE),
    "PR fp16 at stage 0, scale 1": _pair(*_zero(0), *_FP16, ("fp16.loss_scale", 1), *_PLAIN, *_MICRO, **_ONE),
    "PR bf16 at stage 0": _pair(*_zero(0), *_BF16, _ADAM, *_PLAIN, *_MICRO, **_ONE),
    "PR bf16 at stage 0, SGD": _pair(*_zero(0), *_BF16, _SGD, *_PLAIN, *_MICRO, **_ONE),
    "PR autocast fp16 with ZeRO": _pair(*_zero(2), *_AUTO, ("torch_autocast", {"enabled": True, "dtype": "float16"}), _SGD, _UNT, ("gradient_clipping", 1.0)),
    "PR autocast fp16 without clipping": _pair(*_zero(1), *_AUTO, ("torch_autocast", {"enabled": True, "dtype": "float16"}), ("gradient_clipping", 0.0)),
    "PR autocast beside bf16": _pair(*_zero(2), *_BF16, ("torch_autocast", {"enabled": True, "dtype": "bfloat16"})),
    "PR autocast beside fp16": _pair(*_zero(1), *_FP16, ("torch_autocast", {"enabled": True, "dtype": "float16"})),
    "PR fp32 accumulation at stage 0": _pair(*_zero(0), *_BF16, ("data_types.grad_accum_dtype", "fp32")),
    "PR fp32 accumulation at stage 1": _pair(*_zero(1), *_BF16, ("data_types.grad_accum_dtype", "fp32"), _ADAM),
    "PR bf16 masters and states": _pair(*_zero(2), *_BF16, ("bf16.bf16_master_weights_and_grads", True), ("bf16.bf16_optimizer_states", True), _ADAM),
    "PR bf16 masters offloaded": _pair(*_zero(2), *_BF16, ("bf16.bf16_master_weights_and_grads", True), _CPU, _ADAM),
    "PR masters without bf16": _pair(*_zero(2), *_AUTO, ("torch_autocast", None), ("bf16", {"enabled": False, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}), _ADAM),
    "PR fp16 masters offloaded": _pair(*_zero(2), *_FP16, ("fp16.fp16_master_weights_and_grads", True), _CPU, _ADAM),
    "PR sum at stage 2": _pair(*_zero(2), ("gradient_allreduce_op", "sum")),
    "PR predivide with reduce scatter": _pair(*_zero(2), ("gradient_predivide_factor", 2.0)),
    "PR prescale at stage 1": _pair(*_zero(1), ("prescale_gradients", True)),
    "ZR no norm": _pair(*_zero(1), ("zero_optimization.compute_grad_norm", False), ("gradient_clipping", 0.0)),
    "ZR unmanaged accumulation at stage 3": _pair(*_zero(3), ("managed_gradient_accumulation", False)),
    "ZR unmanaged accumulation at stage 2": _pair(*_zero(2), ("managed_gradient_accumulation", False)),
    "ZR hpZ of 2": _pair(*_zero(3, ("zero_optimization.zero_hpz_partition_size", 2)), *_PLAIN, *_MICRO, **_ONE),
    "ZR hpZ of 3": _pair(*_zero(3, ("zero_optimization.zero_hpz_partition_size", 3)), *_PLAIN, *_MICRO, **_ONE),
    "ZR hpZ with tensor": _pair(*_zero(3, ("zero_optimization.zero_hpz_partition_size", 2)), *_PLAIN, *_MICRO, ("tensor_parallel.autotp_size", 2), world=4, pipeline=1, sequence=1, model={"kind": "llama"}),
    "ZR block as true": _pair(("zero_optimization", True)),
    "ZR no stage": _pair(("zero_optimization", {"overlap_comm": True})),
    "ZR alias beside name": _pair(*_zero(3), ("zero_optimization.stage3_prefetch_bucket_size", 1000), ("zero_optimization.prefetch_bucket_size", 1000)),
    "OF optimizer at stage 0": _pair(*_zero(0, _CPU), _ADAM),
    "OF optimizer on NVMe at stage 2": _pair(*_zero(2, ("zero_optimization.offload_optimizer", _NVME)), _ADAM),
    "OF optimizer on NVMe, no path": _pair(*_zero(3, ("zero_optimization.offload_optimizer", {"device": "nvme"})), _ADAM),
    "OF parameters on NVMe, no path": _pair(*_zero(3, ("zero_optimization.offload_param", {"device": "nvme"})), _ADAM),
    "OF parameters at stage 2": _pair(*_zero(2, ("zero_optimization.offload_param", {"device": "cpu"}))),
    "OF both on NVMe": _pair(*_zero(3, ("zero_optimization.offload_param", {**_NVME, "buffer_count": 12, "buffer_size": 1000000}), ("zero_optimization.offload_optimizer", _NVME)), _ADAM),
    "OF NVMe, save": _pair(*_zero(3, ("zero_optimization.offload_optimizer", _NVME)), _ADAM, options={"load": True}),
    "OF no device": _pair(*_zero(2, ("zero_optimization.offload_optimizer", {"pin_memory": True})), _ADAM),
    "OF block as text": _pair(*_zero(2, ("zero_optimization.offload_optimizer", "cpu"))),
    "OF ratio": _pair(*_zero(3, ("zero_optimization.offload_optimizer", {"device": "cpu", "ratio": 0.5})), _ADAM),
    "OF ratio with torch Adam": _pair(*_zero(3, ("zero_optimization.offload_optimizer", {"device": "cpu", "ratio": 0.5})), _ADAM, ("optimizer.params.torch_adam", True)),
    "OF ratio at stage 2": _pair(*_zero(2, ("zero_optimization.offload_optimizer", {"device": "cpu", "ratio": 0.5})), _ADAM),
    "OF SGD offloaded": _pair(*_zero(2, _CPU), _SGD),
    "OF SGD offloaded, untested allowed": _pair(*_zero(2, _CPU), _SGD, _UNT),
    "OF superoffload": _pair(*_zero(3, ("zero_optimization.offload_optimizer", {"device": "cpu", "super_offload": True})), _ADAM),
    "OF superoffload at stage 2": _pair(*_zero(2, ("zero_optimization.offload_optimizer", {"device": "cpu", "super_offload": True})), _ADAM),
    "OF old name beside new": _pair(*_zero(2, _CPU), ("zero_optimization.cpu_offload", True), _ADAM),
    "OF zenflow": _pair(*_zero(2, _CPU), ("zero_optimization.zenflow", ZENFLOW_GOOD), _ADAM, *_PLAIN, *_MICRO, **_ONE),
    "OF zenflow, no offload": _pair(*_zero(2), ("zero_optimization.zenflow", ZENFLOW_GOOD), _ADAM, *_PLAIN, *_MICRO, **_ONE),
    "OF zenflow at stage 3": _pair(*_zero(3, _CPU), ("zero_optimization.zenflow", ZENFLOW_GOOD), _ADAM, *_PLAIN, *_MICRO, **_ONE),
    "OF zenflow at stage 0": _pair(*_zero(0), ("zero_optimization.zenflow", ZENFLOW_GOOD), _ADAM, *_PLAIN, *_MICRO, **_ONE),
    **{f"OF zenflow odd {i}": _pair(*_zero(1, _CPU), ("zero_optimization.zenflow", z), _ADAM, *_PLAIN, *_MICRO, **_ONE) for i, z in enumerate(ZENFLOW_ODD)},
    "OP SGD with ZeRO": _pair(*_zero(2), _SGD, ("zero_allow_untested_optimizer", None)),
    "OP Muon clipped": _pair(*_zero(2), ("optimizer", {"type": "Muon", "params": {"lr": 0.02}}), ("gradient_clipping", 1.0)),
    "OP Muon at stage 3": _pair(*_zero(3), ("optimizer", {"type": "Muon", "params": {"lr": 0.02}}), ("gradient_clipping", 0.0)),
    **{f"OP Muon odd {i}": _pair(*_zero(1), ("optimizer", {"type": "Muon", "params": {"lr": 0.02, **m}}), ("gradient_clipping", 0.0)) for i, m in enumerate(MUON_ODD)},
    "OP Lion without offload": _pair(*_zero(2), ("optimizer", {"type": "Lion", "params": {"lr": 0.002}})),
    "OP Adagrad with ZeRO": _pair(*_zero(2), ("optimizer", {"type": "Adagrad", "params": {"lr": 0.01}})),
    "OP Adafactor sharded": _pair(*_zero(2), ("optimizer", {"type": "Adafactor", "params": {"lr": 0.01}}), _UNT),
    "OP torch scheduler": _pair(*_zero(2), _ADAM, ("scheduler", {"type": "StepLR", "params": {"step_size": 2}})),
    "OP torch scheduler at stage 0": _pair(*_zero(0), *_AUTO, ("torch_autocast", None), _ADAM, ("scheduler", {"type": "StepLR", "params": {"step_size": 2}})),
    "OP optimizer without type": _pair(("optimizer", {"typ": "AdamW", "params": {"lr": 0.01}})),
    "BT all three wrong": _pair(("train_batch_size", 7), ("train_micro_batch_size_per_gpu", 2), ("gradient_accumulation_steps", 1)),
    "BT nothing": _pair(("train_batch_size", None), ("train_micro_batch_size_per_gpu", None), ("gradient_accumulation_steps", None)),
    "BT only accumulation": _pair(("train_batch_size", None), ("train_micro_batch_size_per_gpu", None), ("gradient_accumulation_steps", 2)),
    "BT odd total": _pair(("train_batch_size", 5), ("train_micro_batch_size_per_gpu", None), ("gradient_accumulation_steps", None)),
    "BT total and micro": _pair(("train_batch_size", 6), ("train_micro_batch_size_per_gpu", 2), ("gradient_accumulation_steps", None)),
    "TP stage 3": _pair(*_zero(3), *_MICRO, *_PLAIN, ("tensor_parallel.autotp_size", 2), world=2, pipeline=1, sequence=1, model={"kind": "llama"}),
    "TP of 2 on 3": _pair(*_MICRO, *_PLAIN, ("tensor_parallel.autotp_size", 2), world=3, pipeline=1, sequence=1, model={"kind": "llama"}),
    "TP of 4 on 2": _pair(*_MICRO, *_PLAIN, ("tensor_parallel.autotp_size", 4), world=2, pipeline=1, sequence=1, model={"kind": "llama"}),
    "TP true global batch": _pair(*_PLAIN, ("train_batch_size", 2), ("train_micro_batch_size_per_gpu", 2), ("gradient_accumulation_steps", 1), ("tensor_parallel.autotp_size", 2), world=2, pipeline=1, sequence=1, model={"kind": "llama"}),
    "TP and sequence": _pair(*_MICRO, ("tensor_parallel.autotp_size", 2), ("sequence_parallel_size", 2), ("data_parallel_size", 1), world=4, sequence=2, pipeline=1, model={"kind": "llama"}, form="json"),
    "PP stage 2": _pair(*_zero(2), *_MICRO, *_PLAIN, world=2, pipeline=2, tensor=1, sequence=1, model={"kind": "pipe", "layers": 4}, form="spec"),
    "PP stage 3": _pair(*_zero(3), *_MICRO, *_PLAIN, world=2, pipeline=2, tensor=1, sequence=1, model={"kind": "pipe", "layers": 4}, form="spec"),
    "PP on 3 ranks": _pair(*_zero(1), *_MICRO, *_PLAIN, world=3, pipeline=2, tensor=1, sequence=1, model={"kind": "pipe", "layers": 4}, form="spec"),
    "PP fp32 clipped at stage 0": _pair(*_zero(0), *_AUTO, ("torch_autocast", None), ("gradient_clipping", 0.5), *_MICRO, *_PLAIN, _SGD, world=2, pipeline=2, tensor=1, sequence=1, model={"kind": "pipe", "layers": 4}, form="spec"),
    "PP with wall clock": _pair(*_zero(1), ("wall_clock_breakdown", True), *_MICRO, *_PLAIN, world=2, pipeline=2, tensor=1, sequence=1, model={"kind": "pipe", "layers": 4}, form="spec"),
    "PP offloaded": _pair(*_zero(1, _CPU), _ADAM, *_MICRO, *_PLAIN, world=2, pipeline=2, tensor=1, sequence=1, model={"kind": "pipe", "layers": 4}, form="spec"),
    "PP with tensor": _pair(*_MICRO, *_PLAIN, *_zero(1), ("tensor_parallel.autotp_size", 2), world=4, pipeline=2, sequence=1, model={"kind": "pipe", "layers": 4}, form="spec"),
    "PP with sequence": _pair(*_MICRO, *_PLAIN, *_zero(1), ("sequence_parallel_size", 2), ("data_parallel_size", 1), world=4, pipeline=2, sequence=2, tensor=1, model={"kind": "pipe", "layers": 4}, form="spec"),
    "SQ key alone": _pair(*_MICRO, ("tensor_parallel", None), ("data_parallel_size", None), ("sequence_parallel_size", 2), world=2, sequence=1, tensor=1, pipeline=1, form="json", model={"kind": "llama"}),
    "SQ keys without a wrapper": _pair(*_MICRO, ("tensor_parallel", None), ("data_parallel_size", 1), ("sequence_parallel_size", 2), world=2, sequence=1, tensor=1, pipeline=1, form="json", model={"kind": "llama"}),
    "SQ mesh of one rank": _pair(*_MICRO, ("tensor_parallel", None), ("data_parallel_size", 1), ("sequence_parallel_size", 1), world=2, sequence=1, tensor=1, pipeline=1, form="json", model={"kind": "llama"}),
    "SQ mesh of all ranks": _pair(*_MICRO, ("tensor_parallel", None), ("data_parallel_size", 2), ("sequence_parallel_size", 1), world=2, sequence=1, tensor=1, pipeline=1, form="json", model={"kind": "llama"}),
    "SQ mesh over AutoTP": _pair(*_MICRO, ("tensor_parallel.autotp_size", 2), ("data_parallel_size", 2), ("sequence_parallel_size", 1), world=2, sequence=1, pipeline=1, form="json", model={"kind": "llama"}),
    "SQ of 2 on 3": _pair(*_MICRO, ("tensor_parallel", None), ("data_parallel_size", 1), ("sequence_parallel_size", 2), world=3, sequence=2, tensor=1, pipeline=1, form="spec", model={"kind": "llama"}),
    "SQ good": _pair(*_MICRO, *_zero(3), ("tensor_parallel", None), ("data_parallel_size", 1), ("sequence_parallel_size", 2), world=2, sequence=2, tensor=1, pipeline=1, form="spec", model={"kind": "llama"}),
    "CK save 16 bit, not gathered": _pair(*_zero(3, ("zero_optimization.stage3_gather_16bit_weights_on_model_save", False)), options={"save_16bit": True, "consumer": "hf"}, form="json", model={"kind": "llama"}),
    "CK save 16 bit, gathered": _pair(*_zero(3, ("zero_optimization.stage3_gather_16bit_weights_on_model_save", True)), options={"save_16bit": True, "consumer": "hf"}, form="json", model={"kind": "llama"}),
    "CK universal": _pair(("checkpoint.load_universal", True), options={"load": True}),
    "EX Mixtral at stage 3": _pair(*_zero(3), *_PLAIN, *_MICRO, **{**_ONE, "model": {"kind": "mixtral"}, "form": "spec"}),
    "EX AutoEP": _pair(*_zero(2), *_PLAIN, *_MICRO, ("expert_parallel", {"enabled": True, "autoep_size": 2}), **{**_ONE, "model": {"kind": "mixtral"}, "form": "spec", "world": 2}),
}  # fmt: skip
"""By name; the first word is the family that should notice, if there is anything to notice."""
