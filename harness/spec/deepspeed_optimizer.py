# SPDX-License-Identifier: Apache-2.0
"""The spec's optimizer under DeepSpeed's names: its class, and the parameters of that class.

Source: `_configure_basic_optimizer` and `_muon_param_groups` in `runtime/engine.py`, and the classes' signatures.
"""

from __future__ import annotations

from typing import Any

from harness.spec.sections.training_spec import OptimizerSpec

_DEEPSPEED_NAMES = {
    "adamw": "AdamW",
    "adam": "Adam",
    "sgd": "SGD",
    "lion": "Lion",
    "adagrad": "Adagrad",
    "lamb": "Lamb",
    "muon": "Muon",
}
_PARAMETERS = {
    "adamw": ("betas", "eps"),
    "adam": ("betas", "eps"),
    "sgd": ("momentum",),
    "lion": ("betas",),
    "adagrad": ("eps",),
    "lamb": ("betas", "eps"),
    "muon": ("betas", "eps", "momentum"),
}
"""Parameters beyond `lr` and `weight_decay`, which all take."""
NAME_BY_CLASS = {
    "fusedadam": "AdamW",
    "cpuadam": "AdamW",
    "deepspeedcpuadam": "AdamW",
    "zenflowcpuadam": "AdamW",
    "fusedlamb": "Lamb",
    "fusedlion": "Lion",
    "deepspeedcpulion": "Lion",
    "deepspeedcpuadagrad": "Adagrad",
    "muonwithauxadam": "Muon",
}
"""Classes that people write where DeepSpeed wants the optimizer's name."""
_DEFAULT_MOMENTUM = {"sgd": 0.0, "muon": 0.95}


def deepspeed_optimizer(spec: OptimizerSpec) -> tuple[str, dict[str, Any]]:
    """`optimizer.type` and `optimizer.params` of the DeepSpeed JSON; every parameter is written, defaults differ."""
    values: dict[str, Any] = {
        "betas": list(spec.betas),
        "eps": spec.eps,
        "momentum": spec.momentum if spec.momentum is not None else _DEFAULT_MOMENTUM.get(spec.type),
    }
    params = {"lr": spec.learning_rate, **{name: values[name] for name in _PARAMETERS[spec.type]}}
    params["weight_decay"] = spec.weight_decay
    if spec.type == "adam":
        params["adam_w_mode"] = False
    if spec.type == "muon" and spec.adam_learning_rate is not None:
        params["adam_lr"] = spec.adam_learning_rate
    return _DEEPSPEED_NAMES[spec.type], params
