# SPDX-License-Identifier: Apache-2.0
"""AutoTP's parts of models, counted on live engines of two ranks and on real models on the meta device. A minute.

Every family, heads tied and untied, uneven sizes, presets and plans of one's own: the planner's shapes are the engine's,
and what the gates say of a model is what its first step does.
"""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from deepspeed.module_inject.autotp_config import AutoTPPresets
from deepspeed.module_inject.tp_plan_converter import SUPPORTED_STYLES
from deepspeed.runtime.tensor_parallel.config import _get_hf_tp_plan

from harness.facts import model_table
from harness.facts.model_catalogue import CATALOGUE, catalogue_config
from harness.facts.model_families import FAMILIES
from harness.facts.model_lookup import facts_from_config
from harness.facts.tensor_parallel_plans import GUESSED_SPECS, KNOWN_STYLES, PRESET_SPECS
from harness.plan.memory.zero_partitions import local_num_parameters, partition_model
from harness.plan.weights.layer_specs import convert_transformers_plan, find_spec, role_of
from harness.plan.weights.tensor_shard import TensorPlanChoice, shard_model
from tests.support.plan_inputs import settings
from tests.support.tensor_cases import CASES, EXPERTS, UNTIED, Case, choice_of, tensor_gates
from tests.support.training.forked_ranks import ForkedRanks

JOBS = Path(__file__).parents[1] / "jobs"
EACH_CASE = pytest.mark.parametrize("index", range(len(CASES)), ids=[f"{i}-{c.name}" for i, c in enumerate(CASES)])
RUN_FAMILIES = sorted(
    family
    for family in FAMILIES
    if (facts := facts_from_config({"model_type": family, "num_hidden_layers": 1}).facts) and not facts.counted_only
)
"""Those that the harness trains; of the others the parameters alone are known."""
REFUSED = {"TP006", "TP007", "TP017", "TP026"}
WRONG = {"TP009", "TP010", "TP024", "TP025"}
"""Gates of runs that are built, and whose first step fails or has wrong gradients."""


def _run_job(forked: ForkedRanks, job: str, cases: list[dict[str, Any]], folder: Path) -> list[list[Any]]:
    """What each rank wrote, case by case."""
    (folder / "cases.json").write_text(json.dumps(cases))
    forked.run(JOBS / job, str(folder / "cases.json"), str(folder))
    (folder / "cases.json").unlink()
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]


@pytest.fixture(scope="module")
def ranks(forked: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    cases = [{"config": case.config, "plan": dict(case.plan), "stage": case.stage} for case in CASES]
    return _run_job(forked, "tensor_shards.py", cases, tmp_path_factory.mktemp("shards"))


def test_every_family_is_counted() -> None:
    assert {case.family for case in CASES} == set(RUN_FAMILIES)


@EACH_CASE
def test_the_planned_shapes_are_those_of_both_ranks(index: int, ranks: list[list[dict[str, Any]]]) -> None:
    case, shard = CASES[index], CASES[index].shard
    for rank, answers in enumerate(ranks):
        if set(case.gates.split()) & REFUSED:
            assert "error" in answers[index], f"DeepSpeed built it: {case.gates}"
            assert bool(shard.refusal) == (case.gates != "TP017")
            continue
        assert not shard.refusal
        assert "error" not in answers[index], answers[index]
        planned = {parameter.name: list(parameter.shape) for parameter in shard.local_parameters(rank)}
        assert planned == answers[index]["shapes"]
    if "shapes" in ranks[0][index]:
        first, second = (sum(map(prod, answers[index]["shapes"].values())) for answers in ranks)
        run = settings(
            case.config, 2, parallel={"tensor_parallel_size": 2}, deepspeed={"tensor_parallel": dict(case.plan)}
        )
        assert local_num_parameters(case.facts, run) == first >= second


@EACH_CASE
def test_zero_divides_what_autotp_has_left(index: int, ranks: list[list[dict[str, Any]]]) -> None:
    case, live = CASES[index], ranks[0][index]
    if not case.stage:
        return
    run = settings(
        case.config,
        2,
        parallel={"tensor_parallel_size": 2},
        deepspeed={"tensor_parallel": dict(case.plan)},
        optimizer={"weight_decay": 0.0},
        zero={"stage": case.stage},
    )
    assert partition_model(case.facts, run).partition_size == live["partition"]


@EACH_CASE
def test_the_first_step_is_what_the_gates_say(index: int, ranks: list[list[dict[str, Any]]]) -> None:
    case = CASES[index]
    expected = set(case.gates.split())
    assert tensor_gates(case) == expected
    for answers in ranks:
        step = answers[index].get("step")
        if "error" in answers[index] or step is None:
            assert step is None
            assert bool(expected & REFUSED) == ("error" in answers[index])
            continue
        is_right = "error" not in step and not step["wrong"]
        assert is_right == (not expected & WRONG), step
        assert "loss" not in step or step["loss"] == pytest.approx(step["whole_loss"], rel=1e-5)
    if not case.shard.refusal:
        assert case.shard.is_useful or expected & (WRONG | {"TP022"})


def test_wrong_gradients_are_those_that_the_gate_names(ranks: list[list[dict[str, Any]]]) -> None:
    index = next(i for i, case in enumerate(CASES) if case.gates == "TP025" and "step" in ranks[0][i])
    wrong = ranks[0][index]["step"]["wrong"]
    assert "model.layers.0.self_attn.kv_a_proj_with_mqa.weight" in wrong
    assert "model.embed_tokens.weight" in wrong
    assert "lm_head.weight" not in wrong


@EACH_CASE
def test_the_all_reduces_of_a_step_are_counted(index: int, ranks: list[list[dict[str, Any]]]) -> None:
    step = ranks[0][index].get("step", {})
    if "reduced" in step:
        assert step["reduced"] == list(CASES[index].shard.reduced_width)


def test_what_every_rank_multiplies() -> None:
    gpt_oss = Case("gpt_oss", {**EXPERTS, **UNTIED}).shard
    head, layers = 128 * 48, sum(p.numel for p in gpt_oss.model.layers[0] if len(p.shape) == 2 and "bias" not in p.name)
    experts = sum(p.numel for p in gpt_oss.model.layers[0] if len(p.shape) == 3)
    multiplied = 2 * (layers + experts / 2)
    assert gpt_oss.repeated_share == pytest.approx(multiplied / (multiplied + head))
    mixtral = Case("mixtral", {**EXPERTS, **UNTIED}, plan={"preset_model": "mixtral"}).shard
    assert mixtral.divides_layers
    assert not mixtral.divides_mlp
    assert (mixtral.head, gpt_oss.head) == ("whole", "gathered")


@pytest.mark.parametrize("family", RUN_FAMILIES)
def test_plans_are_those_of_the_installed_transformers(family: str) -> None:
    case = next(case for case in CASES if case.family == family)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**case.config))
    shipped = {name: style for name, style in (_get_hf_tp_plan(model) or {}).items() if style != "embedding_rowwise"}
    ours = model_table.tensor_plan(family)
    unknown = {*shipped.values()} - KNOWN_STYLES  # of a plan that DeepSpeed refuses, the table has these alone
    assert {*ours.values()} == (unknown or {*shipped.values()})
    assert bool(shipped) != (family in GUESSED_SPECS or family == "gpt2")
    theirs, mine = convert_transformers_plan(shipped), convert_transformers_plan(ours)
    for name, parameter in model.named_parameters() if not unknown else ():
        if parameter.dim() == 2:
            pair = [find_spec(specs, name, family) for specs in (theirs, mine)]
            assert len({None if spec is None else role_of(spec) for spec in pair}) == 1, name


