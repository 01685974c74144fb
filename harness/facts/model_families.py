# SPDX-License-Identifier: Apache-2.0
"""The model families by `model_type`: the function that builds each one, and the defaults of `transformers`.

The functions are in `harness.facts.dense_model_families` and `harness.facts.moe_model_families`. `model_families.json`
has the rest: the parameters of a family themselves, or its function and the arguments of it (`options`), with the date
and the command that compares it with the installed `transformers`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from harness.facts import dense_model_families as dense
from harness.facts import moe_model_families as moe
from harness.facts.model_parts import ConfigFields, Parts


class Family(NamedTuple):
    """The parts of a `model_type`: its function, the defaults of `transformers`, other names of keys.

    `counted_only`: its parameters are those of `transformers`, and nothing of it was run here.
    """

    build: Callable[[ConfigFields], Parts]
    defaults: Mapping[str, Any]
    layer_path: str
    aliases: Mapping[str, str]
    counted_only: bool = False


def _read_families() -> dict[str, Family]:
    data = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return {
        kind: Family(
            _function_of(row),
            row["defaults"],
            row.get("layers", "model.layers"),
            row.get("aliases", {}),
            row.get("counted_only", False),
        )
        for kind, row in data["families"].items()
    }


def _function_of(row: Mapping[str, Any]) -> Callable[[ConfigFields], Parts]:
    if "layer" in row:
        return partial(
            dense.build_written, **{key: row[key] for key in ("before", "layer", "after", "head") if key in row}
        )
    return partial(getattr(dense, row["build"], None) or getattr(moe, row["build"]), **row.get("options", {}))


FAMILIES: Mapping[str, Family] = _read_families()
SAME_FAMILY: Mapping[str, str] = {"kimi_k2": "deepseek_v3", "gemma3": "gemma3_text", "llama4": "llama4_text"}
"""A `model_type` that names another family's modules, or a composite of which a run trains the text model."""
