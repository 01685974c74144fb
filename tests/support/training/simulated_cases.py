# SPDX-License-Identifier: Apache-2.0
"""Runs that are both simulated and trained on live CPU ranks: the table, and the files that each side reads.

Shared by `benchmarks/simulated_against_live.py` and the tests of `tests/training/simulation`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.plan.planner import make_plan
from harness.plan.simulation.request import build_request
from harness.plan.tuned_defaults.rules import with_tuned_defaults
from harness.render import render_ds_config
from harness.run.resolved_run import resolve_run
from harness.spec.run_spec import RunSpec
from tests.support.training.model_shapes import GPT2, LLAMA

STEPS, LENGTH = 2, 32
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **LLAMA},
    "wide": {"model_type": "llama", **LLAMA, "hidden_size": 512, "intermediate_size": 512, "num_hidden_layers": 3},
    "tied": {"model_type": "llama", **LLAMA, "tie_word_embeddings": True},
    "qwen2": {"model_type": "qwen2", **LLAMA, "tie_word_embeddings": True},
    "gpt2": GPT2,
    "mixtral": {"model_type": "mixtral", **LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"model_type": "qwen3_moe", **LLAMA, **_EXPERTS},
}
CPU = {"device": "cpu"}
NVME = {"device": "nvme", "nvme_path": "nvme"}
NVME_PARAMETERS = {**NVME, "buffer_count": 28, "buffer_size": 70_000}
BF16, FP16 = {"precision": {"bf16": True}}, {"precision": {"fp16": True, "initial_scale_power": 4}}
CHECKPOINTING = {"train": {"gradient_checkpointing": True}}
ONCE = {"train": {"gradient_accumulation_steps": 1}}
PACKED = {"data": {"packing": True}}


@dataclass(frozen=True)
class SimulatedCase:
    """One run. `sections` are laid over the spec, section by section."""

    name: str
    shape: str = "llama"
    stage: int = 0
    ranks: int = 2
    zero: dict[str, Any] = field(default_factory=dict)
    sections: tuple[dict[str, dict[str, Any]], ...] = ()

    def spec(self, nvme: Path) -> RunSpec:
        """The run, with its swap files in the folder `nvme`."""
        body: dict[str, Any] = {
            "model": {"config": SHAPES[self.shape], "tokenizer": "bytes"},
            "data": {"train": "builtin:python-docs", "max_length": LENGTH, "eval_fraction": 0.0},
            "train": {"max_steps": STEPS, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 2},
            "zero": {"stage": self.stage, **self.zero},
            "checkpoint": {"save_at_end": True},
            "cluster": {"gpu": "cpu"},
            "launch": {"num_gpus": self.ranks, "engine_checks": "off"},  # their small collectives are not simulated
        }
        for sections in self.sections:
            for name, more in sections.items():
                body[name] = {**body.get(name, {}), **more}
        return RunSpec.model_validate_json(json.dumps(body).replace('"nvme_path": "nvme"', f'"nvme_path": "{nvme}"'))


def case(
    name: str, shape: str = "llama", stage: int = 0, *sections: dict[str, Any], ranks: int = 2, **zero: Any
) -> SimulatedCase:
    """A case; keywords are keys of the `zero` section."""
    return SimulatedCase(name, shape, stage, ranks, zero, sections)


def write_case(case: SimulatedCase, folder: Path) -> tuple[Path, Path]:
    """The run directory of the live side, and the request of the simulated one."""
    run_dir, request = folder / "run", folder / "request.json"
    for name in ("logs", "status", "checkpoints", "nvme"):
        (run_dir / name).mkdir(parents=True)
    run = with_tuned_defaults(resolve_run(case.spec(run_dir / "nvme"), world_size=case.ranks), run_dir)
    config = dict(render_ds_config(run).config)
    plan = make_plan(run, folder, "cpu", with_alternatives=False)
    body = {**build_request(plan, config, folder).body, "with_evaluation": False}
    request.write_text(json.dumps(body))
    (run_dir / "spec.resolved.json").write_text(json.dumps(run.to_json()))
    (run_dir / "ds_config.json").write_text(json.dumps(config, indent=2))
    return run_dir, request


SMALL_BUCKETS = {"reduce_bucket_size": 30_000, "sub_group_size": 40_000, "stage3_param_persistence_threshold": 100}


def _model(shape: str, **more: Any) -> dict[str, Any]:
    return {"model": {"config": SHAPES[shape], "tokenizer": "bytes", **more}}


def _parallel(**degrees: int) -> dict[str, Any]:
    return {"parallel": {f"{name}_parallel_size": degree for name, degree in degrees.items()}}


LORA = _model("llama", lora={"r": 4, "target_modules": "all-linear"})
FROZEN = _model("llama", freeze=["model.embed_tokens.*", "*.mlp.*", "*norm*"])
GPT2_FROZEN = _model("gpt2", freeze=["transformer.wte.*", "*.mlp.*"])
CASES = (
    case("zero0 fp32"),
    case("zero0 bf16", "llama", 0, BF16),
    case("zero0 bf16 once gpt2", "gpt2", 0, BF16, ONCE),
    case("zero1 fp32 gpt2", "gpt2", 1),
    case("zero1 bf16 qwen2", "qwen2", 1, BF16),
    case("zero1 bf16 cpu", "llama", 1, BF16, offload_optimizer=CPU),
    case("zero1 bf16 frozen", "llama", 1, BF16, FROZEN),
    case("zero1 fp16", "llama", 1, FP16),
    case("zero2 fp32 tied", "tied", 2),
    case("zero2 bf16 once", "llama", 2, BF16, ONCE),
    case("zero2 bf16 checkpointing packed", "llama", 2, BF16, CHECKPOINTING, PACKED),
    case("zero2 fp32 cpu", "llama", 2, offload_optimizer=CPU),
    case("zero2 bf16 cpu qwen2", "qwen2", 2, BF16, offload_optimizer=CPU),
    case("zero2 bf16 lora", "llama", 2, BF16, LORA),
    case("zero2 bf16 small buckets gpt2", "gpt2", 2, BF16, reduce_bucket_size=30_000),
    case("zero2 fp16 cpu", "llama", 2, FP16, offload_optimizer=CPU),
    case("zero3 fp32", "llama", 3),
    case("zero3 bf16 small buckets", "llama", 3, BF16, **SMALL_BUCKETS),
    case("zero3 bf16 once gpt2", "gpt2", 3, BF16, ONCE, **SMALL_BUCKETS),
    case("zero3 bf16 tied checkpointing", "tied", 3, BF16, CHECKPOINTING, **SMALL_BUCKETS),
    case("zero3 bf16 packed qwen2", "qwen2", 3, BF16, PACKED, **SMALL_BUCKETS),
    case("zero3 bf16 cpu", "llama", 3, BF16, offload_optimizer=CPU, **SMALL_BUCKETS),
    case("zero3 fp32 cpu both", "llama", 3, offload_optimizer=CPU, offload_param=CPU, **SMALL_BUCKETS),
    case("zero3 bf16 cpu both once", "qwen2", 3, BF16, ONCE, offload_optimizer=CPU, offload_param=CPU, **SMALL_BUCKETS),
    case("zero3 bf16 lora", "llama", 3, BF16, LORA, **SMALL_BUCKETS),
    case("zero3 bf16 frozen gpt2", "gpt2", 3, BF16, GPT2_FROZEN, **SMALL_BUCKETS),
    case("zero3 bf16 nvme", "llama", 3, BF16, offload_optimizer=NVME, **SMALL_BUCKETS),
    case("zero3 bf16 nvme swapped wide", "wide", 3, BF16, ONCE, offload_optimizer=NVME, sub_group_size=1_000_000),
    case("zero3 fp32 nvme once", "llama", 3, ONCE, offload_optimizer=NVME, **SMALL_BUCKETS),
    case(
        "zero3 bf16 nvme both", "llama", 3, BF16, offload_optimizer=NVME, offload_param=NVME_PARAMETERS, **SMALL_BUCKETS
    ),
    case("zero3 bf16 nvme parameters", "qwen2", 3, BF16, offload_optimizer=CPU, offload_param=NVME_PARAMETERS),
    case("zero3 fp16", "llama", 3, FP16, **SMALL_BUCKETS),
)
WAYS = (
    case("tensor 2 zero0 fp32", "llama", 0, _parallel(tensor=2)),
    case("tensor 2 zero1 bf16 qwen2", "qwen2", 1, BF16, _parallel(tensor=2)),
    case("tensor 2 zero2 bf16 4 ranks", "llama", 2, BF16, _parallel(tensor=2), ranks=4),
    case("sequence 2 zero1 fp32", "llama", 1, _parallel(sequence=2)),
    case("sequence 2 zero3 bf16", "llama", 3, BF16, _parallel(sequence=2)),
    case("sequence 2 zero2 bf16 4 ranks packed", "qwen2", 2, BF16, PACKED, _parallel(sequence=2), ranks=4),
    case("pipeline 2 zero1 bf16", "llama", 1, BF16, _parallel(pipeline=2)),
    case("pipeline 2 zero0 bf16 gpt2", "gpt2", 0, BF16, _parallel(pipeline=2)),
    case("pipeline 2 zero1 bf16 qwen2 4 ranks", "qwen2", 1, BF16, _parallel(pipeline=2), ranks=4),
    case("experts zero2 bf16 mixtral", "mixtral", 2, BF16),
    case("experts zero3 bf16 qwen3_moe", "qwen3_moe", 3, BF16, **SMALL_BUCKETS),
)
