# SPDX-License-Identifier: Apache-2.0
"""The reader of a DeepSpeed JSON: DeepSpeed itself, the Hugging Face Trainer, or accelerate; and the meaning of "auto"
to each of them (transformers 5.23, accelerate 1.15).

Lists and the guess only; gates of the family HF judge the consequences.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from harness.facts.deepspeed_version import Version
from harness.findings import Finding
from harness.spec.parse.source import KeyPath, Source, join_key, split_key
from harness.spec.run_spec import Consumer

CONSUMERS: tuple[Consumer, ...] = ("hf", "accelerate", "deepspeed")
CONSUMER_NAMES: dict[str, str] = {
    "hf": "the Hugging Face Trainer",
    "accelerate": "accelerate",
    "deepspeed": "DeepSpeed itself",
}


def _parse_paths(text: str) -> frozenset[KeyPath]:
    return frozenset(map(split_key, text.split()))


GATHER_16BIT_WEIGHTS: KeyPath = ("zero_optimization", "stage3_gather_16bit_weights_on_model_save")
FROM_TRAINING_ARGUMENTS = _parse_paths(
    """train_micro_batch_size_per_gpu gradient_accumulation_steps train_batch_size gradient_clipping
    optimizer.params.lr optimizer.params.betas optimizer.params.eps optimizer.params.weight_decay
    scheduler.params.warmup_max_lr scheduler.params.total_num_steps scheduler.params.warmup_num_steps
    fp16.enabled bf16.enabled"""
)
"""Keys that the Trainer fills in from TrainingArguments, and compares with them where they are written."""
FILLED_BY_PLUGIN = _parse_paths(
    """zero_optimization.stage zero_optimization.offload_optimizer.device zero_optimization.offload_param.device
    zero_optimization.offload_optimizer.nvme_path zero_optimization.offload_param.nvme_path"""
)
"""Keys that accelerate's DeepSpeedPlugin fills in, also under the Trainer: from its arguments or the environment."""
SIZED_BY_MODEL = _parse_paths(
    """zero_optimization.reduce_bucket_size zero_optimization.stage3_prefetch_bucket_size
    zero_optimization.stage3_param_persistence_threshold"""
)
"""Keys that the Trainer fills in from the model's width."""
FILLED_BY_TRAINER = FROM_TRAINING_ARGUMENTS | SIZED_BY_MODEL | _parse_paths("scheduler.params.warmup_min_lr")
"""All that the Trainer fills in itself."""
FILLED_BY_ACCELERATE = (
    FILLED_BY_TRAINER - _parse_paths("optimizer.params.betas optimizer.params.eps")
    | FILLED_BY_PLUGIN
    | {GATHER_16BIT_WEIGHTS}
)
"""All that accelerate fills in without the Trainer."""
NATIVE_AUTO_KEYS = _parse_paths(
    """zero_optimization.zenflow.select_strategy zero_optimization.zenflow.select_interval
    zero_optimization.zenflow.update_interval data_types.keep_in_fp32_modules pipeline.stages
    expert_parallel.score_apply expert_parallel.combine_impl expert_parallel.row_weighting_impl
    expert_parallel.score_func expert_parallel.top_k expert_parallel.routed_scaling_factor"""
)
"""Keys for which "auto" is a value of DeepSpeed's own."""
_WHOLE_BLOCKS = frozenset(("comet", "csv_monitor", "tensorboard", "timers", "wandb"))
"""Blocks that DeepSpeed takes for empty where they are "auto" as a whole; it fails on the others."""


def keys_filled_by(consumer: Consumer) -> frozenset[KeyPath]:
    """The keys whose "auto" somebody replaces before DeepSpeed sees it."""
    if consumer == "deepspeed":
        return frozenset()
    return FILLED_BY_ACCELERATE | FILLED_BY_TRAINER if consumer == "hf" else FILLED_BY_ACCELERATE


def find_auto_values(value: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """The paths of all "auto" values. Nobody looks into lists: neither this function nor the programs that fill them
    in.
    """
    if value == "auto":
        yield path
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from find_auto_values(item, (*path, name))


def auto_in_deepspeed(path: KeyPath, version: Version) -> Literal["own", "default", "true", "fails", "unknown"]:
    """DeepSpeed's own reading of "auto" at a path of its JSON: a word of its own, the default (typed blocks), true
    (switches that it reads by truth), or a failure; `unknown` for keys that this release does not have.

    Source: `runtime/config_utils.py`, `DeepSpeedConfigModel.__init__` and `get_scalar_param`.
    """
    from harness.facts.deepspeed_keys import block_keys, is_typed_block

    if path in NATIVE_AUTO_KEYS:
        return "own"
    parent, name = join_key(path[:-1]), str(path[-1])
    keys = block_keys(parent)
    key = keys.get(name) if keys is not None else None
    if keys is not None and (key is None or (key.gone is not None and version >= key.gone)):
        return "unknown"
    if path == ("tensor_parallel", "autotp_size"):
        return "fails"  # compared with 0 before the typed block sees it
    if (
        is_typed_block(parent, version)
        or (len(path) == 1 and name in _WHOLE_BLOCKS)
        or path == ("timers", "throughput")
    ):
        return "default"
    return "true" if key is not None and key.type in ("switch", "bool") else "fails"


def guess_consumer(config: dict[str, Any]) -> Consumer:
    """The reader of a DeepSpeed JSON, guessed by its "auto" values; DeepSpeed itself if it has none."""
    open_keys = {path for path in find_auto_values(config) if path not in NATIVE_AUTO_KEYS}
    if open_keys & (FILLED_BY_PLUGIN | {GATHER_16BIT_WEIGHTS}) and open_keys <= FILLED_BY_ACCELERATE:
        return "accelerate"
    return "hf" if open_keys & FILLED_BY_TRAINER else "deepspeed"


def describe_auto_values(source: Source, consumer: Consumer) -> Iterator[Finding]:
    """One line about the "auto" values and the guessed reader; none where DeepSpeed reads only its own words."""
    paths = sorted(
        (path for path in find_auto_values(source.data) if path not in NATIVE_AUTO_KEYS or consumer != "deepspeed"),
        key=source.place,
    )
    if not paths:
        return
    count = f"{len(paths)} values are" if len(paths) > 1 else "1 value is"
    first_other, second_other = (name for name in CONSUMERS if name != consumer)
    yield Finding(
        "SP015",
        "info",
        f'{count} "auto", the first is `{join_key(paths[0])}`: read as {CONSUMER_NAMES[consumer]} would',
        join_key(paths[0]),
        source.place(paths[0]),
        notes=(
            f"guessed by the keys; `--consumer {first_other}` or `--consumer {second_other}` "
            "of `harness validate-config` names another reader",
        ),
    )
