# SPDX-License-Identifier: Apache-2.0
"""Three steps with each mutant of DeepSpeed and without, in the same ranks: `mutant_runs.py OUT.json [--first-ways]`.

`--first-ways` runs each mutant in the first way alone that it concerns. Writes {"clean": {run: outcome of the clean run,
trained once more}, "mutants": {name: {way: outcome}}}. An outcome is {"distance", "stop", "error"}: how far the weights
ended from those of the clean run, on the rank where it is most, over the distance that the clean run trained; the first
difference that the gradient witness found, {"step", "cause", "kind"} or null; the error that the run or the witness had.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import deepspeed
import torch

from harness.engine_witness.gradient_witness import GradientWitness
from harness.runtime.distributed import destroy_process_group, init_process_group
from tests.training.engine_witness import held_back_mutants, mutants
from tests.training.engine_witness.mutants import Mutant

STEPS, MICRO_BATCHES, ROWS, VOCABULARY, WIDTH = 3, 2, 2, 29, 15
RUN_SETTINGS = ("clipping", "evaluation")
"""What only some runs have. All have the other needs of a mutant."""


class TiedModel(torch.nn.Module):
    """A table that is embedding and head, and one block that is used twice. Odd sizes: shards end inside a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.block = torch.nn.Sequential(
            torch.nn.LayerNorm(WIDTH),
            torch.nn.Linear(WIDTH, 2 * WIDTH),
            torch.nn.Tanh(),
            torch.nn.Linear(2 * WIDTH, WIDTH),
        )
        self.last = torch.nn.Linear(WIDTH, WIDTH)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The loss of predicting each id from the one before it."""
        x = self.table(ids[:, :-1])
        for _ in range(2):
            x = x + self.block(x)
        logits = self.head(self.last(x)).float()
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def make_config(way: str, settings: frozenset[str]) -> dict[str, Any]:
    """DeepSpeed's configuration of a way to train."""
    stage, _, rest = way.removeprefix("zero").partition("_")
    zero: dict[str, Any] = {"stage": int(stage), "reduce_bucket_size": 600}
    if stage == "3":
        zero |= {"stage3_param_persistence_threshold": 40}
    if rest == "cpu":
        zero |= {"offload_optimizer": {"device": "cpu"}}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": ROWS,
        "gradient_accumulation_steps": MICRO_BATCHES,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.02, "eps": 0.01, "weight_decay": 0.3}},
        "gradient_clipping": 0.5 if "clipping" in settings else 0.0,
        "zero_optimization": zero,
        "steps_per_print": 10**9,
    }
    if rest == "bf16":
        config |= {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    return config


class Trained(NamedTuple):
    """`weights`: the model's in fp32 before the first step and after the last, as this rank has them."""

    weights: list[torch.Tensor]
    witness: GradientWitness


def train(way: str, settings: frozenset[str], mutant: Mutant | None) -> Trained:
    """Three steps of this rank's rows, which a gradient witness observes."""
    torch.manual_seed(0)
    model = TiedModel()
    for parameter in model.parameters():  # a norm's bias of zeros does not decay
        torch.nn.init.normal_(parameter, std=0.3)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    with mutant.inject() if mutant else nullcontext():
        engine, *_ = deepspeed.initialize(model=model, model_parameters=groups, config=make_config(way, settings))
        weights = [_full_weights(engine)]
        witness = GradientWitness(engine, model)
        witness.attach()
        rows = torch.Generator().manual_seed(torch.distributed.get_rank())
        for index in range(STEPS * MICRO_BATCHES):
            if "evaluation" in settings and index % MICRO_BATCHES:
                with torch.no_grad():
                    engine(torch.zeros(ROWS, 9, dtype=torch.long))
            loss = engine(torch.randint(VOCABULARY, (ROWS, 9), generator=rows))
            engine.backward(loss)
            engine.step()
        weights.append(_full_weights(engine))
        witness.detach()
        engine.destroy()
    return Trained(weights, witness)


def _full_weights(engine: Any) -> torch.Tensor:
    parameters = list(engine.module.parameters())
    gather: Callable[..., Any] = deepspeed.zero.GatheredParameters
    with gather(parameters) if hasattr(parameters[0], "ds_id") else nullcontext():
        return torch.cat([p.detach().float().flatten() for p in parameters]).clone()


def main() -> None:
    """Run every mutant in each of its ways."""
    ranks = init_process_group()
    references: dict[tuple[str, frozenset[str]], list[torch.Tensor]] = {}
    clean: dict[str, dict[str, Any]] = {}
    answers: dict[str, dict[str, dict[str, Any]]] = {}

    def judge(run: Trained, reference: list[torch.Tensor]) -> dict[str, Any]:
        moved = (reference[1] - reference[0]).norm()
        distance = max(ranks.all_gather_object(float((run.weights[1] - reference[1]).norm() / moved)))
        first = next(iter(run.witness.differences), None)
        stop = {"step": first.step, "cause": first.cause, "kind": first.kind} if first else None
        return {"distance": distance, "stop": stop, "error": run.witness.fault or run.witness.unable}

    for mutant in (*mutants.MUTANTS, *held_back_mutants.MUTANTS):
        settings = frozenset(mutant.needs) & frozenset(RUN_SETTINGS)
        for way in mutant.ways[:1] if "--first-ways" in sys.argv else mutant.ways:
            if (way, settings) not in references:
                references[way, settings] = train(way, settings, None).weights
                again = train(way, settings, None)
                clean[" ".join((way, *sorted(settings)))] = judge(again, references[way, settings])
            try:
                outcome = judge(train(way, settings, mutant), references[way, settings])
            except Exception as raised:
                outcome = {"distance": None, "stop": None, "error": f"{type(raised).__name__}: {raised}"}
            answers.setdefault(mutant.name, {})[way] = outcome
            if ranks.is_main_process:
                print(mutant.name, way, outcome, flush=True)
    if ranks.is_main_process:
        Path(sys.argv[1]).write_text(json.dumps({"clean": clean, "mutants": answers}))
    destroy_process_group()


if __name__ == "__main__":
    main()
