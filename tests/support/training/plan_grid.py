# SPDX-License-Identifier: Apache-2.0
"""The configurations whose every byte is predicted: models, stages, places, precisions, ranks. Starts nothing itself."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

from harness.facts.model_lookup import ModelFacts, facts_from_config
from harness.hostinfo.machine import can_link_libaio
from harness.plan.memory.memory_items import MemoryItem
from harness.plan.memory.model_states import model_state_items
from harness.plan.memory.zero_partitions import partition_model
from harness.plan.settings.plan_settings import PlanSettings, settings_of
from harness.plan.weights.trainable_split import TrainableChoice
from harness.run.resolved_run import resolve_run
from harness.spec.run_spec import RunSpec
from harness.spec.sections.model_spec import ModelSpec

_SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_WIDE = {**_SMALL, "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 259}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **_WIDE},
    "tied": {"model_type": "llama", **_WIDE, "tie_word_embeddings": True},
    "gpt2": {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 211, "n_positions": 33},
    "gemma2": {"model_type": "gemma2", **_WIDE, "head_dim": 16, "pad_token_id": None},
    "experts": {
        "model_type": "qwen3_moe",
        **_WIDE,
        "head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
    },
    "wide": {"model_type": "llama", **_WIDE, "hidden_size": 128, "intermediate_size": 192, "vocab_size": 8195},
    "uneven": {**_WIDE, "model_type": "qwen2", "hidden_size": 60, "num_attention_heads": 6, "intermediate_size": 75},
}
FP32_SUMS = {"data_types": {"grad_accum_dtype": "fp32"}}
LEAN = {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}}
LEAN_MASTER = {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}
SGD = {"optimizer": {"type": "SGD", "params": {"lr": 1e-3, "momentum": 0.9}}}
LION = {"optimizer": {"type": "Lion", "params": {"lr": 1e-4}}}
TRAINED: dict[str, dict[str, Any]] = {
    "": {},
    "frozen": {"freeze": ["model.embed_tokens.*", "*.mlp.*", "*norm*"]},
    "attention": {"train_only": ["*attn*"]},
    "last-layer": {"train_only": ["*.1.*"]},
    "lora": {"lora": {"r": 3}},
    "lora-all": {"lora": {"r": 4, "target_modules": "all-linear"}},
    "lora-saved": {"lora": {"r": 2, "target_modules": ["q_proj", "down_proj"], "modules_to_save": ["lm_head"]}},
    "lora-bias": {"lora": {"r": 5, "bias": "all", "exclude_modules": ["v_proj"], "target_modules": "all-linear"}},
    "lora-frozen": {"lora": {"r": 4, "rank_pattern": {"v_proj": 7}}, "freeze": ["*.0.*lora_A*"]},
}
ADAGRAD = {"optimizer": {"type": "Adagrad", "params": {"lr": 1e-3}}}
RMSPROP = {"optimizer": {"type": "RMSprop", "params": {"lr": 1e-3, "momentum": 0.9}}}
ADAFACTOR = {"optimizer": {"type": "Adafactor", "params": {"lr": 1e-3}}}
MUON = {"optimizer": {"type": "Muon", "params": {"lr": 1e-3, "momentum": 0.9}}}
AUTOCAST = {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}
PLAIN_SGD = {"optimizer": {"type": "SGD", "params": {"lr": 1e-3}}}
_OPTIMIZERS = {
    "momentum": SGD,
    "plain": PLAIN_SGD,
    "lion": LION,
    "adagrad": ADAGRAD,
    "rmsprop": RMSPROP,
    "adafactor": ADAFACTOR,
    "muon": MUON,
}
_PLACES = (*((stage, "none", "none") for stage in range(4)), *((stage, "cpu", "none") for stage in (1, 2, 3)))


@dataclass(frozen=True)
class Case:
    """One configuration. `zero` and `more` are laid over DeepSpeed's JSON as they are."""

    stage: int
    bf16: bool
    optimizer_at: str = "none"
    parameters_at: str = "none"
    decay: bool = False
    world: int = 2
    model: str = "llama"
    accumulation: int = 2
    zero: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    trained: str = ""
    """What is trained of the model, a name of `TRAINED`; all of it by default."""

    def __str__(self) -> str:
        parts = [f"{self.world}x{self.model}", f"stage{self.stage}", "bf16" if self.bf16 else "fp32"]
        parts += [f"{self.optimizer_at}-{self.parameters_at}", "decay" if self.decay else ""]
        parts += [self.trained]
        parts += [f"accumulate{self.accumulation}" if self.accumulation != 2 else ""]
        parts += [f"{key}{value}" for key, value in self.zero.items()]
        parts += [f"{key}.{list(value)[-1]}" for key, value in self.more.items() if key != "optimizer"]
        parts += [name for name, more in _OPTIMIZERS.items() if self.more == more]
        return "-".join(part for part in parts if part)

    def config(self) -> dict[str, Any]:
        """DeepSpeed's JSON."""
        zero: dict[str, Any] = {"stage": self.stage, "reduce_bucket_size": 50000, "sub_group_size": 40000}
        zero |= {"stage3_param_persistence_threshold": 100}
        if self.optimizer_at != "none":
            path = {"nvme_path": "."} if self.optimizer_at == "nvme" else {}  # the worker puts its own folder there
            zero["offload_optimizer"] = {"device": self.optimizer_at, **path}
        if self.parameters_at != "none":
            zero["offload_param"] = {"device": self.parameters_at}
        return {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": self.accumulation,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
            "zero_optimization": zero | self.zero,
            "bf16": {"enabled": self.bf16},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            **self.more,
        }

    def settings(self) -> PlanSettings:
        """What the planner sees."""
        config = self.config()
        raw = {key: value for key, value in self.more.items() if key in _RAW}
        if "bf16" in self.more:
            raw["bf16"] = {key: value for key, value in self.more["bf16"].items() if key != "enabled"}
        fields = {key for key in config["zero_optimization"] if key in _ZERO_FIELDS}
        zero = {key: config["zero_optimization"][key] for key in fields}
        rest = {key: value for key, value in config["zero_optimization"].items() if key not in fields}
        spec = RunSpec.model_validate(
            {
                "train": {"per_device_train_batch_size": 1, "gradient_accumulation_steps": self.accumulation},
                "data": {"max_length": 16},
                "optimizer": {"weight_decay": 0.1 if self.decay else 0.0},
                "precision": {"bf16": self.bf16},
                "zero": zero,
                "launch": {"num_gpus": self.world},
                "deepspeed": {**raw, **({"zero_optimization": rest} if rest else {})},
            }
        )
        settings = settings_of(resolve_run(spec))
        if settings is None:
            raise ValueError(str(self))
        # of DeepSpeed without the harness
        return replace(
            settings,
            separate_offload_grads=self.optimizer_at != "none",
            keeps_first_step_states=True,
            trainable=TrainableChoice.from_spec(self.model_spec()),
        )

    def model_spec(self) -> ModelSpec:
        """The section of a spec that says what is trained."""
        return ModelSpec.model_validate({"name_or_path": "x", **TRAINED[self.trained]}, strict=False)

    def facts(self) -> ModelFacts:
        """The model's sizes."""
        facts = facts_from_config(MODELS[self.model]).facts
        if facts is None:
            raise ValueError(self.model)
        return facts

    def rows(self) -> list[MemoryItem]:
        """The planner's rows."""
        settings = self.settings()
        return model_state_items(settings, partition_model(self.facts(), settings))


