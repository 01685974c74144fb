# SPDX-License-Identifier: Apache-2.0
"""Cases of parity with one plain process: every layout of ranks, ZeRO stage, offload tier and number format.

The table is shared by `test_parity_matrix.py`, which runs a covering part, and `benchmarks/parity.py`, which runs all.
"""

from __future__ import annotations

import json
import math
import os
import random
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from harness.render import render_ds_config
from harness.run.resolved_run import resolve_run
from harness.spec.run_spec import RunSpec
from tests.support.training.model_shapes import GPT2, LLAMA, NO_DROPOUT

IS_NIGHT = os.environ.get("HARNESS_NIGHTLY") == "1"
STEPS = 20 if IS_NIGHT else 10
"""By day the half: the first update, warm-up and all of the decay are in it."""
WARMUP, LENGTH, MICRO, ACCUMULATION = 4, 32, 2, 2
GLOBAL_BATCH = 8
RATE, DECAY, BETAS, EPS, CLIP = 1e-3, 0.1, (0.9, 0.95), 1e-8, 0.5
SEED = 11

BOUNDS = {"fp32": 1e-5, "bf16": 2e-4}
"""Largest relative difference of a step's loss from the plain process, over all steps. bf16: `benchmarks/parity.py` trains
the plain process with its batch split in other ways too; those differ from each other by about as much."""

VOCABULARY, HIDDEN = 512, 64
WIDE = 16384
"""For NVMe: DeepSpeed swaps nothing smaller than 1 MiB, and the embedding is that large in each of 2 shards, in bf16."""

_LLAMA = LLAMA | {"vocab_size": VOCABULARY, "tie_word_embeddings": True}
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **_LLAMA},
    "qwen2": {"model_type": "qwen2", **_LLAMA},
    "gpt2": {**GPT2, **NO_DROPOUT, "vocab_size": VOCABULARY},
    "mixtral": {"model_type": "mixtral", **_LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2},
}

MORE_SHAPES: dict[str, dict[str, Any]] = {
    "deep": {"model_type": "llama", **_LLAMA, "num_hidden_layers": 9, "hidden_size": 16, "intermediate_size": 32}
}
"""Those of other tables. `deep` has more layers than a segment."""

TIERS: dict[str, dict[str, str]] = {
    "none": {},
    "cpu-optimizer": {"offload_optimizer": "cpu"},
    "cpu-both": {"offload_optimizer": "cpu", "offload_param": "cpu"},
    "nvme-optimizer": {"offload_optimizer": "nvme"},
    "nvme-both": {"offload_optimizer": "nvme", "offload_param": "nvme"},
}
TIERS_OF_STAGE = {0: ("none",), 1: ("none", "cpu-optimizer"), 2: ("none", "cpu-optimizer"), 3: tuple(TIERS)}
"""Offload needs ZeRO, NVMe and offloaded parameters need stage 3: gates OF001, OF003 and OF004 refuse the rest."""


@dataclass(frozen=True, slots=True)
class Case:
    """One way to train the same thing. `more` is laid over the spec, section by section."""

    shape: str
    stage: int
    tier: str
    precision: str
    ranks: int = 2
    more: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        degrees = [
            f"{k.split('_')[0]}{v}"
            for k, v in json.loads(dict(self.more).get("parallel", "{}")).items()
            if k.endswith("_size")
        ]
        extra = "".join(f"-{part}" for part in (self.kind, *degrees) if part) + (
            f"-{zlib.crc32(repr(self.more).encode()):08x}" if self.more else ""
        )
        return f"{self.shape}-zero{self.stage}-{self.tier}-{self.precision}-{self.ranks}ranks{extra}"

    @property
    def kind(self) -> str:
        """The optimizer, where it is not AdamW."""
        return str(json.loads(dict(self.more).get("optimizer", "{}")).get("type", ""))

    @property
    def model(self) -> str:
        """The folder of its model."""
        return f"{self.shape}-wide" if self.tier.startswith("nvme") else self.shape

    @property
    def reference(self) -> tuple[str, str]:
        """Cases of one reference are compared with the same plain process."""
        return self.model, self.precision


ALL: tuple[Case, ...] = tuple(
    Case(shape, stage, tier, precision)
    for shape, precision, stage in product(SHAPES, ("fp32", "bf16"), range(4))
    for tier in TIERS_OF_STAGE[stage]
)


def _optimizer(shape: str, stage: int, tier: str, precision: str, clip: float, **section: Any) -> Case:
    more = (("optimizer", json.dumps(section)), ("train", json.dumps({"max_grad_norm": clip})))
    return Case(shape, stage, tier, precision, more=more)


