"""`data`: what is trained on, and how text becomes sequences."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from harness.spec.sections.base import Section, Strings


class DataSpec(Section):
    """What it is trained on, and what it is measured on."""

    train: str | Strings | None = None
    """Files or globs (.txt, .md, .rst, .jsonl, .json, .csv, .parquet), a Hub dataset, or `builtin:python-docs`."""
    eval: str | Strings | None = None
    """The same for evaluation. Default: training documents, drawn by `train.seed`, about `eval_fraction` of it."""
    eval_fraction: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Share of the training text that is held out when `eval` is not given."""
    text_column: str = "text"
    """The column that holds the text in .jsonl, .json, .csv, .parquet and Hub datasets."""
    max_length: Annotated[int, Field(ge=2)] = 1024
    """Tokens a sequence."""
    shuffle: bool = True
    """Draw the training sequences in a random order that depends on `train.seed` and the epoch alone."""
