# SPDX-License-Identifier: Apache-2.0
"""The meaning of a change of each key of a run spec between a save and a resume.

`tests/docs/resume_page.py` makes a page of it. `tests/training/checkpoint/test_allowed_changes.py` shows for the keys
that `--allow-change` allows that a run takes its next step by the new value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, cast

from harness.facts.key_effects import find_effect

Meaning = Literal["shape", "effect", "blocks", "fixed", "notable", "harmless"]
"""`shape`: the checkpoint is resharded. `effect`: batch and schedule, of which the effect is compared and not the key.
`blocks`: refused, and applied where `--allow-change` allows it. `fixed`: refused. `notable`: free, and reported.
`harmless`: free.
"""

BATCH_KEYS = ("global_batch_size", "per_device_train_batch_size", "gradient_accumulation_steps")
SCALE_KEYS = ("loss_scale", "loss_scale_window", "hysteresis", "min_loss_scale")


def _read_meanings() -> Iterator[tuple[str, Meaning]]:
    for line in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines():
        meaning, _, keys = line.partition(": ")
        if not line.startswith("#"):
            yield from ((key, cast("Meaning", meaning)) for key in keys.split())


MEANINGS: Mapping[str, Meaning] = dict(_read_meanings())
"""Dotted key or section -> the meaning of a change. The longest match decides; a key without one blocks."""

FIXED_REASONS = {
    "optimizer.type": "the states of one optimizer are not those of another",
    "deepspeed.optimizer.type": "the states of one optimizer are not those of another",
    "objective": "the checkpoint has the states of a model for another loss",
    "model.lora": "the checkpoint has the adapters of its own `model.lora`",
    "model.quantization": "the checkpoint has the frozen weights as they were quantized",
    "deepspeed.scheduler": "the saved state of one kind of schedule is not that of another",
    "optimizer": "the schedule of torch goes on from the rate that the checkpoint has",
}
"""Key or section -> why a resume cannot apply a change of it."""


def meaning_of(key: str) -> Meaning:
    """The meaning of a change of this dotted key."""
    parts = key.split(".")
    for length in range(len(parts), 0, -1):
        meaning = MEANINGS.get(".".join(parts[:length]))
        if meaning:
            return meaning
    if parts[0] == "deepspeed":
        effect = find_effect(key)
        return "notable" if effect is not None and effect.decides != "training" else "blocks"
    return "blocks"


def reason_of(key: str) -> str:
    """The reason why a change of a `fixed` key cannot be applied."""
    parts = key.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next(FIXED_REASONS[name] for name in names if name in FIXED_REASONS)