OPTIMIZERS: tuple[Case, ...] = (
    _optimizer("llama", 0, "none", "fp32", CLIP, type="adam"),
    _optimizer("llama", 2, "cpu-optimizer", "fp32", CLIP, type="adam"),
    _optimizer("llama", 0, "none", "fp32", CLIP, type="sgd", learning_rate=0.5, momentum=0.9),
    _optimizer("llama", 3, "none", "fp32", CLIP, type="sgd", learning_rate=0.5, momentum=0.9),
    _optimizer("llama", 0, "none", "fp32", CLIP, type="adagrad", learning_rate=0.01, weight_decay=0.0),
    _optimizer("llama", 2, "cpu-optimizer", "fp32", CLIP, type="adagrad", learning_rate=0.01),
    _optimizer("llama", 3, "cpu-both", "fp32", CLIP, type="adagrad", learning_rate=0.01),
    _optimizer("llama", 1, "cpu-optimizer", "fp32", CLIP, type="lion", learning_rate=1e-4, betas=[0.9, 0.99]),
    _optimizer("llama", 3, "cpu-both", "fp32", CLIP, type="lion", learning_rate=1e-4, betas=[0.9, 0.99]),
    _optimizer("gpt2", 0, "none", "fp32", 0.0, type="muon", learning_rate=2e-3),
    _optimizer("gpt2", 2, "none", "fp32", 0.0, type="muon", learning_rate=2e-3),
    _optimizer("llama", 1, "none", "fp32", 0.0, type="muon", learning_rate=2e-3),
    _optimizer("llama", 3, "none", "fp32", 0.0, type="muon", learning_rate=2e-3),
    _optimizer("llama", 2, "cpu-optimizer", "fp32", 0.0, type="muon", learning_rate=2e-3),
)
"""Those that run on the CPU. Muon without clipping: under ZeRO DeepSpeed clips its update (OP019). Adagrad under ZeRO is
right when it is offloaded (OP041)."""

RECORDS = "records.jsonl"
_UNEVEN = json.dumps({"train": RECORDS, "format": "prompt-completion", "group_by_length": False})


def _split(shape: str, stage: int, micro: int, times: int, *, uneven: bool = False, ranks: int = 2) -> Case:
    train = json.dumps({"per_device_train_batch_size": micro, "gradient_accumulation_steps": times})
    more = (("train", train), *([("data", _UNEVEN)] if uneven else []))
    return Case(shape, stage, "none", "fp32", ranks=ranks, more=more)


SPLITS: tuple[Case, ...] = (
    _split("llama", 1, 4, 1),
    _split("llama", 1, 1, 4),
    _split("gpt2", 0, 4, 1, uneven=True),
    _split("gpt2", 2, 2, 2, uneven=True),
    _split("llama", 3, 1, 4, uneven=True),
)
"""The same global batch cut in other ways; `uneven`: rows of unlike length, of which only a part is trained on."""


_PIPELINED = {"buffer_count": 8, "pipeline_read": True, "pipeline_write": True}
_BF16_STATES = {"bf16": {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}}

OFFLOAD: tuple[Case, ...] = (
    Case(
        "llama",
        3,
        "cpu-optimizer",
        "fp32",
        more=(("zero", json.dumps({"offload_optimizer": {"ratio": 0.5}, "sub_group_size": 20000})),),
    ),
    Case("llama", 3, "nvme-both", "fp32", more=(("zero", json.dumps({"offload_optimizer": _PIPELINED})),)),
    Case("llama", 2, "cpu-optimizer", "bf16", more=(("deepspeed", json.dumps(_BF16_STATES)),)),
    Case("llama", 3, "cpu-both", "bf16", more=(("deepspeed", json.dumps(_BF16_STATES)),)),
)
"""A part of the optimizer on the CPU; swapping that reads ahead; masters and states in bf16."""


def _parallel(shape: str, stage: int, ranks: int, precision: str = "fp32", **degrees: int) -> Case:
    return Case(shape, stage, "none", precision, ranks=ranks, more=(("parallel", json.dumps(degrees)),))


PARALLEL: tuple[Case, ...] = (
    _parallel("llama", 0, 2, tensor_parallel_size=2),
    _parallel("qwen2", 1, 2, tensor_parallel_size=2),
    _parallel("llama", 1, 4, tensor_parallel_size=2),
    _parallel("llama", 1, 2, pipeline_parallel_size=2),
    _parallel("gpt2", 1, 2, pipeline_parallel_size=2),
    _parallel("llama", 1, 4, pipeline_parallel_size=2),
    _parallel("llama", 1, 2, sequence_parallel_size=2),
    _parallel("qwen2", 3, 2, sequence_parallel_size=2),
    _parallel("llama", 1, 2, "bf16", tensor_parallel_size=2),
    _parallel("llama", 1, 2, "bf16", pipeline_parallel_size=2),
)
"""Tensor, pipeline and sequence parallelism, alone and beside two data-parallel ranks; tensor ranks in pipeline stages are
in `tensor_pipeline_cells`."""


