# SPDX-License-Identifier: Apache-2.0
"""The optimizer that trains, of the spec or of its DeepSpeed JSON, and the states that it keeps of an element.

Counted on live engines: `tests/training/plan/test_plan_counts.py`. Names and classes: `_configure_basic_optimizer` in
`runtime/engine.py` of DeepSpeed, and `torch.optim`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

_MOMENTUM_ALONE = frozenset(("sgd", "musgd"))
_NUM_STATES: Mapping[str, int] = {"lion": 1, "adagrad": 1, "asgd": 1, "adafactor": 1, "rmsprop": 1}
"""States of an element where they are not two (Adam, AdamW, Lamb, Adadelta, Adamax, NAdam, RAdam, Rprop, mup's Adams).

ZeRO flattens what it steps. Of a vector Adafactor keeps one variance an element, of a matrix one a row and a column.
"""
_DEFAULT_STATES = 2
_BUILT_WITH_STATES = frozenset(("adagrad",))
"""torch's Adagrad has its sums from its construction on, in the model's dtype. The 16-bit optimizer of stage 0 then has
others for its masters, and stages 1 and 2 make a new one of the shards (`initialize_optimizer_states` in
`runtime/zero/stage_1_and_2.py`), while the engine keeps the first. At stage 3 it has only empty parameters.
"""
_FUSED = frozenset(("adam", "adamw"))


class Optimizer(NamedTuple):
    """The optimizer that DeepSpeed builds: its name in lower case, and the parameters that it is given."""

    name: str
    params: Mapping[str, Any]

    @staticmethod
    def of(block: object, name: str, momentum: float | None) -> Optimizer:
        """The `optimizer` block of the DeepSpeed JSON where there is one, since that is rendered; else the spec's."""
        if isinstance(block, Mapping) and isinstance(block.get("type"), str):
            params = block.get("params")
            return Optimizer(block["type"].lower(), params if isinstance(params, Mapping) else {})
        return Optimizer(name, {"momentum": momentum})

    @property
    def is_muon(self) -> bool:
        """DeepSpeed's Muon for matrices, with its Adam for all else."""
        return self.name == "muon"

    @property
    def is_fused(self) -> bool:
        """DeepSpeed's FusedAdam; under fp16 and bf16 stage 0 flattens the masters of that one alone."""
        return self.name in _FUSED and not self.params.get("torch_adam")

    def step_temporaries(self, *, of_loop: bool) -> tuple[int, int]:
        """Those of torch's Adam, unfused, on a GPU and on the CPU. `of_loop`: the loop makes it, for which accelerate
        takes DeepSpeed's on the CPU (`map_pytorch_optim_to_deepspeed`).
        """
        if self.name not in _FUSED or self.params.get("fused"):
            return 0, 0
        return (1, 2) if self.params.get("torch_adam") else (int(of_loop), 0)

    def num_states(self, *, stage: int, is_offloaded: bool) -> int:
        """States of an element, of Muon those of its Adam. Lion on the CPU has a second one that nothing reads
        (`ops/lion/cpu_lion.py`).
        """
        if self.name in _MOMENTUM_ALONE:
            return 1 if self.params.get("momentum") else 0
        if self.name == "lion" and is_offloaded:
            return 2
        if self.name == "adafactor" and stage == 0:
            return 0
        extra = sum(bool(self.params.get(key)) for key in ("momentum", "centered")) if self.name == "rmsprop" else 0
        return _NUM_STATES.get(self.name, _DEFAULT_STATES) + extra

    def keeps_first_states(self, *, stage: int, is_offloaded: bool, mixed_precision: bool) -> bool:
        """Does the engine keep the states of a first version, of all parameters?"""
        is_rebuilt = stage in (1, 2) or (stage == 0 and mixed_precision)
        return self.name in _BUILT_WITH_STATES and is_rebuilt and not is_offloaded


@dataclass(frozen=True, slots=True)
class BytesPerParameter:
    """Bytes a parameter of the model states, by kind, however many ranks share each of them."""

    parameters: int
    gradients: int
    master: int
    states: int

    @property
    def total(self) -> int:
        """All of them: 16 with 16-bit weights, fp32 masters and Adam."""
        return self.parameters + self.gradients + self.master + self.states

    def per_rank(self, parameters: float, ranks: int, stage: int) -> float:
        """Bytes a rank of the states alone, as in table 1 of the ZeRO paper (arXiv 1910.02054): what a stage shards is
        divided by the ranks. No buffers and no padding.
        """
        unsharded = {0: self.total, 1: self.parameters + self.gradients, 2: self.parameters, 3: 0}[stage]
        return parameters * (unsharded + (self.total - unsharded) / ranks)

    def __str__(self) -> str:
        parts = (self.parameters, "parameters"), (self.gradients, "gradients"), (self.master, "master weights")
        terms = " + ".join(f"{width} {name}" for width, name in (*parts, (self.states, "optimizer states")) if width)
        return f"{terms} = {self.total} bytes per parameter"
