"""AT011: the weights after `deepspeed.initialize` are those from before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.runtime.attest.asked import Asked
from harness.runtime.attest.claim import Answer, Claim, NotApplicable, differs, holds
from harness.runtime.attest.seen import Seen
from harness.runtime.attest.sums import add
from harness.runtime.attest.weights import held


def _look(seen: Seen) -> Any:
    names = [name for name, noted in seen.origin.items() if noted.sums]
    if not names:
        raise NotApplicable("all weights are on NVMe")
    other, looked = [], 0
    parts: dict[str, dict[str, Any]] = {"tensor": {}, "zero": {}}
    for name, (dtype, is_cut, has) in held(seen.engine, seen.named, names).items():
        noted = seen.origin[name]
        was = (noted.sums or {}).get(dtype)
        if was is None:
            continue
        looked += 1
        if is_cut:
            parts["tensor"][name] = [list(was), list(has)]
        elif hasattr(seen.named[name], "ds_tensor") and not noted.sharded:  # such as adapters, made whole on every rank
            parts["zero"][name] = [list(was), list(has)]
        elif was != has:
            other.append(name)
    return {"other": other[:5], "looked": looked, **parts}


def _judge(asked: Asked, found: Sequence[Any]) -> Answer:
    for rank, has in enumerate(found):
        if has["other"]:
            return _wrong(has["other"], rank)
    for kind in ("tensor", "zero"):
        groups: dict[tuple[int, int], list[int]] = {}
        for rank in range(len(found)):
            place = asked.place(rank)
            groups.setdefault((place.stage, place.data_rank if kind == "tensor" else place.tensor_rank), []).append(
                rank
            )
        for ranks in groups.values():
            parts = [found[rank][kind] for rank in ranks]
            wrong = [n for n, (was, _) in parts[0].items() if add(p[n][1] for p in parts) != tuple(was)]
            if wrong:
                return _wrong(wrong, ranks[0])
    if not any(has["looked"] for has in found):
        return Answer("skipped", "no weight could be read")
    return holds({"weights": found[0]["looked"]})


def _wrong(names: Sequence[str], rank: int) -> Answer:
    return differs(
        f"{len(names)} or more weights are not what they were before `deepspeed.initialize`, such as `{names[0]}`"
        f" (rank {rank})",
        list(names),
        "a pretrained model would be lost, and a new one start from other numbers than those of its seed",
    )


CLAIM = Claim(
    id="AT011",
    name="weights-changed-by-initialize",
    question="are the weights after `deepspeed.initialize` those from before it?",
    moment="built",
    look=_look,
    judge=_judge,
    key="zero",
    gates=("ZR030",),
    fix="take `deepspeed.zero_optimization.zenflow` and other experiments out; else report it with `attestation.json`",
)