def test_presets_and_styles_are_those_of_deepspeed() -> None:
    assert KNOWN_STYLES == SUPPORTED_STYLES
    for name, specs in PRESET_SPECS.items():
        preset = AutoTPPresets.get_preset(name)
        assert preset is not None
        theirs = [(spec.patterns, spec.partition_type.value, spec.shape) for spec in preset.layer_specs]
        mine = [
            (spec["patterns"], spec["partition_type"], tuple(spec["shape"]) if "shape" in spec else None)
            for spec in specs
        ]
        assert mine == theirs


WHOLE = {"openai/gpt-oss-120b", "mistralai/Mixtral-8x7B-v0.1", "Qwen/Qwen3-30B-A3B"}
PRESETS_OF_FAMILIES = {"mixtral": "mixtral", "qwen2_moe": "qwen2", "qwen3_moe": "qwen2", "deepseek_v3": "deepseek_v2"}


def _is_run(config: dict[str, Any]) -> bool:
    facts = facts_from_config(config).facts
    return facts is not None and not facts.counted_only


def _shorten(config: dict[str, Any]) -> dict[str, Any]:
    if "text_config" in config:
        return {**config, "text_config": _shorten(config["text_config"])}
    key = "n_layer" if "n_layer" in config else "num_hidden_layers"
    return {**config, key: min(5, config.get(key, 5)), "layer_types": None}


def test_real_models_at_tp_8_are_divided_as_planned(
    forked: ForkedRanks, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Every configuration of the catalogue once, on the first and the last of 8 ranks, by DeepSpeed's own code. All of
    the layers of `WHOLE`, the first five of the others.
    """
    configs = {id(config): (name, dict(config)) for name, config in reversed(CATALOGUE.items())}
    configs = {key: pair for key, pair in configs.items() if _is_run(pair[1])}
    chosen = [
        (name, config if name in WHOLE else _shorten(config), {"preset_model": preset} if preset else {})
        for name, config in configs.values()
        for preset in {None, PRESETS_OF_FAMILIES.get(config["model_type"])}
    ]
    assert {name for name, _, _ in chosen} >= WHOLE
    cases = [{"config": config, "plan": plan} for _, config, plan in chosen]
    answers = _run_job(forked, "tensor_shards_meta.py", cases, tmp_path_factory.mktemp("meta"))
    for (name, config, plan), *shapes in zip(chosen, *answers, strict=True):
        facts = facts_from_config(config).facts
        assert facts is not None
        shard = shard_model(facts, 8, choice_of(plan))
        for rank, live in zip((0, 7), shapes, strict=True):
            if isinstance(live, str):
                assert shard.refusal, f"{name}: {live}"
                continue
            planned = {parameter.name: list(parameter.shape) for parameter in shard.local_parameters(rank)}
            assert planned == live, name
            assert not shard.refusal


@pytest.mark.parametrize(
    ("name", "preset", "billions"),
    [
        ("openai/gpt-oss-120b", "", 116.322),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral", 45.528),
        ("Qwen/Qwen3-30B-A3B", "qwen2", 29.853),
    ],
)
def test_what_a_rank_of_8_holds_of_the_models_that_autotp_hardly_divides(
    name: str, preset: str, billions: float
) -> None:
    config = catalogue_config(name)
    assert config is not None
    facts = facts_from_config(config).facts
    assert facts is not None
    shard = shard_model(facts, 8, TensorPlanChoice(preset))
    assert sum(p.numel for p in shard.local_parameters()) / 1e9 == pytest.approx(billions, abs=1e-3)
