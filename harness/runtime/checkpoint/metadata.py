"""What a checkpoint says about itself, and the small files that an export needs: no weights here."""

from __future__ import annotations

import hashlib
import json
import platform
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, GenerationConfig

from harness.runtime import plugin_loader
from harness.runtime.context import RunContext
from harness.runtime.models import adapter_files
from harness.runtime.run_config import RunConfig, RunDir
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
)
_VOLATILE = ("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype", "use_cache")
"""Fields of a model's configuration that say where it came from or how it is run, not what it is."""


def tag_of(state: TrainState) -> str:
    """The name of DeepSpeed's folder of a step."""
    return f"global_step{state.step}"


def manifest_fields(job: RunContext, state: TrainState) -> dict[str, Any]:
    """The manifest without its list of files."""
    engine, place, zero = job.engine, job.topology, job.run_config.run.spec.zero
    return {
        "run": job.run_config.run.name,
        "run_id": run_id(job.run_dir),
        "tag": tag_of(state),
        "state": state.to_json(),
        "world": job.distributed.world_size,
        "degrees": {
            "data": place.data_parallel_size,
            "tensor": place.tensor_parallel_size,
            "pipeline": place.pipeline_parallel_size,
            "sequence": place.sequence_parallel_size,
        },
        "zero_stage": int(engine.zero_optimization_stage()),
        "dtype": dtype_of(engine),
        "offload": {
            "optimizer": zero.offload_optimizer.device if zero.offload_optimizer else "none",
            "param": zero.offload_param.device if zero.offload_param else "none",
        },
        "optimizer": {"type": type(engine.basic_optimizer).__name__, "groups": _param_groups(engine)},
        "versions": package_versions(),
        "spec": spec_of(job.run_config),
        "sha256": content_hashes(job),
    }


def run_id(run_dir: RunDir) -> str:
    """The same for all checkpoints of a run directory, and for no other: its name and when and what it was made of."""
    orders = run_dir.root / "spec.resolved.json"
    made = f"{run_dir.root}\n{orders.stat().st_mtime_ns}" if orders.exists() else str(run_dir.root)
    return f"{run_dir.root.name}-{hashlib.sha256(made.encode()).hexdigest()[:12]}"


def spec_of(orders: RunConfig) -> dict[str, Any]:
    """The run spec. `launch` stays out: it says nothing of what is trained, and its `env` may hold secrets."""
    return dict(orders.run.spec.model_dump(mode="json", exclude={"launch"}))


def content_hashes(job: RunContext) -> dict[str, str | None]:
    """sha256 of what decides whether training can go on: data, tokenizer, chat template, model configuration."""
    template = getattr(job.tokenizer, "chat_template", None)
    config = {k: v for k, v in job.config.to_dict().items() if k not in _VOLATILE}
    return {
        "run": job.run_config.sha256,
        "spec": _digest(spec_of(job.run_config)),
        "data": job.prepared_data.sha256,
        "tokenizer": _tokenizer_digest(job.tokenizer),
        "chat_template": None if template is None else _digest(template),
        "model_config": _digest(config),
        "plugin": plugin_loader.plugin_sha256(job.run_config.run.spec),
    }


def dtype_of(engine: Any) -> str:
    """Number format of the weights that are trained."""
    trained = next((p for p in engine.module.parameters() if p.requires_grad), None)
    return str(trained.dtype if trained is not None else "float32").removeprefix("torch.")


def package_versions() -> dict[str, str]:
    """Of the software that wrote the checkpoint."""
    found = {"python": platform.python_version()}
    for package in ("deepspeed-harness", *_PACKAGES):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def hugging_face_files(job: RunContext) -> dict[str, bytes]:
    """Configuration, generation configuration and tokenizer as `transformers` writes them, by name below the folder."""
    # transformers notes the class only in its own `save_pretrained` of a model; servers look for it.
    known = AutoModelForCausalLM._model_mapping
    job.config.architectures = [known[type(job.config)].__name__ if type(job.config) in known else "LlamaForCausalLM"]
    generation = getattr(job.engine.module, "generation_config", None) or GenerationConfig.from_model_config(job.config)
    with tempfile.TemporaryDirectory(prefix="harness-huggingface-") as scratch:
        for item in (job.config, generation, job.tokenizer):
            item.save_pretrained(scratch)
        files = sorted(p for p in Path(scratch).rglob("*") if p.is_file())
        written = {f"{HUGGING_FACE}/{p.relative_to(scratch).as_posix()}": p.read_bytes() for p in files}
    return written | adapter_files(job.engine.module)


def _param_groups(engine: Any) -> list[dict[str, Any]]:
    """Hyper-parameters of each parameter group, plain values alone."""
    plain = (str, int, float, bool, list, tuple, type(None))
    return [
        {k: v for k, v in group.items() if k != "params" and isinstance(v, plain)}
        for group in engine.basic_optimizer.param_groups
    ]


def _tokenizer_digest(tokenizer: Any) -> str:
    """Of its tokens and of the rules that cut text, where they can be seen."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = backend.to_str() if backend is not None else None
    return _digest([sorted(tokenizer.get_vocab().items()), rules, sorted(map(str, tokenizer.all_special_tokens))])


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
