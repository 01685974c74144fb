# SPDX-License-Identifier: Apache-2.0
"""The table of models: what it must say of known families, and when it does not count."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.model_table_text import IN_TABLE, table_lines
from harness.facts import language_model, model_table
from harness.facts.model_catalogue import CATALOGUE, catalogue_config
from harness.facts.model_families import FAMILIES
from harness.hostinfo.model_answers import QUESTIONS, ModelAnswers, unknown_answers
from harness.views.models_page import render_page

ROOT = Path(__file__).parents[2]
LEAKING = (
    "qwen3_5_text qwen3_5_moe_text nemotron_h granitemoehybrid bamba jamba kimi_linear lfm3 olmo_hybrid deepseek_v4"
)
CLEAN = (
    "arcee cohere cohere2 deepseek_v3 ernie4_5 exaone4 falcon gemma gemma2 gemma3 glm glm4 gpt2 gpt_neox gptj granite"
)
CLEAN += " llama mistral mixtral olmo2 phi3 qwen2 qwen3 qwen3_moe smollm3 starcoder2"


@pytest.mark.parametrize("family", LEAKING.split())
def test_a_family_that_mixes_documents_is_refused(family: str) -> None:
    assert model_table.holds(family, "apart") is False
    assert model_table.holds(family, "sequence") is False
    assert model_table.holds(family, "pipeline") is False


def test_clean_families_are_not_refused() -> None:
    assert len(CLEAN.split()) >= 25
    assert [family for family in CLEAN.split() if not model_table.holds(family, "apart")] == []


def test_every_answer_has_a_reason() -> None:
    for name in model_table.read_table().types:
        row = model_table.find_row(name)
        assert row is not None
        for question in (*QUESTIONS[:-1], "planned"):
            assert row.answer_to(question).reason, (name, question)


def test_families_with_a_formula_are_planned_exactly() -> None:
    wrong = [name for name in FAMILIES if model_table.holds(name, "planned") is False]
    assert wrong == []


def test_every_model_of_the_catalogue_has_a_row() -> None:
    types = {str((catalogue_config(name) or {}).get("model_type")) for name in CATALOGUE}
    assert sorted(kind for kind in types if model_table.find_row(kind) is None) == []


def test_fused_experts_are_told_from_linear_layers() -> None:
    row = model_table.find_row("deepseek_v3")
    assert row is not None
    assert all(".experts." in name for name in row.answer_to("lora").names)
    assert any(".experts." in name for name in row.answer_to("qlora").names)


def test_answers_that_follow_from_others() -> None:
    assert model_table.tensor_plan("llama")["layers.*.self_attn.k_proj"] == "colwise"
    mixture, composite = model_table.find_row("mixtral"), model_table.find_row("kimi_k25")
    assert mixture is not None
    assert composite is not None
    assert mixture.answer_to("qlora").names == mixture.answer_to("lora").names != ()
    styles = [*model_table.tensor_plan("mixtral")]
    assert str(styles) in mixture.answer_to("tensor").reason == composite.answer_to("tensor").reason
    assert model_table.tensor_plan("kimi_k25") == {}


@pytest.fixture
def _release_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_table, "package_version", model_table.read_table().releases.get)


@pytest.mark.usefixtures("_release_of_the_table")
def test_another_release_or_other_layers_ask_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"model_type": "llama"}
    assert language_model.answers_at_hand(config, ("apart",)) is not None
    assert language_model.answers_at_hand({**config, "layer_types": ["conv"]}, ("apart",)) is None
    assert language_model.answers_at_hand({"model_type": "lfm2", "full_attn_idxs": [2]}, ("apart",)) is None
    known = language_model.answers_at_hand({"model_type": "qwen3_next", "linear_num_value_heads": 8}, ("apart",))
    assert known is not None
    assert known.apart is False
    monkeypatch.setattr(model_table, "package_version", lambda _: "6.0.0")
    assert language_model.answers_at_hand(config, ("apart",)) is None
    assert language_model.answers_at_hand(config) is not None
    monkeypatch.setattr(model_table, "package_version", lambda _: None)
    assert language_model.answers_at_hand(config, ("apart", "sequence")) is not None


@pytest.mark.usefixtures("_release_of_the_table")
def test_a_composite_with_another_text_model_is_asked() -> None:
    def at_hand(kind: str | None) -> ModelAnswers | None:
        text = {} if kind is None else {"model_type": kind}
        return language_model.answers_at_hand({"model_type": "internvl", "text_config": text}, ("apart",))

    assert at_hand(None) == at_hand("qwen3")
    assert at_hand(None) is not None
    for kind in ("qwen3_5_text", "mamba2", "brand_new"):
        assert at_hand(kind) is None, kind


def test_the_page_is_written() -> None:
    assert (ROOT / "docs/models.md").read_text(encoding="utf-8") == "\n".join(render_page()) + "\n"


def test_the_file_is_what_its_writer_makes_of_it() -> None:
    table = model_table.read_table()
    rows = {name: model_table.find_row(name) or unknown_answers("") for name in table.types}
    answers = {
        name: {q: [a.holds, a.reason, [*a.names]] for q in IN_TABLE for a in [row.answer_to(q)]}
        for name, row in rows.items()
    }
    plans = {name: dict(model_table.tensor_plan(name)) for name, row in rows.items() if row.causal}
    lines = [*table_lines(dict(table.head), answers, [*table.cells["dropout"]], plans)]
    assert "\n".join(lines) + "\n" == (ROOT / "harness/facts/model_table.txt").read_text(encoding="utf-8")
    assert len(lines) < 380
    assert max(map(len, lines)) < 300
