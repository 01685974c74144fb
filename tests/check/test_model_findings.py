# SPDX-License-Identifier: Apache-2.0
"""A model that is no causal language model, or that mixes packed documents: refused before a launch, by asking it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.check.check_file import check_file
from harness.check.machine_findings import check_for_plan, with_machine_findings
from harness.check.model_findings import check_model_kind
from harness.convert.conversion import convert_file
from harness.errors import UserError
from harness.facts import language_model, model_table
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.findings import Finding
from harness.hostinfo import model_answers, model_probe
from harness.hostinfo.model_answers import ModelAnswers, ask_installed_model, cache_dir
from harness.spec.run_spec import RunSpec

LEAKING = "qwen3_5_text qwen3_5_moe_text nemotron_h granitemoehybrid bamba jamba kimi_linear lfm3 olmo_hybrid"
LEAKING += " deepseek_v4 qwen3_5 qwen3_5_moe"
SPEC = "data: {{train: builtin:python-docs, packing: {packing}}}\ntrain: {{max_steps: 2, per_device_train_batch_size: 1}}\n"
APART = ModelAnswers(True, "", True, "")


def findings_of(config: dict[str, Any], *, packing: bool = False, here: bool = True) -> dict[str, Finding]:
    text = f"model: {{config: {json.dumps(config)}, tokenizer: bytes}}\n" + SPEC.format(packing=str(packing).lower())
    checked = check_file("spec.yaml", text=text, launching=here, default_world_size=1, look_at_paths=True)
    report = with_machine_findings(checked, here=here).report
    return {f.gate: f for f in report.findings if f.gate in ("MD020", "MD164")}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The configurations that a model was asked about; the answer is that of the last item, which a test may set. No
    process builds a model to count its parameters, 4 CPU seconds each: they are estimated.
    """
    calls: list[Any] = [APART]

    def answer(config: Any) -> ModelAnswers:
        calls.insert(0, dict(config))
        return calls[-1]

    monkeypatch.setattr(language_model, "ask_installed_model", answer)
    monkeypatch.setattr(model_probe, "_run_program", lambda _: None)
    return calls


@pytest.mark.parametrize("family", LEAKING.split())
def test_packing_of_a_family_that_mixes_documents_is_refused(family: str, asked: list[Any]) -> None:
    assert findings_of({"model_type": family}, packing=True)["MD020"].severity == "error"
    assert not findings_of({"model_type": family})
    assert asked == [APART], "these are known"


def test_unknown_types_are_asked_and_known_ones_are_not(asked: list[Any]) -> None:
    assert not findings_of({"model_type": "llama"}, packing=True)
    assert asked == [APART]
    assert not findings_of({"model_type": "brand_new"}, packing=True)
    assert asked[0] == {"model_type": "brand_new"}


@pytest.mark.parametrize("field", [{"use_bidirectional_attention": True}, {"is_causal": False}, {"is_decoder": True}])
def test_a_field_that_chooses_how_a_known_family_attends_is_asked_about(
    field: dict[str, Any], asked: list[Any]
) -> None:
    asked[-1] = ModelAnswers(False, "later tokens", False, "later tokens")
    assert findings_of({"model_type": "gemma3_text", **field})["MD164"].severity == "error"
    assert asked[0]["model_type"] == "gemma3_text"


