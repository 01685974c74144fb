# SPDX-License-Identifier: Apache-2.0
"""The effect of each key that a safe fix may touch: what its value decides, and in which runs nothing reads it.

`--fix` runs unattended, as in a pre-commit hook. So a fix is safe only if what it renders trains, fits and stores the
same: each of its keys decides nothing but speed or logs, or this run does not read it, or the value means what the old
one meant. A key that is in no row is not safe. `harness.gates.fix_safety` applies the table to every finding, and knows
the runs that are named in the last column.
"""

from __future__ import annotations

from functools import cache
from typing import Literal, NamedTuple, cast

from harness.facts.data_rows import read_rows
from harness.facts.deepspeed_keys import block_keys

Decision = Literal["training", "memory", "storage", "speed", "logs", "nothing"]
HARMLESS: frozenset[Decision] = frozenset(("speed", "logs", "nothing"))


class KeyEffect(NamedTuple):
    """The decision of a key; `unread_in` names the runs in which nothing reads it (`harness.gates.fix_safety`)."""

    decides: Decision
    unread_in: tuple[str, ...] = ()


@cache
def load_effects() -> dict[str, KeyEffect]:
    """The table `key_effects.txt` by key; a key that ends in `.*` stands for the others of its section."""
    effects: dict[str, KeyEffect] = {}
    for _, row in read_rows("key_effects.txt"):
        keys, word, *runs = row.split()
        section, _, names = keys.rpartition(".")
        effect = KeyEffect(cast("Decision", word), tuple(runs[0].split(",")) if runs else ())
        effects |= dict.fromkeys((f"{section}.{name}" for name in names.split(",")), effect)
    return effects


def find_effect(key: str) -> KeyEffect | None:
    """The row of a key of the run spec, or that of its section; None if there is none."""
    parts = _current_name(key).split(".")
    sections = (".".join([*parts[:depth], "*"]) for depth in range(len(parts) - 1, 0, -1))
    return next((load_effects()[each] for each in (".".join(parts), *sections) if each in load_effects()), None)


def _current_name(key: str) -> str:
    """A key of `zero_optimization` that is another name of a `stage3_` key, by that name."""
    section, _, name = key.rpartition(".")
    own = (block_keys("zero_optimization") or {}).get(name) if section == "deepspeed.zero_optimization" else None
    if own is None or own.alias is None:
        return key
    field = f"zero.{own.alias}"
    return field if field in load_effects() else f"{section}.{own.alias}"
