"""Every documented key of DeepSpeed's JSON: its type, the release it came with or went with, its successor.

What to say about a wrong key is `harness.spec.deepspeed_json`'s business.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from harness.facts.deepspeed import Version, parse_version
from harness.facts.deepspeed_key_tables import TABLES

STRICT_BLOCKS = frozenset(
    """zero_optimization tensor_parallel compile hybrid_engine comms_logger tensorboard wandb csv_monitor comet timers
    bf16 fp16 bfloat16""".split()
)
"""Blocks in which DeepSpeed itself refuses an unknown key; in every other it ignores one in silence."""


@dataclass(frozen=True, slots=True)
class Key:
    """One documented key: `type` without the `?`, and between which releases DeepSpeed reads it."""

    name: str
    type: str
    nullable: bool
    since: Version | None
    gone: Version | None
    successor: str | None
    alias: str | None


@cache
def block(path: str) -> dict[str, Key] | None:
    """The documented keys of a block (`` is the top level), or None where anything goes or the block is unknown."""
    table = TABLES.get(path)
    if table is None:
        return None
    return {key.name: key for key in map(_parse, table.strip().splitlines())}


def _parse(line: str) -> Key:
    name, kind, *rest = line.split()
    since = next((parse_version(r[2:]) for r in rest if r.startswith(">=")), None)
    gone = next((parse_version(r[1:]) for r in rest if r.startswith("<")), None)
    successor = next((r[2:] for r in rest if r.startswith("->")), None)
    alias = next((r[2:] for r in rest if r.startswith("=>")), None)
    return Key(name, kind.rstrip("?"), kind.endswith("?"), since, gone, successor, alias)


def block_paths() -> tuple[str, ...]:
    """Every block with a table, parents before children."""
    return tuple(TABLES)
