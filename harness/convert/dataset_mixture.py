# SPDX-License-Identifier: Apache-2.0
"""Several datasets of a TRL file as sources of a run spec: `datasets` of TRL 1.16, whose `fraction` is a share of the
mixture, and `dataset_mixture` of open-r1, whose `weight` is the part of a dataset that is trained on. Both hold out
`test_split_size`: a share, or as a whole number so many records.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.convert.trainer_file import TrainerFile

_NAMES = {"path": "path", "id": "path", "name": "name", "config": "name", "split": "split", "fraction": "weight"}
_NOTES = {
    "weight": "trains on a part of each dataset's rows; a run spec takes all of them",
    "fraction": "shares are of rows, the first of each dataset; those of a run spec are of sequences",
}


def convert_mixture(file: TrainerFile) -> None:
    """Set `data.train`; an entry with what a source does not have leaves all to be set by hand."""
    key = file.name_of("dataset_mixture", "datasets")
    value = file.values.get(key)
    options = value if isinstance(value, Mapping) else {"datasets": value}
    entries = options.get("datasets")
    if not isinstance(entries, list) or not entries or not all(map(_is_source, entries)):
        return
    file.take_value(key)
    file.put(
        "data.train", [{_NAMES[k]: v for k, v in each.items() if k in _NAMES and v is not None} for each in entries]
    )
    size = options.get("test_split_size") or file.take_value("test_split_size")
    if isinstance(size, float) and size < 1:
        file.put("data.eval_fraction", size)
    elif size:
        text = f"`test_split_size: {size}` is a number of records: set `data.eval_fraction` to its share of all"
        file.add_note("manual", key, text)
    for name, note in _NOTES.items():
        if any(entry.get(name, 1) != 1 for entry in entries):
            file.add_lossy(key, note)


def _is_source(entry: Any) -> bool:
    is_named = isinstance(entry, Mapping) and bool(entry.get("path") or entry.get("id"))
    return is_named and entry.keys() <= {*_NAMES, *_NOTES, "columns"} and type(entry.get("fraction", 1)) in (int, float)
