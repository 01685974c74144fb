# SPDX-License-Identifier: Apache-2.0
"""A file of another training program, planned without a run spec of it on disk."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from harness.convert.conversion import convert_file
from harness.convert.trainer_config import load_trainer_config
from harness.errors import UserError
from harness.facts.deepspeed_version import DeepSpeedTarget

_PLACEHOLDER = ("train: path/to/texts.jsonl", "train: texts.jsonl")
"""No plan depends on the data's name, and a spec with a placeholder has an error."""
_TRAINERS = {"LLaMA-Factory": "llama-factory", "axolotl": "axolotl", "ms-swift": "swift"}
"""By the name of the program, the loop of `plan.trainer_loop` that reads its file; others train by the Trainer's."""


class TrainerSpec(NamedTuple):
    """The run spec of a program's file, whose loop trains it, and the optimizer as the file names it."""

    text: str
    trainer: str
    optimizer: str


def read_trainer_spec(file: str, target: DeepSpeedTarget) -> TrainerSpec | None:
    """The file as `harness adopt` converts it; None for a run spec, a DeepSpeed JSON and what cannot be read. Raises
    UserError for errors of a program's file.
    """
    if not Path(file).is_file():
        return None
    try:
        is_of_program = load_trainer_config(file, target) is not None
    except UserError:
        return None
    if not is_of_program:
        return None
    converted = convert_file(file, target)
    text = converted.text.replace(*_PLACEHOLDER)
    source = converted.trainer.file if converted.trainer is not None else None
    optimizer = source.take_value("optim", "optimizer") if source is not None else None
    return TrainerSpec(text, _TRAINERS.get(converted.program, "trainer"), str(optimizer or ""))
