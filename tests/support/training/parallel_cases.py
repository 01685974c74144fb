# SPDX-License-Identifier: Apache-2.0
"""Tensor, sequence and expert parallel ways to train, each to agree with one plain process on the same global batch.

The table is shared by the tests of this folder and by `benchmarks/parity.py`. Rows are uneven: each leaves out another
number of labels, and packed ones hold two documents.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.render import render_ds_config
from harness.run.resolved_run import resolve_run
from harness.spec.run_spec import RunSpec
from tests.support.training.model_shapes import GPT2, LLAMA, NO_DROPOUT

IS_NIGHT = os.environ.get("HARNESS_NIGHTLY") == "1"
STEPS = 20 if IS_NIGHT else 10
"""By day the half: the first update, warm-up and all of the decay are in it."""
WARMUP, LENGTH, MICRO, ACCUMULATION = 4, 32, 2, 2
OPTIMIZER = {"type": "adamw", "learning_rate": 1e-3, "weight_decay": 0.1, "betas": [0.9, 0.95], "eps": 1e-8}
CLIP = 1.0
SEED = 11

FP32_BOUND, FP32_NORM_BOUND = 1e-5, 1e-5
BF16_BOUND, BF16_NORM_BOUND = 3e-4, 5e-3
"""Largest relative difference of a step's loss and of its gradient norm over all steps. In bf16 sums are taken in another
order, and each is rounded to 8 bits."""

_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 1}
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **LLAMA},
    "llama-tied": {"model_type": "llama", **LLAMA, "tie_word_embeddings": True},
    "mistral": {"model_type": "mistral", **LLAMA, "sliding_window": 8},
    "qwen2": {"model_type": "qwen2", **LLAMA, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", **LLAMA, "head_dim": 16},
    "gpt2": {**GPT2, **NO_DROPOUT},
    "mixtral": {"model_type": "mixtral", **LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {"model_type": "qwen2_moe", **LLAMA, **_EXPERTS, "shared_expert_intermediate_size": 64},
}


@dataclass(frozen=True, slots=True)
class Case:
    """One way to train the same thing; `more` is laid over the spec, section by section, as JSON."""

    shape: str
    stage: int
    ranks: int = 2
    tensor: int = 1
    sequence: int = 1
    precision: str = "fp32"
    packed: bool = False
    skewed: bool = False
    """Every row of a data rank is one token over and over, so that its tokens all go to the same experts."""
    more: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        ways = f"tensor{self.tensor}-sequence{self.sequence}-{self.ranks}ranks"
        traits = "-packed" * self.packed + "-skewed" * self.skewed
        extra = "".join(c if c.isalnum() else "_" for pair in self.more for c in "-" + "".join(pair))
        return f"{self.shape}-zero{self.stage}-{self.precision}-{ways}{traits}{extra}"

    @property
    def degrees(self) -> tuple[int, int, int]:
        """Cases of the same degrees can run in the same processes."""
        return self.ranks, self.tensor, self.sequence

    @property
    def in_chunks(self) -> bool:
        """Is the loss to be computed in chunks?"""
        return any("loss_chunk_size" in text for _, text in self.more)

    @property
    def data_size(self) -> int:
        return self.ranks // (self.tensor * self.sequence)

    @property
    def bounds(self) -> tuple[float, float]:
        """Of loss and gradient norm."""
        return (FP32_BOUND, FP32_NORM_BOUND) if self.precision == "fp32" else (BF16_BOUND, BF16_NORM_BOUND)


_CPU = (("zero", '{"offload_optimizer": {"device": "cpu", "pin_memory": false}}'),)
_RECOMPUTE = (("train", '{"gradient_checkpointing": true}'),)
_CHUNKS = (("train", '{"loss_chunk_size": 5}'),)
_VARLEN, _FLASH = (
    (("model", json.dumps({"attn_implementation": kernel})), ("data", '{"packing": true}'))
    for kernel in ("sdpa_varlen", "flash_attention_2")
)
"""Attention that gets the borders of documents; the package `flash_attn` is a stand-in on these ranks."""


def _preset(name: str) -> tuple[tuple[str, str], ...]:
    return (("deepspeed", json.dumps({"tensor_parallel": {"preset_model": name}})),)


TENSOR = (
    *(Case("llama", stage, tensor=2) for stage in (0, 1, 2)),
    Case("llama-tied", 0, tensor=2),
    Case("llama-tied", 2, tensor=2),
    Case("qwen2", 1, tensor=2),
    Case("qwen3", 2, tensor=2, packed=True),
    Case("mistral", 1, tensor=2, packed=True),
    Case("llama", 1, tensor=2, more=_CPU),
    Case("llama", 1, tensor=2, more=_RECOMPUTE),
    Case("llama", 1, tensor=2, precision="bf16"),
    Case("qwen2", 2, tensor=2, precision="bf16"),
    *(Case("llama", stage, ranks=4, tensor=2) for stage in (0, 1, 2)),
    Case("qwen2", 1, ranks=4, tensor=2, packed=True),
    Case("llama", 2, ranks=4, tensor=2, precision="bf16"),
    Case("mixtral", 1, tensor=2, more=_preset("mixtral")),
    Case("qwen2_moe", 1, tensor=2, more=_preset("qwen2")),
    *(Case(shape, 1, tensor=2, more=_CHUNKS) for shape in ("llama", "llama-tied", "qwen3")),
    Case("llama", 2, tensor=2, precision="bf16", more=_CHUNKS),
    Case("mixtral", 1, tensor=2, more=(*_preset("mixtral"), *_CHUNKS)),
    Case("llama", 2, ranks=4, tensor=2, more=_CHUNKS),
    Case("llama-tied", 3, tensor=2),
    Case("llama", 3, ranks=4, tensor=2, precision="bf16"),
    Case("llama", 3, tensor=2, more=_CPU),
    Case("qwen3", 2, tensor=2, packed=True, more=_VARLEN),
)
"""GPT-2 is refused by DeepSpeed (gate TP006); mixtures of experts need a preset (TP007), and
have their attention cut, not their experts."""

SEQUENCE = (
    *(Case("llama", stage, sequence=2) for stage in (0, 1, 2, 3)),
    Case("llama-tied", 1, sequence=2, packed=True),
    Case("mistral", 3, sequence=2, packed=True),
    Case("qwen2", 2, sequence=2, packed=True),
    Case("gpt2", 1, sequence=2),
    Case("gpt2", 3, sequence=2),
    Case("mixtral", 1, sequence=2),
    Case("mixtral", 3, sequence=2, packed=True),
    Case("llama", 2, sequence=2, more=_CPU),
    Case("llama", 3, sequence=2, more=_RECOMPUTE),
    Case("llama", 1, sequence=2, precision="bf16"),
    Case("llama", 3, sequence=2, precision="bf16"),
    *(Case("llama", stage, ranks=4, sequence=2, packed=True) for stage in (0, 1, 2, 3)),
    Case("qwen2", 2, ranks=4, sequence=4),
    *(Case("llama", stage, sequence=2, packed=stage == 3, more=_CHUNKS) for stage in (2, 3)),
    Case("llama-tied", 3, sequence=2, more=_CHUNKS),
    Case("mistral", 3, sequence=2, packed=True, more=(*_VARLEN, *_RECOMPUTE)),
    Case("qwen2", 2, sequence=2, packed=True, more=(*_VARLEN, *_CHUNKS)),
    Case("mistral", 2, sequence=2, packed=True, more=_FLASH),
    Case("llama", 3, ranks=4, sequence=2, packed=True, more=_VARLEN),
)

_BOTH = {"ranks": 4, "tensor": 2, "sequence": 2}
TENSOR_SEQUENCE = (
    *(Case("llama", stage, **_BOTH) for stage in (0, 1, 2, 3)),
    Case("llama-tied", 1, **_BOTH),
    Case("qwen2", 2, packed=True, **_BOTH),
    Case("mistral", 3, packed=True, **_BOTH),
    Case("qwen3", 1, packed=True, more=_VARLEN, **_BOTH),
    Case("llama", 2, more=_CPU, **_BOTH),
    Case("llama", 3, more=_RECOMPUTE, **_BOTH),
    Case("llama-tied", 2, more=_CHUNKS, **_BOTH),
    Case("llama", 3, more=_CHUNKS, **_BOTH),
    Case("llama", 1, precision="bf16", **_BOTH),
    Case("llama-tied", 3, precision="bf16", **_BOTH),
)
"""Of four heads each tensor rank has two, and each of its sequence ranks one."""

EXPERTS = (
    Case("mixtral", 3, skewed=True),
    Case("qwen2_moe", 3, skewed=True),
    Case("mixtral", 2, skewed=True),
    Case("mixtral", 3, precision="bf16"),
    Case("mixtral", 3, ranks=4, skewed=True),
    Case("qwen2_moe", 3, ranks=4, skewed=True),
)

ALL = (*TENSOR, *SEQUENCE, *TENSOR_SEQUENCE, *EXPERTS)


def _some(cases: tuple[Case, ...], *places: int, night: tuple[int, ...] = ()) -> tuple[Case, ...]:
    return tuple(cases[i] for i in sorted((*places, *(night if IS_NIGHT else ()))))


# What the tests run: every stage, number format and degree, each family once; by night more pairs of them.
CI_TENSOR = _some(TENSOR, 0, 4, 6, 15, 17, 18, 20, 22, 25, 26, 27, night=(2, 11, 13, 21))
CI_SEQUENCE = _some(SEQUENCE, 0, 4, 5, 8, 11, 14, 18, 19, 22, 23, 24, 25, night=(17, 20, 21))
CI_TENSOR_SEQUENCE = _some(TENSOR_SEQUENCE, 4, 5, 6, 11, 13, night=(1,))
CI_EXPERTS = _some(EXPERTS, 0, 1, 4)


def spec(case: Case, models: Path, text: Path) -> dict[str, Any]:
    """The run spec of a case."""
    body: dict[str, Any] = {
        "name": case.name[:60],
        "model": {"name_or_path": str(models / case.shape)},
        "data": {"train": str(text), "max_length": LENGTH, "eval_fraction": 0.0},
        "train": {
            "max_steps": STEPS,
            "per_device_train_batch_size": MICRO,
            "gradient_accumulation_steps": ACCUMULATION,
            "seed": SEED,
            "max_grad_norm": CLIP,
        },
        "optimizer": OPTIMIZER,
        "scheduler": {"type": "cosine", "warmup_steps": WARMUP},
        "precision": {"bf16": case.precision == "bf16"},
        "zero": {"stage": case.stage},
        "parallel": {"tensor_parallel_size": case.tensor, "sequence_parallel_size": case.sequence},
        "checkpoint": {"save_at_end": False},
    }
    for section, more in case.more:
        body[section] = {**body.get(section, {}), **json.loads(more)}
    return body


def write_run(folder: Path, case: Case, models: Path, text: Path, **sections: dict[str, Any]) -> Path:
    """A run directory as the launching side makes it."""
    folder.mkdir(parents=True)
    body = spec(case, models, text)
    for section, more in sections.items():
        body[section] = {**body.get(section, {}), **more}
    run = resolve_run(RunSpec.model_validate_json(json.dumps(body)), world_size=case.ranks)
    (folder / "spec.resolved.json").write_text(json.dumps(run.to_json()))
    (folder / "ds_config.json").write_text(json.dumps(dict(render_ds_config(run).config), indent=2))
    return folder


def write_text(path: Path) -> Path:
    """Enough for a step; the cases bring their own rows."""
    path.write_text("\n".join("a rank steps when every shard of the gradient is there" for _ in range(400)) + "\n")
    return path
