# SPDX-License-Identifier: Apache-2.0
"""Evaluations of a training program: they need held-out data; early stopping and the best checkpoint need them."""

from __future__ import annotations

from harness.convert.trainer_file import TrainerFile, is_on

_EVALUATION_KEYS = frozenset(
    "eval_steps eval_strategy evaluation_strategy evals_per_epoch early_stopping_patience early_stopping_steps "
    "early_stop_interval load_best_model_at_end".split()
)
_STOPPING_KEYS = ("early_stopping_patience", "early_stopping_steps", "early_stop_interval")
_FREQUENCY_KEYS = ("evals_per_epoch", "eval_strategy", "evaluation_strategy", "eval_steps")


def finish_evaluation(file: TrainerFile) -> None:
    """Keep what takes effect, and say what the rest needs. The draft has the program's defaults already."""
    if not _is_evaluated(file):
        _drop_evaluation(file)
        return
    if file.draft.get("eval.early_stopping_patience") is not None and file.draft.get("eval.eval_steps") is None:
        _add_stopping_note(file)
    loads_best = is_on(file.take_value("load_best_model_at_end"))
    if loads_best:
        _convert_best(file)
    is_compared = loads_best or file.draft.get("eval.early_stopping_patience") is not None
    if is_compared and file.values.get("metric_for_best_model") not in (None, "", "loss", "eval_loss"):
        file.add_lossy("metric_for_best_model", "the run spec compares evaluations by the held-out loss")


def _is_evaluated(file: TrainerFile) -> bool:
    """Is there held-out data, or a note that asks for some? Without it these programs evaluate nothing."""
    draft = file.draft
    has_data = draft.get("data.eval") is not None or draft.get("data.eval_fraction") != 0
    return has_data or any(
        note.message.endswith("`data.eval`") or "eval_fraction" in note.message for note in draft.notes
    )


def _drop_evaluation(file: TrainerFile) -> None:
    file.draft.drop(("eval",))
    named = {note.key for note in file.draft.notes}
    for name in file.values:
        is_evaluation = file.program.keys.get(name, "").startswith("eval.") or name in _EVALUATION_KEYS
        if is_evaluation and name not in named and is_on(file.values[name]):
            file.add_harmless(name, "nothing is evaluated without evaluation data")


def _add_stopping_note(file: TrainerFile) -> None:
    frequency = next((name for name in _FREQUENCY_KEYS if is_on(file.values.get(name))), None)
    steps = "the steps of an epoch"
    if frequency == "evals_per_epoch":
        steps += f" / {file.values[frequency]}"
    elif frequency == "eval_steps":
        steps = f"{file.values[frequency]} x the steps of the run"
    text = f"has no effect while the run evaluates only at its end: set `eval.eval_steps` to {steps}"
    file.add_manual(file.name_of(*_STOPPING_KEYS), text)


def _convert_best(file: TrainerFile) -> None:
    """`keep_best` keeps a checkpoint that `save_total_limit` would remove; without a limit none is removed."""
    kept = "every checkpoint is kept, the best too"
    if file.draft.get("checkpoint.save_total_limit") is not None:
        file.put("checkpoint.keep_best", True)
        kept = "the best checkpoint is kept (`checkpoint.keep_best`)"
    file.add_manual("load_best_model_at_end", f"{kept}; to export it, add `--best` to `harness export RUN OUT`")