@pytest.mark.parametrize(
    ("fields", "spec", "severity"),
    [
        ({"is_encoder_decoder": True}, {}, "error"),
        ({"is_encoder_decoder": True}, {"random_init": True}, "warning"),
        ({"is_encoder_decoder": False, "is_decoder": True}, {}, ""),
    ],
)
def test_an_encoder_decoder_is_told_from_its_decoder(
    fields: dict[str, Any], spec: dict[str, Any], severity: str, asked: list[Any], tmp_path: Path
) -> None:
    """The ranks would find no embeddings (MD150), which both parts share."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mvp", **fields}))
    model = {"name_or_path": str(tmp_path), **spec}
    assert [f.severity for f in check_model_kind(RunSpec.model_validate({"model": model}))] == [severity] * bool(
        severity
    )
    assert asked[0]["model_type"] == "mvp"


def test_an_encoder_is_an_error_for_every_command(asked: list[Any], tmp_path: Path) -> None:
    asked[-1] = ModelAnswers(False, "later tokens", False, "later tokens")
    for here in (True, False):
        found = findings_of({"model_type": "brand_new"}, here=here)
        assert (found["MD164"].severity, found["MD164"].notes) == ("error", ("later tokens",))
    assert findings_of({"model_type": "bert"})["MD164"].severity == "error"
    assert asked[0]["model_type"] == "brand_new", "the table knows BERT"
    (tmp_path / "m").mkdir()
    (tmp_path / "m/config.json").write_text('{"model_type": "bert"}')
    spec = tmp_path / "spec.yaml"
    spec.write_text(f"model: {{name_or_path: {tmp_path}/m, tokenizer: bytes}}\n" + SPEC.format(packing="false"))
    assert any(f.gate == "MD164" for f in check_for_plan(str(spec), None, None, 1, here=False).report.findings)
    source = tmp_path / "axolotl.yaml"
    source.write_text(f"base_model: {tmp_path}/m\ndatasets: [{{path: d.jsonl, type: chat_template}}]\n")
    with pytest.raises(UserError) as refused:
        convert_file(str(source), DeepSpeedTarget("0.19.8", "asked for"))
    assert refused.value.findings[0].gate == "MD164"


def test_what_is_not_known_is_no_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_answers, "package_version", lambda _: None)
    found = findings_of({"model_type": "brand_new"}, packing=True)
    assert {gate: f.severity for gate, f in found.items()} == {"MD020": "error", "MD164": "warning"}
    assert "only with torch, transformers, deepspeed, not installed here" in found["MD164"].notes[0]
    assert findings_of({"model_type": "brand_new"}).keys() == {"MD164"}
    assert not findings_of({"model_type": "qwen2"}, packing=True)


def test_a_model_that_is_not_here_is_left_to_the_ranks_with_a_line() -> None:
    text = "model: {name_or_path: some/where}\n" + SPEC.format(packing="true")
    checked = check_file("spec.yaml", text=text, default_world_size=1, look_at_paths=True)
    (finding,) = [f for f in with_machine_findings(checked, here=False).report.findings if f.gate == "MD020"]
    assert (finding.severity, "not known" in finding.message) == ("info", True)


@pytest.mark.parametrize(("family", "packing", "kind"), [("qwen3_5", False, "lossy"), ("qwen3", True, "")])
def test_an_adopted_file_packs_only_what_stays_apart(family: str, packing: bool, kind: str, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m/config.json").write_text(json.dumps({"model_type": family}))
    source = tmp_path / "axolotl.yaml"
    lines = f"base_model: {tmp_path}/m\ndatasets: [{{path: d.jsonl, type: chat_template}}]\nsample_packing: true\n"
    source.write_text(lines + "learning_rate: 0.001\n")
    result = convert_file(str(source), DeepSpeedTarget("0.19.8", "asked for"))
    assert result.draft.get("data.packing") is packing
    assert [note.kind for note in result.notes if note.key == "data.packing"] == [kind] * bool(kind)


def test_an_answer_is_kept_until_the_source_of_the_model_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(model_answers, "package_version", lambda _: "1.0")
    source, runs = tmp_path / "modeling.py", []

    def run_worker(text: str) -> dict[str, Any]:
        runs.append(json.loads(text))
        digest = model_answers.hashlib.sha256(source.read_bytes()).hexdigest()
        return {
            "answers": {"causal": [True, "", []], "apart": [False, "it leaks", []]},
            "sources": {str(source): digest},
            "accident": {},
        }

    monkeypatch.setattr(model_answers, "_run_worker", run_worker)
    source.write_text("one")

    def ask(**fields: Any) -> ModelAnswers:
        model_answers._ask.cache_clear()
        return ask_installed_model({"model_type": "brand_new", **fields})

    assert ask().why_apart == "it leaks"
    assert ask(_name_or_path="elsewhere", architectures=["A"]) == ask()
    assert len(runs) == 1
    source.write_text("two")
    ask()
    ask(hidden_size=64)
    assert len(runs) == 3
    assert len(list(cache_dir().iterdir())) == 2
    model_answers._ask.cache_clear()


@pytest.mark.parametrize(
    ("end", "reason", "kept"),
    [
        ("time.sleep(60)", "killed after 0.5 s", False),
        ("os.kill(os.getpid(), signal.SIGKILL)", "its child process ended with -9", False),
        ("os.kill(os.getpid(), signal.SIGXCPU)", "its child process ended with -24", True),
    ],
)
def test_an_accident_is_no_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, end: str, reason: str, kept: bool
) -> None:
    """The end of a child that used up its processor time is one: it would do so again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(model_answers, "package_version", lambda _: "1.0")
    if "sleep" in end:
        monkeypatch.setattr(model_answers, "_TIMEOUT_SECONDS", 0.5)
    line = '{"answers": {"causal": [true, "seen", []]}}'
    code = f"import os, signal, sys, time; open(sys.argv[1] + '/answers', 'w').write('{line}'); {end}"
    starts: list[str] = []

    def command(_: str, folder: str) -> list[str]:
        starts.append(folder)
        return [sys.executable, "-c", code, folder]

    monkeypatch.setattr(model_answers, "python_command", command)
    for _ in range(2):
        model_answers._ask.cache_clear()
        answers = ask_installed_model({"model_type": "brand_new"})
        assert (answers.causal, answers.apart) in [(True, None), (None, None)]
        assert answers.why_apart.startswith(reason)
    assert len(starts) == (1 if kept else 2)
    model_answers._ask.cache_clear()


