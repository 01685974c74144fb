# SPDX-License-Identifier: Apache-2.0
"""The manifest's fields, and the small Hugging Face files that an export needs. No weights."""

from __future__ import annotations

import copy
import hashlib
import json
import platform
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

from transformers import GenerationConfig, PreTrainedTokenizerBase

from harness import __version__
from harness.runtime import plugin_loader
from harness.runtime.dataset.chat_templates import with_end_of_turn
from harness.runtime.engine_protocol import Engine
from harness.runtime.models import adapter_files
from harness.runtime.models.auto_class import class_mapping
from harness.runtime.run_config import RunConfig, RunDir
from harness.runtime.train_context import TrainContext
from harness.runtime.train_state import TrainState

HUGGING_FACE = "huggingface"
_PACKAGES = (
    "deepspeed",
    "torch",
    "transformers",
    "numpy",
    "datasets",
    "tokenizers",
    "safetensors",
    "accelerate",
    "peft",
    "bitsandbytes",
)
_VOLATILE = ("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype", "use_cache")
"""Fields of a model's configuration that do not change what is trained."""


def tag_of(state: TrainState) -> str:
    """The name of DeepSpeed's folder of a step."""
    return f"global_step{state.step}"


def manifest_fields(ctx: TrainContext, state: TrainState) -> dict[str, Any]:
    """The manifest without its list of files."""
    engine, topology, zero = ctx.engine, ctx.topology, ctx.run_config.run.spec.zero
    return {
        "run": ctx.run_config.run.name,
        "run_id": run_id(ctx.run_dir),
        "tag": tag_of(state),
        "state": state.to_json(),
        "world": ctx.distributed.world_size,
        "degrees": {
            "data": topology.data_parallel_size,
            "tensor": topology.tensor_parallel_size,
            "pipeline": topology.pipeline_parallel_size,
            "sequence": topology.sequence_parallel_size,
        },
        "geometry": _geometry(ctx),
        "total_steps": ctx.total_steps,
        "zero_stage": int(engine.zero_optimization_stage()),
        "dtype": dtype_of(engine),
        "offload": {
            "optimizer": zero.offload_optimizer.device if zero.offload_optimizer else "none",
            "param": zero.offload_param.device if zero.offload_param else "none",
        },
        "optimizer": {"type": type(engine.basic_optimizer).__name__, "groups": _param_groups(engine)},
        "versions": package_versions(),
        "patches": ctx.patches.to_json(),
        "spec": spec_of(ctx.run_config),
        "sha256": content_hashes(ctx),
        "evaluation": {"data": _evaluation_data(ctx)},
    }


def _geometry(ctx: TrainContext) -> dict[str, int]:
    """The batch, and the rows that `data.group_by_length` sorts together, which a resume keeps."""
    geometry, order = ctx.train_data.geometry, ctx.train_data.order_geometry
    seed = {} if order.seedable_seed is None else {"order_seed": order.seedable_seed}
    return {
        **seed,
        "micro_batch": geometry.micro_batch_size,
        "accumulation": geometry.accumulation_steps,
        "global_batch": geometry.global_batch_size,
        "order_micro_step": order.micro_step_rows,
        "order_step": order.step_rows,
    }


def _evaluation_data(ctx: TrainContext) -> dict[str, Any] | None:
    """The held-out data: where it comes from, and its size. None where nothing is held out."""
    if ctx.eval_data is None:
        return None
    spec, prepared = ctx.run_config.run.spec, ctx.prepared_data
    sources, limit = spec_of(ctx.run_config)["data"]["eval"], spec.eval.max_batches
    source = {"fraction": spec.data.eval_fraction} if spec.data.eval is None else {"sources": sources}
    sizes = {"documents": prepared.eval_documents, "tokens": prepared.eval_tokens}
    return {**source, **sizes, **({} if limit is None else {"max_batches": limit})}