def _recomputed(shape: str, stage: int, tier: str, precision: str, value: Any, **more: Any) -> Case:
    train = {"gradient_checkpointing": value, **more.pop("train", {})}
    sections = (("train", json.dumps(train)), *((name, json.dumps(section)) for name, section in more.items()))
    return Case(shape, stage, tier, precision, more=sections)


_SEGMENTS = {"layers_per_segment": 2}
_EVERY, _KEEP, _TILES = {"recompute_every": 2}, {"keep": "attention"}, {"mlp_tile_size": 20}
RECOMPUTATION: tuple[Case, ...] = (
    _recomputed("llama", 0, "none", "fp32", _EVERY),
    _recomputed("llama", 3, "none", "fp32", _KEEP),
    _recomputed("mixtral", 3, "cpu-both", "fp32", _KEEP),
    _recomputed("llama", 3, "cpu-both", "fp32", _EVERY, train={"offload_activations": True}),
    _recomputed("llama", 3, "cpu-both", "fp32", _SEGMENTS),
    _recomputed("mixtral", 2, "none", "bf16", _SEGMENTS),
    *(
        _recomputed("deep", stage, "none", "fp32", {"layers_per_segment": layers})
        for layers, stage in ((1, 0), (4, 3), (8, 1))
    ),
    _recomputed("qwen2", 2, "cpu-optimizer", "bf16", False, train=_TILES),
    _recomputed("llama", 3, "none", "fp32", False, train=_TILES, data=json.loads(_UNEVEN)),
    _recomputed("llama", 1, "none", "fp32", _EVERY, parallel={"pipeline_parallel_size": 2}),
    _recomputed("qwen2", 3, "none", "fp32", _KEEP, train=_TILES, parallel={"sequence_parallel_size": 2}),
    _recomputed("llama", 1, "none", "fp32", {**_EVERY, **_KEEP}, train=_TILES, parallel={"tensor_parallel_size": 2}),
)
"""Every second layer recomputed, segments of 1, 2, 4 and 8 layers, attention kept and MLPs in tiles, with each stage, offload and parallel degree that they
work with. Parallel degrees last: DeepSpeed keeps their groups for the rest of the process."""

MORE_RECOMPUTATION: tuple[Case, ...] = (
    _recomputed("gpt2", 3, "nvme-both", "bf16", _SEGMENTS),
    _recomputed("llama", 0, "none", "fp32", _SEGMENTS),
    _recomputed("qwen2", 3, "none", "fp32", _SEGMENTS, train=_TILES, parallel={"sequence_parallel_size": 2}),
    _recomputed("llama", 1, "none", "fp32", _SEGMENTS, parallel={"tensor_parallel_size": 2}),
    _recomputed("gpt2", 1, "cpu-optimizer", "fp32", _KEEP),
    _recomputed("qwen2", 2, "none", "bf16", _KEEP),
    _recomputed("llama", 3, "cpu-optimizer", "bf16", {**_EVERY, **_KEEP}),
    _recomputed("llama", 2, "none", "fp32", _EVERY, train={"gradient_checkpointing_use_reentrant": True}),
    _recomputed("llama", 0, "none", "fp32", False, train=_TILES),
    _recomputed("llama", 3, "cpu-both", "fp32", True, train=_TILES),
    _recomputed("llama", 3, "none", "fp32", _KEEP, parallel={"sequence_parallel_size": 2}),
)
"""The rest of them, for `benchmarks/parity.py`."""


NIGHT: tuple[Case, ...] = (*(OPTIMIZERS[i] for i in (6, 7, 9, 11)), *(SPLITS[i] for i in (1, 3)))
"""By day another stage or model has the same optimizer, or the same cut."""


def bound(case: Case) -> float:
    """Where a case must be. Muon's Newton-Schulz steps multiply rounding errors, and DeepSpeed's form of them differs.
    The plain process keeps masters and states in fp32; in bf16 they round (1.3e-3, the same at stages 2 and 3).
    """
    if "bf16_optimizer_states" in dict(case.more).get("deepspeed", ""):
        return 4e-3
    return 2e-4 if case.kind == "muon" else BOUNDS[case.precision]


FOUR_RANKS: tuple[Case, ...] = (
    Case("llama", 2, "none", "fp32", ranks=4),
    Case("llama", 3, "none", "fp32", ranks=4),
    Case("mixtral", 3, "nvme-both", "fp32", ranks=4),
    Case("qwen2", 3, "cpu-both", "bf16", ranks=4),
)