DEGREES = {
    "sequence_parallel_size": ("qwen3_5_text", "SQ101"),
    "tensor_parallel_size": ("bloom", "TP027"),
    "pipeline_parallel_size": ("jamba", "PP101"),
}


@pytest.mark.parametrize("key", DEGREES)
@pytest.mark.parametrize("known", [True, False])
def test_a_degree_that_a_model_does_not_take_is_refused(key: str, known: bool, asked: list[Any]) -> None:
    family, gate = DEGREES[key]
    asked[-1] = ModelAnswers(True, "", None, "it was killed")
    config = {"model_type": family if known else "brand_new"}
    spec = RunSpec.model_validate({"model": {"config": config}, "parallel": {key: 2}})
    (finding,) = check_model_kind(spec)
    assert (finding.gate, finding.severity, finding.key) == (gate, "error", f"parallel.{key}")
    assert ("not known" in finding.message) is not known
    assert not check_model_kind(
        RunSpec.model_validate({"model": {"config": {"model_type": "llama"}}, "parallel": {key: 2}})
    )


def test_layers_without_an_adapter_are_named() -> None:
    model = {"config": {"model_type": "deepseek_v3"}, "lora": {"target_modules": "all-linear"}}
    (finding,) = check_model_kind(RunSpec.model_validate({"model": model}))
    assert (finding.gate, finding.severity) == ("MD166", "warning")
    assert [note for note in finding.notes if "mlp.experts." in note] == [*finding.notes]


def found_for(config: dict[str, Any], **sections: Any) -> dict[str, Finding]:
    spec = RunSpec.model_validate({"model": {"config": config, **sections.pop("model", {})}, **sections})
    return {finding.gate: finding for finding in check_model_kind(spec)}


