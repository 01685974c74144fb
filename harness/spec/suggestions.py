# SPDX-License-Identifier: Apache-2.0
"""Did you mean: the known name that is nearest to a misspelt one, and the names of other programs."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

_MICRO, _GLOBAL = ("train_micro_batch_size_per_gpu",), ("train_batch_size",)
FOREIGN_KEYS: dict[str, tuple[str, ...]] = {
    "per_device_train_batch_size": _MICRO,
    "micro_batch_size": _MICRO,
    "micro_batch_size_per_gpu": _MICRO,
    "global_batch_size": _GLOBAL,
    "batch_size": _GLOBAL,
    "accumulate_grad_batches": ("gradient_accumulation_steps",),
    "gradient_accumulation_dtype": ("data_types", "grad_accum_dtype"),
    **dict.fromkeys(
        ("max_grad_norm", "clip_grad", "clip_grad_norm", "grad_clip", "gradient_clip_val"), ("gradient_clipping",)
    ),
    "zero": ("zero_optimization",),
    "zero_optimizer": ("zero_optimization",),
    "zero_stage": ("zero_optimization", "stage"),
    "learning_rate": ("optimizer", "params", "lr"),
    "lr": ("optimizer", "params", "lr"),
    "tensor_parallel_size": ("tensor_parallel", "autotp_size"),
    "sequence_parallel_degree": ("sequence_parallel_size",),
    **dict.fromkeys(
        """gradient_checkpointing pipeline_parallel_size pipe_parallel_size tensor_model_parallel_size
        model_parallel_size pipeline_model_parallel_size num_train_epochs max_steps warmup_steps logging_steps
        output_dir num_gpus num_nodes world_size use_cache seed""".split(),
        (),
    ),
}
"""Names of the Trainer, Megatron and Lightning for DeepSpeed's keys; () for settings that a DeepSpeed JSON does not
have.
"""


_MAX_SUGGESTIONS = 200


class Suggestions:
    """The nearest names of the first unknown keys of one file. Nobody misspells hundreds, each takes a millisecond."""

    def __init__(self) -> None:
        self._left = _MAX_SUGGESTIONS

    def nearest_name(self, name: str, names: Iterable[str]) -> str | None:
        """The closest of `names` of which `name` may be a misspelling; None, too, after enough look-ups."""
        self._left -= 1
        if self._left < 0:
            return None
        similar = nearest_name(name, names)
        return similar if similar is not None and _is_misspelling(name, similar) else None


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """The closest of `names` by difflib's ratio, at least 0.6; case, hyphens and underscores do not count."""
    return _find_nearest_name(name, tuple(names))


@lru_cache(maxsize=256)
def _find_nearest_name(name: str, names: tuple[str, ...]) -> str | None:
    from difflib import get_close_matches

    by_plain_name = {plain_name(candidate): candidate for candidate in names}
    by_squeezed_name = {key.replace("_", ""): key for key in by_plain_name}
    squeezed = plain_name(name).replace("_", "")
    if squeezed in by_squeezed_name:
        return by_plain_name[by_squeezed_name[squeezed]]
    matches = get_close_matches(plain_name(name), by_plain_name, n=1, cutoff=0.6)
    return by_plain_name[matches[0]] if matches else None


def plain_name(name: str) -> str:
    """A name in lower case with underscores."""
    return name.lower().replace("-", "_")


def is_same_name(name: str, other: str) -> bool:
    """Do the two differ in case, hyphens and underscores alone?"""
    return plain_name(name).replace("_", "") == plain_name(other).replace("_", "")


def similarity(name: str, other: str) -> float:
    """difflib's ratio of two names; case and hyphens do not count."""
    from difflib import SequenceMatcher

    return SequenceMatcher(None, plain_name(name), plain_name(other)).ratio()


def _is_misspelling(name: str, other: str) -> bool:
    """Are they one name? Not where each has a word of its own: `gradient_accumulation_dtype` is none of the steps."""
    words, others = set(plain_name(name).split("_")), set(plain_name(other).split("_"))
    if is_same_name(name, other):
        return True
    own, theirs = words - others, others - words
    unmatched = [word for word in own if not any(_are_alike(word, them) for them in theirs)]
    their_unmatched = [word for word in theirs if not any(_are_alike(word, mine) for mine in own)]
    return not (unmatched and their_unmatched)


def _are_alike(word: str, other: str) -> bool:
    return word in other or other in word or similarity(word, other) >= 0.6


def respell_block(value: Any, path: str) -> Any:
    """A block with DeepSpeed's spelling of the keys that differ from it in hyphens or case alone."""
    from harness.facts.deepspeed_keys import block_keys

    keys = block_keys(path) or {}
    if not isinstance(value, dict) or not keys:
        return value
    spelled = {name: name if name in keys else next((k for k in keys if is_same_name(k, name)), name) for name in value}
    return {
        name if spelled[name] in value else spelled[name]: respell_block(inner, f"{path}.{spelled[name]}")
        for name, inner in value.items()
    }
