"""AT014: the optimizer's own numbers, also after a checkpoint was loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.runtime.attest.asked import Asked
from harness.runtime.attest.claim import Answer, Claim, differs, holds, show
from harness.runtime.attest.seen import Seen

_NAMES = ("betas", "eps", "momentum")


def _look(seen: Seen) -> Any:
    groups = []
    for group in seen.engine.optimizer.param_groups:
        kept = {name: group[name] for name in (*_NAMES, "weight_decay") if name in group}
        groups.append({name: list(v) if isinstance(v, tuple) else v for name, v in kept.items()})
    return groups


def _judge(asked: Asked, found: Sequence[Any]) -> Answer:
    muon = asked.optimizer == "muon"  # one group of it steps with Adam, and has other numbers
    for has in found:
        for group in has:
            for name in () if muon else _NAMES:
                wanted = _plain(asked.params.get(name))
                if wanted is not None and name in group and _plain(group[name]) != wanted:
                    return differs(f"`{name}` is {show(group[name])}, should be {show(asked.params[name])}", group)
        decays = {float(group["weight_decay"]) for group in has if "weight_decay" in group}
        wanted = asked.params.get("weight_decay")
        if isinstance(wanted, (int, float)) and decays and not {float(wanted)} <= decays <= {float(wanted), 0.0}:
            return differs(f"weight decay is {show(sorted(decays))}, should be {show(float(wanted))}", sorted(decays))
    return holds(found[0])


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping) or value is None:
        return None
    return [float(v) for v in value] if isinstance(value, (list, tuple)) else value


CLAIM = Claim(
    id="AT014",
    name="other-optimizer-settings",
    question="has the optimizer the decay, betas and epsilon that are asked for, also after a resume?",
    moment="begun",
    look=_look,
    judge=_judge,
    key="optimizer",
    gates=("OP005",),
    fix="a checkpoint brings its own settings: resume with those it was saved with",
)