@pytest.mark.parametrize(("family", "gates"), [("llama", set()), ("phi3", set()), ("glm", {"PP106"})])
def test_tensor_ranks_inside_stages_are_known_or_refused(family: str, gates: set[str], asked: list[Any]) -> None:
    degrees = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}
    assert found_for({"model_type": family}, parallel=degrees).keys() == gates
    assert asked == [APART], "the table knows"


def test_a_degree_of_a_model_that_may_be_no_language_model_is_refused_too(asked: list[Any]) -> None:
    asked[-1] = ModelAnswers(None, "it was killed", None, "it was killed")
    found = found_for({"model_type": "brand_new"}, parallel={"sequence_parallel_size": 2})
    assert {gate: finding.severity for gate, finding in found.items()} == {"MD164": "warning", "SQ101": "error"}


def test_code_of_its_own_is_no_yes_to_degrees_that_nobody_asks(asked: list[Any]) -> None:
    config = {"model_type": "llama", "auto_map": {"AutoModelForCausalLM": "modeling.Own"}}
    degrees = {"tensor_parallel_size": 2, "sequence_parallel_size": 2}
    for own_code, gates in ((True, {"MD164", "SQ101", "TP027"}), (False, set())):
        assert found_for(config, model={"trust_remote_code": own_code}, parallel=degrees).keys() == gates
    pipeline = found_for(config, model={"trust_remote_code": True}, parallel={"pipeline_parallel_size": 2})
    assert pipeline.keys() == {"MD164"}, "the ranks ask its layers"


def test_code_of_its_own_is_no_silent_yes_to_packing(asked: list[Any], tmp_path: Path) -> None:
    config = {"model_type": "own_brand", "auto_map": {"AutoModelForCausalLM": "modeling.Own"}}
    packed = {"model": {"config": config, "trust_remote_code": True}, "data": {"packing": True}}
    found = {f.gate: f for f in check_model_kind(RunSpec.model_validate(packed))}
    assert (found["MD020"].severity, found["MD020"].notes) == ("warning", found["MD164"].notes)
    assert "the ranks" in found["MD020"].notes[0]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "modeling.py").write_text("")
    source = tmp_path / "axolotl.yaml"
    source.write_text(
        f"base_model: {tmp_path}\ndatasets: [{{path: d.jsonl, type: chat_template}}]\nsample_packing: true\n"
        "trust_remote_code: true\n"
    )
    converted = convert_file(str(source), DeepSpeedTarget("0.19.8", "asked for"))
    assert "packing: true" in converted.text
    assert any("`data.packing`" in note.message and "not known here" in note.message for note in converted.notes)


def test_degrees_of_a_model_that_is_not_here_are_left_to_the_ranks_with_a_line() -> None:
    model, parallel = {"name_or_path": "some/where"}, {"tensor_parallel_size": 2}
    (finding,) = check_model_kind(RunSpec.model_validate({"model": model, "parallel": parallel}))
    assert (finding.gate, finding.severity, finding.key) == ("TP027", "info", "parallel.tensor_parallel_size")


def test_a_plugin_that_builds_no_model_leaves_it_to_be_checked(tmp_path: Path) -> None:
    plugin = tmp_path / "own.py"
    for code, gates in (("def metrics(logits, labels): ...", {"MD020"}), ("def build_model(config, spec): ...", set())):
        plugin.write_text(code)
        found = found_for({"model_type": "jamba"}, data={"packing": True}, plugins={"file": str(plugin)})
        assert found.keys() == gates


def test_the_table_of_another_release_says_so_or_asks(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_table, "package_version", lambda _: "5.31.0")
    assert not found_for({"model_type": "mamba"}, data={"packing": True}), "the installed one keeps documents apart"
    assert asked[0] == {"model_type": "mamba"}
    recompute = found_for({"model_type": "ctrl"}, train={"gradient_checkpointing": True})["MD168"]
    measured = model_table.read_table().releases["transformers"]
    assert f"measured with transformers {measured}, and 5.31.0 is installed here" in recompute.notes[0]