def covering() -> list[Case]:
    """Every stage and tier in both number formats, the shapes in turn: a quarter of the matrix."""
    chosen = []
    for i, shape in enumerate(SHAPES):
        ways = [(stage, tier) for stage in range(4) for tier in TIERS_OF_STAGE[stage]]
        for j, (stage, tier) in enumerate(ways):
            if (i + j) % 4 in (0, 1):
                chosen.append(Case(shape, stage, tier, "fp32" if (i + j) % 4 == 0 else "bf16"))
    return chosen


def spec(case: Case, models: Path, text: Path, nvme: Path) -> dict[str, Any]:
    """The run spec of a case."""
    zero: dict[str, Any] = {"stage": case.stage}
    for section, device in TIERS[case.tier].items():
        zero[section] = {"device": device, "pin_memory": False}
        if device == "nvme":
            zero[section]["nvme_path"] = str(nvme)
    if zero.get("offload_param", {}).get("device") == "nvme":
        zero["offload_param"] |= {"buffer_count": 40, "buffer_size": WIDE * HIDDEN}
    degrees = json.loads(dict(case.more).get("parallel", "{}"))
    together = math.prod(degree for key, degree in degrees.items() if key.endswith("_size"))
    body: dict[str, Any] = {
        "name": case.name[:60],
        "model": {"name_or_path": str(models / case.model)},
        "data": {
            "train": str(text),
            "max_length": LENGTH,
            "eval_fraction": 0.0,
            "cache_dir": str(text.parent / "cache"),
        },
        "train": {
            "max_steps": STEPS,
            "per_device_train_batch_size": GLOBAL_BATCH * together // (case.ranks * ACCUMULATION),
            "gradient_accumulation_steps": ACCUMULATION,
            "seed": SEED,
            "max_grad_norm": CLIP,
        },
        "optimizer": {"learning_rate": RATE, "weight_decay": DECAY, "betas": list(BETAS), "eps": EPS},
        "scheduler": {"type": "cosine", "warmup_steps": WARMUP},
        "precision": {"bf16": case.precision == "bf16"},
        "zero": zero,
        "checkpoint": {"save_at_end": False},
    }
    for section, more in case.more:
        body[section] = _laid_over(body.get(section, {}), json.loads(more))
    if body["data"]["train"] == RECORDS:
        body["data"]["train"] = str(text.parent / RECORDS)
    return body


def _laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    return below | {k: _laid_over(below.get(k, {}), v) if isinstance(v, dict) else v for k, v in above.items()}


def config(body: dict[str, Any], ranks: int) -> dict[str, Any]:
    """The DeepSpeed JSON, as the harness renders it."""
    return dict(render_ds_config(resolve_run(RunSpec.model_validate_json(json.dumps(body)), world_size=ranks)).config)


def write_run(folder: Path, body: dict[str, Any], ranks: int) -> Path:
    """A run directory as the launching side makes it."""
    folder.mkdir(parents=True)
    run = resolve_run(RunSpec.model_validate_json(json.dumps(body)), world_size=ranks)
    (folder / "spec.resolved.json").write_text(json.dumps(run.to_json()))
    (folder / "ds_config.json").write_text(json.dumps(config(body, ranks), indent=2))
    return folder


def write_text(path: Path, lines: int = 400) -> Path:
    """Words in random order, lines of uneven length: enough that 20 steps see no row twice."""
    draw = random.Random(SEED)  # noqa: S311
    words = "the of a shard rank step loss token gradient swaps gathers keeps every when weights".split()
    path.write_text("\n".join(" ".join(draw.choices(words, k=draw.randint(3, 16))) for _ in range(lines)) + "\n")
    return path


def write_records(path: Path, count: int = 400) -> Path:
    """A word as the prompt, one to four as the completion: rows differ in length and in how much of them counts."""
    draw = random.Random(SEED)  # noqa: S311
    words = "plan of one shard the rank step loss".split()
    records = [
        {"prompt": f"{draw.choice(words)} ", "completion": " ".join(draw.choices(words, k=draw.randint(1, 4)))}
        for _ in range(count)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def write_models(folder: Path, names: Iterable[str]) -> Path:
    """A folder a model with random weights and the byte tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from harness.runtime.tokenizer import byte_tokenizer

    for name in names:
        fields = dict({**SHAPES, **MORE_SHAPES}[name.removesuffix("-wide")])
        if name.endswith("-wide"):
            fields["vocab_size"] = WIDE
        torch.manual_seed(SEED)
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(fields.pop("model_type"), **fields), dtype=torch.float32
        )
        model.save_pretrained(folder / name)
        byte_tokenizer().save_pretrained(folder / name)
    return folder
