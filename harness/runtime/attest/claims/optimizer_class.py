"""AT002: the optimizer, and what DeepSpeed has put around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.runtime.attest.asked import Asked
from harness.runtime.attest.claim import Answer, Claim, differs, holds, show
from harness.runtime.attest.seen import Seen

_BASES = {
    "adam": ("FusedAdam", "DeepSpeedCPUAdam", "Adam", "AdamW"),
    "adamw": ("FusedAdam", "DeepSpeedCPUAdam", "AdamW"),
    "sgd": ("SGD",),
    "lion": ("FusedLion", "DeepSpeedCPULion"),
    "adagrad": ("Adagrad", "DeepSpeedCPUAdagrad"),
    "lamb": ("FusedLamb",),
    "muon": ("Muon", "MuonWithAuxAdam"),
}
_HALF = ("FP16_Optimizer", "FP16_UnfusedOptimizer", "BF16_Optimizer")
_WRAPPERS = {
    1: ("DeepSpeedZeroOptimizer", "BF16_Optimizer"),
    2: ("DeepSpeedZeroOptimizer",),
    3: ("DeepSpeedZeroOptimizer_Stage3",),
}


def base_of(optimizer: Any) -> Any:
    """The optimizer that computes, below DeepSpeed's wrappers."""
    while getattr(optimizer, "optimizer", None) is not None:
        optimizer = optimizer.optimizer
    return optimizer


def _look(seen: Seen) -> Any:
    wrapper, base = seen.engine.optimizer, base_of(seen.engine.optimizer)
    decoupled = getattr(base, "adam_w_mode", None)
    return {
        "wrapper": type(wrapper).__name__,
        "above": [kind.__name__ for kind in type(wrapper).__mro__],
        "base": type(base).__name__,
        "kinds": [kind.__name__ for kind in type(base).__mro__],
        "decoupled": None if decoupled is None else bool(decoupled),
        "decays": any(group.get("weight_decay") for group in base.param_groups),
    }


def _judge(asked: Asked, found: Sequence[Any]) -> Answer:
    has = found[0]
    text = {key: has[key] for key in ("wrapper", "base")}
    for rank, other in enumerate(found):
        if (other["wrapper"], other["base"]) != (has["wrapper"], has["base"]):
            return differs(f"rank {rank} has {show(other['base'])} and rank 0 has {show(has['base'])}", text)
    bases = _BASES.get(asked.optimizer)
    if bases and not set(bases) & set(has["kinds"]):
        return differs(f"the optimizer is {show(has['base'])}, should be one of {show(bases)}", text)
    wrong = _decay(asked, has)
    if wrong:
        return differs(wrong, text)
    if asked.stage == 0:
        wanted = _HALF if asked.dtype != "float32" else (has["base"],)
    else:
        wanted = _WRAPPERS.get(asked.stage, ()) if isinstance(asked.stage, int) else ()
    if wanted and not set(wanted) & set(has["above"]):
        return differs(f"the optimizer is wrapped in {show(has['wrapper'])}, should be {show(wanted)}", text)
    return holds(text)


def _decay(asked: Asked, has: dict[str, Any]) -> str:
    """Adam's decay added to the gradient where AdamW was asked for, or the other way round."""
    if has["decoupled"] is None or not has["decays"] or asked.optimizer not in ("adam", "adamw"):
        return ""
    wanted = asked.optimizer == "adamw" or bool(asked.params.get("adam_w_mode", True))
    if has["decoupled"] == wanted:
        return ""
    ways = {True: "apart from the gradient", False: "as a part of the gradient"}
    return f"weights decay {ways[has['decoupled']]}, should decay {ways[wanted]}"


CLAIM = Claim(
    id="AT002",
    name="another-optimizer",
    question="is it the optimizer that is asked for, in the wrapper of the stage and number format?",
    moment="built",
    look=_look,
    judge=_judge,
    key="optimizer.type",
    gates=("OP001", "OP002", "OF004"),
    fix="compare `optimizer` in `ds_config.json` with the spec, and render the JSON anew",
)
