# SPDX-License-Identifier: Apache-2.0
"""Drawn products of degrees: pipeline x tensor x sequence x data ranks, ZeRO stages, heads and vocabularies.

What the gates accept, the harness trains, and every loss is that of one plain process. What they refuse, DeepSpeed
refuses or does otherwise than asked, or each gate that objects says that the limit is the harness's own.
`benchmarks/degree_products.py` tries all of them; the suite tries a few.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.conformance import compare, ours
from tests.conformance.case import Case
from tests.conformance.judge import Judge
from tests.conformance.outcome import settle
from tests.support.training import parity_cases
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.model_shapes import GPT2, LLAMA, NO_DROPOUT
from tests.support.training.parity_runs import JOB, difference
from tests.support.training.plain_reference import Rows, Settings, train_plainly
from tests.support.training.runtime_helpers import metric_lines

SEED, PRODUCTS, MOST_ON_EIGHT = 132, 100, 14
STEPS, LENGTH, GLOBAL_BATCH = 2, 32, 8
OPTIMIZER = {"learning_rate": 1e-3, "weight_decay": 0.1, "betas": [0.9, 0.95], "eps": 1e-8}
OPS = ("ShareMemCommBuilder", "FusedAdamBuilder")
"""All that the runs use."""
BOUND = parity_cases.BOUNDS["fp32"]
RANKS = (1, 2, 2, 3, 4, 4, 4, 4, 6, 8, 8)
DEGREES = (1, 1, 1, 2, 2, 2, 3, 4)
SEQUENCE_DEGREES = (1, 1, 1, 1, 2, 2, 4)
HEADS = ((4, 4), (4, 2), (4, 1), (8, 2), (6, 3), (3, 3))
"""Query heads, key-value heads."""
VOCABULARIES = (512, 512, 320, 330, 321)


@dataclass(frozen=True, slots=True)
class Product:
    """A run of two steps on `ranks` ranks; the data-parallel ranks are what the degrees leave."""

    ranks: int
    pipeline: int
    tensor: int
    sequence: int
    stage: int
    family: str
    layers: int
    heads: tuple[int, int]
    vocabulary: int

    @property
    def name(self) -> str:
        """As a folder has it."""
        degrees = f"pp{self.pipeline}-tp{self.tensor}-sp{self.sequence}-zero{self.stage}"
        return f"{self.ranks}ranks-{degrees}-{self.shape}"

    @property
    def shape(self) -> str:
        """The name of its model."""
        return f"{self.family}-{self.layers}layers-{self.heads[0]}x{self.heads[1]}heads-{self.vocabulary}"

    @property
    def data(self) -> int:
        """Data-parallel ranks; at least 1, for products of more ranks than there are."""
        return max(1, self.ranks // (self.pipeline * self.tensor * self.sequence))

    def model(self) -> dict[str, Any]:
        """The configuration of `transformers`."""
        queries, keys = self.heads
        if self.family == "gpt2":
            sizes = {"n_head": queries, "n_embd": 16 * queries, "n_layer": self.layers}
            return {**GPT2, **NO_DROPOUT, **sizes, "vocab_size": self.vocabulary}
        sizes = {"num_attention_heads": queries, "num_key_value_heads": keys, "hidden_size": 16 * queries}
        fields = {**LLAMA, **sizes, "num_hidden_layers": self.layers, "vocab_size": self.vocabulary}
        return {"model_type": self.family, **fields}

    def spec(self, models: Path, text: Path) -> dict[str, Any]:
        """The run spec."""
        return {
            "name": "product",
            "model": {"name_or_path": str(models / self.shape)},
            "data": {"train": str(text), "max_length": LENGTH, "eval_fraction": 0.0},
            "train": {
                "max_steps": STEPS,
                "per_device_train_batch_size": 1,
                "gradient_accumulation_steps": max(1, GLOBAL_BATCH // self.data),
                "max_grad_norm": 0.5,
                "seed": 11,
            },
            "optimizer": OPTIMIZER,
            "scheduler": {"type": "cosine", "warmup_steps": 1},
            "zero": {"stage": self.stage},
            "parallel": {
                "tensor_parallel_size": self.tensor,
                "pipeline_parallel_size": self.pipeline,
                "sequence_parallel_size": self.sequence,
            },
            "checkpoint": {"save_at_end": False},
            "launch": {"num_gpus": self.ranks},
        }

    def case(self, spec: dict[str, Any]) -> Case:
        """As the conformance suite takes it, which puts it to plain DeepSpeed."""
        accumulation = spec["train"]["gradient_accumulation_steps"]
        config: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": accumulation,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
            "zero_optimization": {"stage": self.stage},
        }
        if self.tensor > 1:
            config["tensor_parallel"] = {"autotp_size": self.tensor}
        if self.sequence > 1:
            config["sequence_parallel_size"] = self.sequence
        fields = self.model()
        model = {"kind": fields.pop("model_type"), **fields}
        return Case(
            self.name,
            "spec",
            config,
            self.ranks,
            tensor=self.tensor,
            pipeline=self.pipeline,
            sequence=self.sequence,
            model={"kind": "pipe", "layers": self.layers} if self.pipeline > 1 else model,
            text=yaml.safe_dump(spec, sort_keys=False),
        )


def draw_products(count: int = PRODUCTS) -> list[Product]:
    """The same ones each time. Of a draw whose degrees do not divide the ranks one in five stays."""
    draw, products = random.Random(SEED), list[Product]()  # noqa: S311
    while len(products) < count:
        family = draw.choice(("llama", "llama", "qwen2", "gpt2"))
        product = Product(
            ranks=draw.choice(RANKS),
            pipeline=draw.choice(DEGREES),
            tensor=draw.choice(DEGREES),
            sequence=draw.choice(SEQUENCE_DEGREES),
            stage=draw.choice((0, 1, 1, 2, 3)),
            family=family,
            layers=draw.choice((1, 2, 3, 4)),
            heads=draw.choice(HEADS),
            vocabulary=draw.choice(VOCABULARIES),
        )
        is_even = product.ranks % (product.pipeline * product.tensor * product.sequence) == 0
        is_room = product.ranks < 8 or sum(p.ranks == 8 for p in products) < MOST_ON_EIGHT
        is_plain = product.pipeline == product.tensor == product.sequence == 1
        if is_room and product not in products and (draw.random() < (0.1 if is_plain else 1.0 if is_even else 0.2)):
            products.append(product)
    return products


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a product. `kind`: `trains`, `refused by both`, `own limit`, or what is wrong."""

    product: Product
    kind: str
    gates: tuple[str, ...] = ()
    text: str = ""

    @property
    def is_right(self) -> bool:
        """Do both sides agree, or does the gate name the harness's own limit?"""
        return self.kind in ("trains", "refused by both", "own limit")


