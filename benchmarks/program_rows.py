# SPDX-License-Identifier: Apache-2.0
"""The rows that LLaMA-Factory, axolotl, TRL or ms-swift would train on: its own command up to its first step.

    PYTHONPATH=INSTALLATION python benchmarks/program_rows.py ROWS PROGRAM ARGUMENT...

Each sequence is a line of ROWS: ids, and labels with -100 where no loss is computed. `Trainer.train` is cut off where
it would begin its loop; data and collator are those of the program.
"""

from __future__ import annotations

import importlib
import json
import runpy
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any


class RowsWritten(BaseException):
    """No Exception, which a program may take for a failure of its own."""


def list_sequences(batch: dict[str, Any]) -> Iterator[dict[str, list[int]]]:
    """Ids and labels of each sequence of a batch, without padding."""
    for prefix in ("", "chosen_", "rejected_", "completion_"):
        ids = batch.get(f"{prefix}input_ids")
        if ids is None:
            continue
        labels, trained = batch.get(f"{prefix}labels"), batch.get(f"{prefix}completion_mask")
        kept = batch.get(f"{prefix}attention_mask")
        for row in range(len(ids)):
            own = ids[row].tolist()
            is_kept = [True] * len(own) if kept is None or kept.dim() != 2 else kept[row].bool().tolist()
            values = labels[row].tolist() if labels is not None else own
            if labels is None and trained is not None:
                values = [i if is_trained else -100 for i, is_trained in zip(own, trained[row].tolist(), strict=True)]
            places = batch.get(f"{prefix}position_ids")
            if places is not None and places.shape == ids.shape:  # a row of several documents
                starts = [at for at, place in enumerate(places[row].tolist()) if place == 0 and is_kept[at]]
                for first, last in pairwise([*starts, sum(is_kept)]):
                    if any(label != -100 for label in values[first:last]):  # else it fills the row
                        yield {"ids": own[first:last], "labels": values[first:last]}
                continue
            pairs = [(i, label) for i, label, keep in zip(own, values, is_kept, strict=True) if keep]
            yield {"ids": [i for i, _ in pairs], "labels": [label for _, label in pairs]}


def write_rows(trainer: Any, path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in trainer.train_dataset:
            for sequence in list_sequences(trainer.data_collator([row])):
                file.write(json.dumps(sequence) + "\n")


def main() -> None:
    import transformers

    path, program, arguments = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]

    def stop(trainer: Any, *_: Any, **__: Any) -> None:
        write_rows(trainer, path)
        raise RowsWritten

    transformers.Trainer._inner_training_loop = stop
    try:
        if program == "LLaMA-Factory":
            sys.argv = ["llamafactory-cli", *arguments]
            importlib.import_module("llamafactory.train.tuner").run_exp()
        elif program == "TRL":
            scripts = Path(importlib.import_module("trl").__file__).parent / "scripts"
            sys.argv = arguments
            runpy.run_path(str(scripts / f"{arguments[0]}.py"), run_name="__main__")
        else:
            name = "axolotl.cli.train" if program == "axolotl" else f"swift.cli.{arguments.pop(0)}"
            sys.argv = [name, *arguments]
            runpy.run_module(name, run_name="__main__", alter_sys=False)
    except RowsWritten:
        return
    sys.exit("the program ended before its first step")


if __name__ == "__main__":
    main()