_RAW = frozenset(("data_types", "communication_data_type", "optimizer", "torch_autocast"))
_ZERO_FIELDS = frozenset(RunSpec.model_fields["zero"].annotation.model_fields)  # type: ignore[union-attr]


def draw_trained() -> list[Case]:
    """Adapters, frozen and trained parts of a few models, each at every place: a draw of 28."""
    draw, names = random.Random(30), [name for name in TRAINED if name]  # noqa: S311
    cases: list[Case] = []
    while len(cases) < 28:
        stage, optimizer_at, parameters_at = _PLACES[len(cases) % len(_PLACES)]
        model, trained = draw.choice(("llama", "tied", "uneven", "gpt2", "gemma2")), draw.choice(names)
        if model == "gpt2" and trained not in ("attention", "lora", "lora-all"):
            continue  # the others name modules of Llama
        if model == "tied" and trained == "lora-saved":
            continue  # `peft` unties the head
        bf16, decay = draw.random() < 0.7, draw.random() < 0.3
        case = Case(
            stage,
            bf16,
            optimizer_at,
            parameters_at,
            decay,
            model=model,
            trained=trained,
            accumulation=draw.choice((1, 2)),
        )
        if str(case) not in map(str, cases):
            cases.append(case)
    return cases


CASES = [
    # 2 ranks: stages, precisions, places
    *(Case(stage, bf16) for stage in (0, 1, 2, 3) for bf16 in (False, True)),
    Case(2, bf16=True, decay=True),
    Case(3, bf16=True, decay=True),
    *(Case(stage, bf16=True, optimizer_at="cpu") for stage in (1, 2, 3)),
    *(Case(stage, bf16=False, optimizer_at="cpu") for stage in (2, 3)),
    Case(3, bf16=True, optimizer_at="cpu", parameters_at="cpu"),
    Case(3, bf16=True, parameters_at="cpu"),
    # frozen parameters
    *(Case(stage, bf16=True, trained="frozen") for stage in (0, 1, 2, 3)),
    Case(2, bf16=True, optimizer_at="cpu", trained="frozen"),
    *(Case(3, bf16=True, optimizer_at="cpu", parameters_at="cpu", trained=trained) for trained in ("frozen", "lora")),
    *draw_trained(),
    # precision policies
    Case(2, bf16=True, more=FP32_SUMS),
    Case(3, bf16=True, more=FP32_SUMS),
    Case(2, bf16=True, optimizer_at="cpu", more=FP32_SUMS),
    Case(3, bf16=True, optimizer_at="cpu", more=FP32_SUMS),
    Case(2, bf16=True, more=LEAN),
    Case(3, bf16=True, more=LEAN),
    Case(2, bf16=True, optimizer_at="cpu", more=LEAN),
    Case(3, bf16=True, optimizer_at="cpu", more=LEAN),
    Case(3, bf16=True, optimizer_at="cpu", more=LEAN_MASTER),
    # optimizers
    Case(2, bf16=True, more=SGD),
    Case(3, bf16=True, more=SGD),
    Case(3, bf16=True, more=PLAIN_SGD),
    *(Case(stage, bf16=True, optimizer_at="cpu", more=LION) for stage in (1, 3)),
    *(Case(stage, bf16=True, more=ADAGRAD) for stage in (1, 2, 3)),
    *(Case(stage, bf16=True, optimizer_at="cpu", more=ADAGRAD) for stage in (2, 3)),
    *(Case(stage, bf16=True, more=more) for stage in (2, 3) for more in (RMSPROP, ADAFACTOR)),
    *(Case(stage, bf16=True, decay=decay, more=MUON) for stage, decay in ((1, False), (2, True))),
    Case(3, bf16=True, more=MUON, zero={"reduce_scatter": False}),
    Case(3, bf16=True, optimizer_at="cpu", more=MUON, zero={"reduce_scatter": False}),
    # autocast, which communicates in two formats
    *(Case(stage, bf16=False, more=AUTOCAST) for stage in (1, 2, 3)),
    Case(3, bf16=False, optimizer_at="cpu", more=AUTOCAST),
    Case(2, bf16=False, optimizer_at="cpu", more=AUTOCAST, zero={"overlap_comm": True}),
    *(Case(0, bf16=bf16, more=more) for bf16 in (False, True) for more in (ADAGRAD, SGD)),
    Case(0, bf16=False, more=RMSPROP),
    Case(1, bf16=True, optimizer_at="cpu", accumulation=3),
    Case(1, bf16=True, optimizer_at="cpu", accumulation=1),
    Case(3, bf16=True, zero={"contiguous_gradients": False}),
    Case(2, bf16=True, zero={"contiguous_gradients": False}),
    # accumulation, buckets, thresholds, ZeRO++
    Case(2, bf16=True, optimizer_at="cpu", accumulation=1),
    Case(3, bf16=True, optimizer_at="cpu", accumulation=1),
    Case(2, bf16=True, zero={"overlap_comm": True}),
    Case(2, bf16=True, zero={"reduce_bucket_size": 20000}),
    Case(3, bf16=True, zero={"stage3_param_persistence_threshold": 10000}),
    Case(3, bf16=True, zero={"sub_group_size": 7000, "reduce_bucket_size": 30000}),
    Case(3, bf16=True, zero={"zero_hpz_partition_size": 2}),
    # NVMe, where DeepSpeed can build its aio
    *(
        [
            Case(3, bf16=True, optimizer_at="nvme", model="wide", decay=decay, zero={"sub_group_size": size})
            for size, decay in ((400_000, False), (10**9, False), (10**9, True))  # with decay: norms are a small group
        ]
        if can_link_libaio()
        else []
    ),
    Case(1, bf16=True, more=FP32_SUMS),  # the last of its ranks: this optimizer is freed late
    # 3 ranks: nothing divides
    *(Case(stage, bf16=True, world=3, model="uneven") for stage in (0, 1, 2, 3)),
    Case(2, bf16=True, optimizer_at="cpu", world=3, model="uneven", decay=True),
    Case(3, bf16=True, optimizer_at="cpu", world=3, model="uneven", decay=True),
    Case(3, bf16=False, world=3, model="gpt2"),
    # 4 ranks, other architectures
    Case(1, bf16=True, world=4, model="tied"),
    Case(2, bf16=True, world=4, model="tied"),
    Case(3, bf16=True, world=4, model="tied", decay=True),
    Case(2, bf16=True, optimizer_at="cpu", world=4, model="gpt2", decay=True),
    Case(3, bf16=True, optimizer_at="cpu", world=4, model="gpt2"),
    Case(2, bf16=True, world=4, model="gemma2"),
    Case(3, bf16=True, world=4, model="gemma2"),
    Case(2, bf16=True, world=4, model="experts"),
    Case(3, bf16=True, world=4, model="experts", optimizer_at="cpu", parameters_at="cpu"),
    Case(3, bf16=True, world=4, zero={"zero_hpz_partition_size": 2}),
]
CASES = [
    case for case in {str(case): case for case in CASES}.values() if "lora" not in case.trained or find_spec("peft")
]


def kinds_of(case: Case) -> set[str]:
    """A stage with each place and format, policy or optimizer; a part that is trained; a key; a model on so many ranks."""
    place = f"stage {case.stage}, {case.optimizer_at}, {case.parameters_at}"
    more = json.dumps(case.more, sort_keys=True)
    kinds = {f"{place}, bf16 {case.bf16}", f"{place}, accumulation {case.accumulation}", f"stage {case.stage}, {more}"}
    kinds |= {f"stage {case.stage}, decay {case.decay}", f"trained {case.trained}", *map(str, case.zero.items())}
    return kinds | {f"{case.world} ranks, {case.model}"}


def cases_by_day() -> frozenset[str]:
    """The names of cases of which one has each kind, found greedily: they see the mutants that all cases see
    (benchmarks/results/tests-by-day-counts-2026-11-28.md).
    """
    chosen: list[Case] = []
    left = set().union(*map(kinds_of, CASES))
    while left:
        chosen.append(max(CASES, key=lambda case: len(kinds_of(case) & left)))
        left -= kinds_of(chosen[-1])
    return frozenset(map(str, chosen))


WORLDS = sorted({case.world for case in CASES})
