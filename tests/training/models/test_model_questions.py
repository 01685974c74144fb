# SPDX-License-Identifier: Apache-2.0
"""The answers of small copies: those of a child process are the table's, and runs show that they are right.

All types at night, a few in CI; a type takes three to six seconds, two runs as long.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.model_table import FIELDS
from benchmarks.model_table_runs import WAYS, draw, look_at_run, losses_of, write_model
from harness.facts import model_table
from harness.hostinfo import model_answers
from harness.hostinfo.model_answers import QUESTIONS
from harness.runtime.model_behavior import build_small_copy
from harness.runtime.model_questions import adapted_layers, small_copy, tensor_plan
from harness.runtime.model_questions.rank_pair import MachineError, ask_ranks, find_error
from harness.runtime.text_part import find_text_part
from tests.support.training.forked_ranks import ForkedRanks

NIGHTLY = os.environ.get("HARNESS_NIGHTLY") == "1"
CAUSAL = [name for name in model_table.read_table().types if model_table.holds(name, "causal")]


RUNS = [
    (way, kind) for way in WAYS if way != "alone" for answer in (True, False) for kind in draw(way, answer=answer)[:10]
]
"""Ten drawn types of each answer to each question that a run can show."""
DRAWN = CAUSAL if NIGHTLY else random.Random(1).sample(CAUSAL, 1)  # noqa: S311


@pytest.mark.parametrize("family", DRAWN)
def test_a_child_answers_once_what_the_table_says(family: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model_answers._ask.cache_clear()
    config = {"model_type": family, **FIELDS.get(family, {})}
    answers = model_answers.ask_installed_model(config)
    asked = QUESTIONS[:-1]  # the table has no sizes, which nothing reads
    found = {question: answers.answer_to(question).holds for question in asked}
    assert found == {question: model_table.holds(family, question) for question in asked}
    (kept,) = model_answers.cache_dir().glob("*.json")
    sources = {Path(name).name for name in json.loads(kept.read_text())["sources"]}
    assert {"text_part.py", "packed_kernels.py", "tiny_config.py", "sequence_parallel.py", "lora.py"} <= sources
    monkeypatch.setattr(model_answers, "_run_worker", lambda _: pytest.fail("asked again"))
    model_answers._ask.cache_clear()
    assert model_answers.ask_installed_model(config) == answers
    model_answers._ask.cache_clear()


@pytest.mark.parametrize(("way", "family"), RUNS if NIGHTLY else [("pipeline", "smollm3"), ("apart", "opt")])
def test_a_run_shows_what_the_table_says(way: str, family: str, forked: ForkedRanks, tmp_path: Path) -> None:
    write_model(family, tmp_path / "model")
    alone = losses_of("alone", tmp_path / "model", tmp_path, forked)
    if isinstance(alone, str):
        pytest.skip(f"this type does not train here: {alone[-200:]}")
    outcome = look_at_run(way, tmp_path / "model", tmp_path, alone, forked)
    assert outcome.holds is model_table.holds(family, way), outcome


def test_ranks_that_reach_no_peer_say_nothing_of_a_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "none0")
    with pytest.raises(MachineError):
        ask_ranks(lambda _: {}, 2, tmp_path)
    assert find_error([{"error": "gloo: closed"}, {"error": "KeyError: 'head'"}]) == "KeyError: 'head'"


@pytest.mark.parametrize("names", [(), ("layers.0.q",)])
def test_weights_that_were_not_found_are_no_yes(names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapted_layers, "layer_matrices", lambda _: [(name, None) for name in names])
    monkeypatch.setattr(adapted_layers, "ask_ranks", lambda *_: [{"whole": [], "trains": True}])
    small: Any = SimpleNamespace(saved=Path(), model=None, folder=Path())
    assert adapted_layers.ask_in_4_bits(small).holds is (True if names else None)


@pytest.mark.parametrize(("family", "names"), [("hrm_text", ["L_module", "H_module"]), ("longcat_flash", ["0", "1"])])
def test_layers_that_no_number_of_layers_counts_are_found(family: str, names: list[str]) -> None:
    fields = {"num_layers": 2} if family == "longcat_flash" else {"num_hidden_layers": 1}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **fields))
    found = [path for path, _ in small_copy.find_layers(model)]
    assert len(found) == 2
    assert all(name in path for name, path in zip(names, found, strict=True)), found


def test_weights_that_layers_share_are_listed_once() -> None:
    model = build_small_copy(AutoConfig.for_model("zamba2"))
    assert {name for name, _ in small_copy.layer_matrices(model)} <= {name for name, _ in model.named_parameters()}


def test_a_copy_is_saved_with_a_configuration_that_its_class_takes(tmp_path: Path) -> None:
    small = small_copy.SmallCopy(build_small_copy(AutoConfig.for_model("mllama")), apart=True, folder=tmp_path)
    assert AutoConfig.from_pretrained(small.saved).model_type == "mllama"


def test_a_composite_with_a_tuple_of_end_tokens_has_a_text_part() -> None:
    config = AutoConfig.for_model("qwen3_asr")
    assert isinstance(config.eos_token_id, tuple)
    assert find_text_part(config).config is not None


@pytest.mark.parametrize("holds", [True, False])
def test_gradients_that_differ_in_fp32_are_compared_in_fp64(holds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    formats = []

    def find(model: Any) -> tuple[float, dict[str, Any]]:
        formats.append(next(model.parameters()).dtype)
        return 1.0, {}

    def compare(*_: Any) -> list[dict[str, Any]]:
        return [{"whole": [], "loss": 1.0, "wrong": [] if len(formats) == 2 and holds else ["weight"]}]

    monkeypatch.setattr(small_copy, "loss_and_gradients", find)
    monkeypatch.setattr(tensor_plan, "layer_matrices", lambda model: model.named_parameters())
    monkeypatch.setattr(tensor_plan, "ask_ranks", compare)
    model = torch.nn.Linear(2, 2)
    assert tensor_plan.ask(small_copy.SmallCopy(model, apart=True, folder=Path())).holds is holds
    assert (formats, model.weight.dtype) == ([torch.float32, torch.float64], torch.float32)