def try_products(products: Sequence[Product], folder: Path, ranks: ForkedRanks, judge: Judge) -> Iterator[Answer]:
    """Ask the gates about each, then train it on real ranks, or put it to plain DeepSpeed."""
    parity_cases.MORE_SHAPES.update({p.shape: p.model() for p in products})
    models = parity_cases.write_models(folder / "models", sorted({p.shape for p in products}))
    text = parity_cases.write_text(folder / "text.txt")
    for product in products:
        spec = product.spec(models, text)
        case = product.case(spec)
        said = ours.verdict(case)
        if said.crash:
            yield Answer(product, "crash", said.errors, said.crash)
        elif said.refused:
            yield _put_to_deepspeed(product, case, said, judge)
        else:
            yield _train(product, spec, folder, ranks)


def _put_to_deepspeed(product: Product, case: Case, said: ours.Verdict, judge: Judge) -> Answer:
    """Ask DeepSpeed for the same degrees by its own keys; what the harness renders leaves out what it does itself."""
    asked = compare.asked_of(case.config, case.world, case.degrees)
    job = {**ours.job(case, said), **case.degrees, "config": case.config, "meant": case.config, "asked": asked}
    outcome = settle(case, said, judge.run(job), case.config, asked, job)
    gates = tuple(dict.fromkeys(outcome.errors))
    kinds = {"agree-bad": "refused by both", "explained": "own limit", "known": "own limit"}
    text = outcome.why if outcome.kind == "explained" else outcome.did
    return Answer(product, kinds.get(outcome.kind, outcome.kind), gates, text)


def _train(product: Product, spec: dict[str, Any], folder: Path, ranks: ForkedRanks) -> Answer:
    run_dir = folder / "runs" / product.name
    parity_cases.write_run(run_dir, spec, product.ranks)
    drawn = run_dir / "drawn.pt"
    jobs = folder / "jobs.json"
    jobs.write_text(json.dumps([{"run": str(run_dir), "drawn": str(drawn)}]))
    answer = ranks.run(JOB, str(jobs), ranks=product.ranks, timeout=180, check=False)
    outcome_file = run_dir / "outcome.json"
    outcome = json.loads(outcome_file.read_text()) if outcome_file.exists() else {"error": "no outcome"}
    if any(answer["codes"]) or outcome["error"]:
        last = answer["output"][answer["first"]].strip().splitlines()[-1:]
        return Answer(product, "accepted, and fails", text=f"{outcome['error']}: {' '.join(last)}"[:300])
    checks = json.loads((run_dir / "engine_checks.json").read_text())["claims"]
    alarms = [claim["id"] for claim in checks if claim["state"] == "differs"]
    gap = difference([line["loss"] for line in metric_lines(run_dir, "step")], _plain_losses(spec, drawn))
    if gap > BOUND or alarms:
        return Answer(product, "accepted, and trains otherwise", text=f"{gap:.1e}, alarms: {alarms}")
    return Answer(product, "trains", text=f"{gap:.1e}")


def _plain_losses(spec: dict[str, Any], drawn: Path) -> list[float]:
    import torch

    rows = [[Rows(**part) for part in parts] for parts in torch.load(drawn)]
    settings = Settings(OPTIMIZER, STEPS, spec["scheduler"]["warmup_steps"], spec["train"]["max_grad_norm"])
    return train_plainly(Path(spec["model"]["name_or_path"]), rows, settings).losses