def run_id(run_dir: RunDir) -> str:
    """An id that all checkpoints of one run directory share, and no others: its name, path and creation time."""
    spec_file = run_dir.root / "spec.resolved.json"
    identity = f"{run_dir.root}\n{spec_file.stat().st_mtime_ns}" if spec_file.exists() else str(run_dir.root)
    return f"{run_dir.root.name}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"


def spec_of(run_config: RunConfig) -> dict[str, Any]:
    """The run spec without `launch`: it does not change what is trained, and its `env` may hold secrets."""
    return dict(run_config.run.spec.model_dump(mode="json", exclude={"launch"}))


def content_hashes(ctx: TrainContext) -> dict[str, str | None]:
    """sha256 of all that a resume must find unchanged: data, tokenizer, chat template, model configuration."""
    template = getattr(ctx.tokenizer, "chat_template", None)
    fields = ctx.config.to_dict() if ctx.config is not None else {}
    config = {k: v for k, v in fields.items() if k not in _VOLATILE}
    return {
        "run": ctx.run_config.sha256,
        "spec": _digest(spec_of(ctx.run_config)),
        "data": ctx.prepared_data.sha256,
        "tokenizer": None if ctx.tokenizer is None else _tokenizer_digest(ctx.tokenizer),
        "chat_template": None if template is None else _digest(template),
        "model_config": _digest(config),
        "plugin": plugin_loader.plugin_sha256(ctx.run_config.run.spec),
        "rows": ctx.objective.rows_sha256,
        "reference": ctx.objective.reference_sha256,
    }


def dtype_of(engine: Engine) -> str:
    """Number format of the trainable weights."""
    param = next((p for p in engine.module.parameters() if p.requires_grad), None)
    return str(param.dtype if param is not None else "float32").removeprefix("torch.")


def package_versions() -> dict[str, str]:
    """Versions of the software that writes the checkpoint."""
    versions = {"python": platform.python_version(), "deepspeed-harness": __version__}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def hugging_face_files(ctx: TrainContext) -> dict[str, bytes]:
    """Configuration, generation configuration and tokenizer as `transformers` writes them, by name below the folder.
    None of them for a module of the user's own.
    """
    if ctx.config is None or ctx.tokenizer is None:
        return {}
    # transformers writes the class only in its own `save_pretrained` of a model; servers look for it.
    classes = class_mapping(ctx.run_config.run.spec.objective)
    known = type(ctx.config) in classes
    model_class = cast("type", classes[type(ctx.config)]) if known else None
    ctx.config.architectures = ["LlamaForCausalLM" if model_class is None else model_class.__name__]
    generation = getattr(ctx.engine.module, "generation_config", None) or GenerationConfig.from_model_config(ctx.config)
    generation = copy.deepcopy(generation)
    generation.eos_token_id = with_end_of_turn(generation.eos_token_id, ctx.tokenizer)
    with tempfile.TemporaryDirectory(prefix="harness-huggingface-") as scratch:
        for item in (ctx.config, generation, ctx.tokenizer):
            item.save_pretrained(scratch)
        files = sorted(p for p in Path(scratch).rglob("*") if p.is_file())
        contents = {f"{HUGGING_FACE}/{p.relative_to(scratch).as_posix()}": p.read_bytes() for p in files}
    return contents | adapter_files(ctx.engine.module)


def _param_groups(engine: Engine) -> list[dict[str, Any]]:
    """Hyper-parameters of each parameter group: plain values only."""
    plain = (str, int, float, bool, list, tuple, type(None))
    return [
        {k: v for k, v in group.items() if k != "params" and isinstance(v, plain)}
        for group in engine.basic_optimizer.param_groups
    ]


def _tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Of its tokens and, for a fast tokenizer, of its rules."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = backend.to_str() if backend is not None else None
    return _digest([sorted(tokenizer.get_vocab().items()), rules, sorted(map(str, tokenizer.all_special_tokens))])


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
