# SPDX-License-Identifier: Apache-2.0
"""`harness.HarnessCallback`: checks of the engine under the transformers Trainer, and programs on top of it."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import deepspeed
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from harness.engine_watch.step_watch import EngineWatch, OnDifference
from harness.engine_watch.watch import watch
from harness.runtime.engine_checks.check_results import FILE


class HarnessCallback(TrainerCallback):
    """Watches the Trainer's engine as `harness.watch` does, from the begin of `train` to its end.

    The JSON is the one that the Trainer gives to DeepSpeed, with "auto" filled in. `output`: the file to write, by
    default `engine_checks.json` in `output_dir`.
    """

    def __init__(self, *, on_difference: OnDifference = "raise", output: str | Path | None = None) -> None:
        self._on_difference, self._output = on_difference, output
        self._watch: EngineWatch | None = None

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,  # noqa: ARG002  (the Trainer's own signature)
        control: TrainerControl,  # noqa: ARG002
        **kwargs: Any,
    ) -> None:
        """The engine is built. Raises RuntimeError for a Trainer without DeepSpeed, EngineDifferenceError."""
        engine = _find_engine_of(kwargs.get("model"))
        if engine is None:
            raise RuntimeError(
                "HarnessCallback: this Trainer has no DeepSpeed engine; set `deepspeed` in TrainingArguments, or remove"
                " the callback"
            )
        output = Path(args.output_dir or ".") / FILE if self._output is None else self._output
        self._watch = watch(engine, on_difference=self._on_difference, output=output, consumer="hf")

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002  (the Trainer's own signature)
        """Write the last state."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None


def _find_engine_of(model: Any) -> Any:
    """The engine that trains this model, which the Trainer does not hand to its callbacks; None if there is none."""
    if isinstance(model, deepspeed.DeepSpeedEngine):
        return model
    engines = [
        o for o in gc.get_objects() if issubclass(type(o), deepspeed.DeepSpeedEngine) and o.optimizer is not None
    ]
    return next((engine for engine in engines if engine.module is model), engines[0] if len(engines) == 1 else None)
