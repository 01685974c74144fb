# SPDX-License-Identifier: Apache-2.0
"""Did you mean: the known name that is nearest to a misspelt one, and the names of other programs."""

from __future__ import annotations

from collections.abc import Iterable

_MICRO, _GLOBAL = ("train_micro_batch_size_per_gpu",), ("train_batch_size",)
FOREIGN_KEYS: dict[str, tuple[str, ...]] = {
    "per_device_train_batch_size": _MICRO,
    "micro_batch_size": _MICRO,
    "micro_batch_size_per_gpu": _MICRO,
    "global_batch_size": _GLOBAL,
    "accumulate_grad_batches": ("gradient_accumulation_steps",),
    "max_grad_norm": ("gradient_clipping",),
    "zero": ("zero_optimization",),
    "zero_optimizer": ("zero_optimization",),
    "zero_stage": ("zero_optimization", "stage"),
    "learning_rate": ("optimizer", "params", "lr"),
    "lr": ("optimizer", "params", "lr"),
    "tensor_parallel_size": ("tensor_parallel", "autotp_size"),
    **dict.fromkeys(
        """gradient_checkpointing pipeline_parallel_size tensor_model_parallel_size pipeline_model_parallel_size
        num_train_epochs max_steps warmup_steps logging_steps output_dir num_gpus num_nodes world_size
        dtype torch_dtype use_cache seed""".split(),
        (),
    ),
}
"""Names of the Trainer, Megatron and Lightning for DeepSpeed's keys; () for settings that a DeepSpeed JSON does not
have.
"""


_MAX_SUGGESTIONS = 200


class Suggestions:
    """`nearest_name` for the first unknown names of one file. Nobody misspells hundreds, each takes a millisecond."""

    def __init__(self) -> None:
        self._left = _MAX_SUGGESTIONS

    def nearest_name(self, name: str, names: Iterable[str]) -> str | None:
        """The closest of `names`; None, too, after enough look-ups."""
        self._left -= 1
        return nearest_name(name, names) if self._left >= 0 else None


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """The closest of `names` by difflib's ratio, at least 0.6; case, hyphens and underscores do not count."""
    from difflib import get_close_matches

    by_plain_name = {candidate.lower().replace("-", "_"): candidate for candidate in names}
    plain_name = name.lower().replace("-", "_")
    by_squeezed_name = {key.replace("_", ""): key for key in by_plain_name}
    if plain_name.replace("_", "") in by_squeezed_name:
        return by_plain_name[by_squeezed_name[plain_name.replace("_", "")]]
    matches = get_close_matches(plain_name, by_plain_name, n=1, cutoff=0.6)
    return by_plain_name[matches[0]] if matches else None
