# SPDX-License-Identifier: Apache-2.0
"""The case of the conformance suite: a configuration as a user would write it, and how to run it. Imports no torch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Json = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One drawn configuration; everything in it follows from `id`."""

    id: str
    form: Literal["spec", "json"]
    config: Json
    """The DeepSpeed JSON that the user has in mind, faults included; a spec is written from it."""
    world: int
    faults: tuple[str, ...] = ()
    """What was made wrong or odd on purpose, as `FAMILY:what`; empty for a configuration that should be good."""
    features: tuple[str, ...] = ()
    """What it is made of: `stage-3`, `bf16`, `nvme`, ..."""
    tensor: int = 1
    pipeline: int = 1
    sequence: int = 1
    model: Json = field(default_factory=lambda: {"kind": "llama"})
    meant: Json | None = None
    """The JSON without misspellings, where there are some: what the user wanted."""
    options: Json = field(default_factory=dict)
    """Of the script: load, save_16bit, creation, steps."""
    text: str | None = None
    """The file, where it is written by hand (a gate's page)."""
    page: str = ""
    """For a gate's page: what upstream does with its Example, or `instead`."""

    def to_json(self) -> Json:
        return asdict(self)

    @staticmethod
    def of(body: Json) -> Case:
        return Case(**{**body, "faults": tuple(body["faults"]), "features": tuple(body["features"])})

    @property
    def degrees(self) -> dict[str, int]:
        return {"tensor": self.tensor, "pipeline": self.pipeline, "sequence": self.sequence}


def get(config: Any, path: str, default: Any = None) -> Any:
    """The value at a dotted path; the default where it does not lead anywhere."""
    for part in path.split("."):
        if not isinstance(config, dict) or part not in config:
            return default
        config = config[part]
    return config


def put(config: Json, path: str, value: Any) -> None:
    """Set a dotted path, making blocks on the way (a value that is no block is replaced by one)."""
    *blocks, name = path.split(".")
    for block in blocks:
        if not isinstance(config.get(block), dict):
            config[block] = {}
        config = config[block]
    config[name] = value


def drop(config: Json, path: str) -> None:
    """Remove a dotted path, where it is there."""
    *blocks, name = path.split(".")
    for block in blocks:
        inner = config.get(block)
        if not isinstance(inner, dict):
            return
        config = inner
    config.pop(name, None)


def clone(config: Any) -> Any:
    """A copy as JSON has it (no tuples)."""
    return json.loads(json.dumps(config))


_FIELDS = {
    "train_batch_size": "train.global_batch_size",
    "train_micro_batch_size_per_gpu": "train.per_device_train_batch_size",
    "gradient_accumulation_steps": "train.gradient_accumulation_steps",
    "gradient_clipping": "train.max_grad_norm",
    "bf16.enabled": "precision.bf16",
    "fp16.enabled": "precision.fp16",
    "fp16.loss_scale": "precision.loss_scale",
    "fp16.initial_scale_power": "precision.initial_scale_power",
    "fp16.loss_scale_window": "precision.loss_scale_window",
    "fp16.hysteresis": "precision.hysteresis",
    "fp16.min_loss_scale": "precision.min_loss_scale",
    "tensor_parallel.autotp_size": "parallel.tensor_parallel_size",
    "sequence_parallel_size": "parallel.sequence_parallel_size",
}
_OPTIMIZER = {
    "type": "type",
    "params.lr": "learning_rate",
    "params.weight_decay": "weight_decay",
    "params.betas": "betas",
    "params.eps": "eps",
    "params.momentum": "momentum",
}
_ZERO = frozenset(
    """stage contiguous_gradients reduce_scatter reduce_bucket_size allgather_bucket_size overlap_comm
    round_robin_gradients sub_group_size stage3_prefetch_bucket_size stage3_param_persistence_threshold
    stage3_max_live_parameters stage3_max_reuse_distance stage3_gather_16bit_weights_on_model_save""".split()
)
_OFFLOAD = {
    "offload_optimizer": "device nvme_path buffer_count pin_memory ratio pipeline_read pipeline_write fast_init".split(),
    "offload_param": "device nvme_path buffer_count buffer_size max_in_cpu pin_memory".split(),
}


def spec_of(case: Case) -> Json:
    """The run spec of a case: fields where the spec has them, the rest under `deepspeed`."""
    spec: Json = {
        "model": {"config": model_config(case.model)},
        "data": {"train": "builtin:python-docs", "max_length": 16},
        "train": {"max_steps": 10},
    }
    simple = _plain_optimizer(case.config.get("optimizer"))
    for path, value in leaves(case.config, ""):
        if path == "data_parallel_size" or (simple and path == "optimizer.params.adam_w_mode"):
            continue  # rendered from the degrees, from the type
        target = _FIELDS.get(path)
        if path.startswith("zero_optimization."):
            target = _zero_field(path.removeprefix("zero_optimization."))
        elif path.startswith("optimizer.") and simple:
            target = "optimizer." + _OPTIMIZER[path.removeprefix("optimizer.")]
        put(spec, target or f"deepspeed.{path}", value.lower() if target == "optimizer.type" else value)
    if case.pipeline > 1:
        put(spec, "parallel.pipeline_parallel_size", case.pipeline)
    if case.options.get("recompute"):
        put(spec, "train.gradient_checkpointing", True)
    return spec


def model_config(model: Json) -> Json:
    """`model.config` of a spec for a job's model; a pipeline model stands for a Llama."""
    kind = model.get("kind", "llama")
    shapes: dict[str, Json] = {
        "llama": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
                  "num_key_value_heads": 2, "vocab_size": 128, "max_position_embeddings": 64},
        "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128, "n_positions": 64},
        "mixtral": {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                    "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2, "vocab_size": 128,
                    "max_position_embeddings": 64},
    }  # fmt: skip
    fields = {k: v for k, v in model.items() if k not in ("kind", "layers", "partition_method")}
    kind = kind if kind in shapes else "llama"
    shape = dict(shapes[kind])
    if model.get("kind") == "pipe":
        shape["num_hidden_layers"] = model.get("layers", 4)
    return {"model_type": kind, **shape, **fields}


def _zero_field(path: str) -> str | None:
    first, _, rest = path.partition(".")
    known = path in _ZERO or (first in _OFFLOAD and rest in _OFFLOAD[first])
    return f"zero.{path}" if known else None


def _plain_optimizer(block: Any) -> bool:
    """Can the spec's own optimizer section say it?"""
    if not isinstance(block, dict) or str(block.get("type")) not in ("AdamW", "SGD", "Adam"):
        return False
    if (block["type"] == "Adam") != (get(block, "params.adam_w_mode") is False):  # the spec's `adam` is Adam
        return False
    return {p for p, _ in leaves(block, "")} <= {*_OPTIMIZER, "params.adam_w_mode"} and "lr" in (
        block.get("params") or {}
    )


def leaves(value: Any, prefix: str) -> list[tuple[str, Any]]:
    """(dotted path, value) of everything that is not itself a block with content."""
    if isinstance(value, dict) and (value or not prefix):
        found: list[tuple[str, Any]] = []
        for name, item in value.items():
            found += leaves(item, f"{prefix}.{name}" if prefix else str(name))
        return found
    return [(prefix, value)]


def file_text(case: Case) -> tuple[str, str]:
    """(suffix, text) of the file that the user hands over."""
    if case.text is not None:
        return (".json" if case.form == "json" else ".yaml"), case.text
    if case.form == "json":
        return ".json", json.dumps(case.config, indent=2) + "\n"
    import yaml

    return ".yaml", yaml.safe_dump(spec_of(case), sort_keys=False)
