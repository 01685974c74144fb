# SPDX-License-Identifier: Apache-2.0
"""Paths, packages and devices that a spec names and that are not on this machine. Seconds."""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from harness.check import missing_software
from harness.check.check_file import CheckedFile, check_file
from harness.check.check_files import ValidateOptions, check_files
from harness.check.machine_findings import check_for_plan, with_machine_findings
from harness.check.tokenizer_findings import find_tokenizer
from harness.findings import Finding
from harness.hostinfo import machine
from harness.plan.tuned_defaults import attention_kernel
from harness.spec import named_paths

ROOT = Path(__file__).resolve().parents[2]
LLAMA = {"model_type": "llama", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1}
LLAMA |= {"num_attention_heads": 4, "max_position_embeddings": 512}
TRAIN = "train: {max_steps: 2, per_device_train_batch_size: 1}\n"
WRONG = f"""\
model: {{name_or_path: ./llama, tokenizer: ~/nowhere/tokenizer}}
data:
  train: [chats/*.jsonl, {{path: /nowhere/texts.txt, format: text}}]
  eval: held-out.csv
  chat_template: chat.jinja
plugins: {{file: my_plugin.py}}
{TRAIN}"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "no-cache"))
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    return tmp_path


def write_model(folder: Path, tokens: int = 0, **tokenizer_config: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(LLAMA))
    (folder / "model.safetensors").touch()
    vocabulary = {f"token-{i}": i for i in range(tokens)}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": vocabulary}}))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))


def check(text: str, *, here: bool = False, file: str = "spec.yaml") -> CheckedFile:
    checked = check_file(file, text=text, launching=here, default_world_size=1, look_at_paths=True)
    return with_machine_findings(checked, here=here)


def about_paths(checked: CheckedFile, ids: tuple[str, ...] = ("SP050", "SP051", "SP052")) -> list[Finding]:
    return [f for f in checked.report.findings if f.gate in ids]


DATA = "data: {train: 'builtin:python-docs', max_length: 64}\n"


def of_cpu(checked: CheckedFile) -> dict[str, Finding]:
    return {f.gate: f for f in checked.report.findings if f.gate in ("PR017", "EN017", "EN027", "MM005")}


@pytest.mark.parametrize(("flags", "severity"), [("avx2 avx512f", "error"), ("avx2 avx512_fp16", "warning"), ("", "?")])
def test_fp16_on_a_processor_without_it(folder, monkeypatch, flags, severity):
    """Without any flag nothing is known of the processor, and the gate decides: a warning for the CPU."""
    monkeypatch.setattr(machine, "cpu_flags", lambda: frozenset(flags.split()))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    write_model(folder / "llama")
    text = f"model: {{name_or_path: ./llama}}\nprecision: {{fp16: true}}\ncluster: {{gpu: cpu}}\n{TRAIN}{DATA}"
    found = of_cpu(check(text, here=True))["PR017"]
    assert found.severity == severity.replace("?", "warning")
    assert found.place is not None
    assert found.place.line == 2
    assert of_cpu(check(text))["PR017"].severity == "warning"


def test_more_ranks_than_cores_and_less_memory_than_the_plan(folder, monkeypatch):
    monkeypatch.setattr(machine, "usable_cores", lambda: 4)
    monkeypatch.setattr(machine, "host_memory", lambda: machine.HostMemory(16 * 2**30, 8 * 2**30))
    write_model(folder / "llama")
    text = f"model: {{name_or_path: ./llama}}\n{TRAIN}{DATA}launch: {{num_gpus: 64}}\n"
    found = of_cpu(check(text, here=True))
    assert {gate: f.severity for gate, f in found.items()} == {"EN017": "warning", "EN027": "error"}
    assert found["EN017"].message == "64 ranks share the 4 cores of this machine, which has no GPU"
    assert found["EN017"].place is not None
    assert "by the plan, and this machine has 16.00 GiB" in found["EN027"].message
    assert of_cpu(check(text)) == {}
    assert of_cpu(check(text.replace("64", "4"), here=True)) == {}


def test_what_is_missing_is_one_line_of_information_which_strict_does_not_count(folder):
    (folder / "spec.yaml").write_text(WRONG)
    outcome, results = check_files(ValidateOptions(("spec.yaml",), strict=True))
    assert outcome.code == 0
    (finding,) = about_paths(results[0].checked)
    assert finding.severity == "info"
    assert finding.message == (
        "`./llama`, `~/nowhere/tokenizer`, `chats/*.jsonl`, `/nowhere/texts.txt`, `held-out.csv`, `chat.jinja` and 1 more "
        "are not on this machine"
    )


def test_here_refuses_every_wrong_path_in_one_pass_each_at_its_place(folder):
    (folder / "spec.yaml").write_text(WRONG)
    outcome, results = check_files(ValidateOptions(("spec.yaml",), here=True))
    assert outcome.code == 1
    places = [(f.key, f.place.line, f.place.column) for f in about_paths(results[0].checked) if f.is_error and f.place]
    assert places == [
        ("model.name_or_path", 1, 23),
        ("model.tokenizer", 1, 43),
        ("data.train.0", 3, 11),
        ("data.train.1.path", 3, 33),
        ("data.eval", 4, 9),
        ("data.chat_template", 5, 18),
        ("plugins.file", 6, 17),
    ]
    planned = check_for_plan("spec.yaml", None, None, 1, here=True)
    assert [f.key for f in about_paths(planned) if f.is_error] == [
        "model.name_or_path",
        "model.tokenizer",
        "plugins.file",
    ]
    (data,) = [f for f in about_paths(planned) if not f.is_error]  # of no effect on memory and time
    assert data.message.startswith("`chats/*.jsonl`, `/nowhere/texts.txt`, `held-out.csv`"), data
    assert about_paths(check_for_plan("spec.yaml", None, None, 1, here=False)) == [], "it may plan for other machines"


def test_a_longer_name_is_suggested_where_this_machine_lacks_the_path_and_is_no_error_elsewhere(folder):
    (folder / "data").mkdir()
    for name in ("alpaca_en_demo.json", "alpaca_engine.json", "alpaca_en_demo.csv"):
        (folder / "data" / name).touch()
    text = f"model: {{tokenizer: bytes, config: {json.dumps(LLAMA)}}}\ndata: {{train: data/alpaca_en.json}}\n{TRAIN}"
    (error,) = about_paths(check(text, here=True))
    assert (error.fix.sets, error.fix.safe) == ({"data.train": "data/alpaca_en_demo.json"}, False)
    assert [f.severity for f in about_paths(check(text))] == ["info"]
    (folder / "data" / "alpaca_en_instructions.json").touch()
    (error,) = about_paths(check(text, here=True))
    assert not error.fix.sets, "two files have longer names"


def test_the_hostfile_of_a_spec_is_a_path_like_the_others(folder):
    wrong = f"{WRONG}launch: {{hostfile: hosts.txt}}\n"
    (folder / "spec.yaml").write_text(wrong)
    outcome, results = check_files(ValidateOptions(("spec.yaml",), strict=True))
    assert outcome.code == 0
    assert [f.severity for f in about_paths(results[0].checked, ("SP050", "HO001"))] == ["info"]
    outcome, results = check_files(ValidateOptions(("spec.yaml",), here=True))
    (error,) = about_paths(results[0].checked, ("HO001",))
    assert (error.severity, error.place.file, error.place.line, error.place.column) == ("error", "spec.yaml", 8, 20)
    assert len(about_paths(results[0].checked)) == 7
    for here in (True, False):  # a plan without the hosts would be one for other ranks
        assert about_paths(check_for_plan("spec.yaml", None, None, None, here=here), ("HO001",))
    (folder / "host.txt").write_text("a slots=2\n")
    for here in (True, False):
        (error,) = about_paths(check(wrong, here=here), ("HO001",))
        assert (error.severity, error.fix.sets) == ("error", {"launch.hostfile": "host.txt"})


def test_keys_that_cannot_be_read_hide_no_path(folder):
    findings = about_paths(check(WRONG + "zero: {stagee: 1}\n", here=True))
    assert len([f for f in findings if f.is_error]) == 7


def test_a_misspelt_path_is_an_error_everywhere_with_the_name_that_was_meant(folder):
    write_model(folder / "tiny-llama")
    (folder / "data").mkdir()
    (folder / "data" / "chat.jsonl").write_text("{}\n")
    (folder / "data" / "part-0001.jsonl").write_text("{}\n")
    text = f"model: {{name_or_path: ./tiny-lama}}\ndata: {{train: [data/chats.jsonl, dta/*.jsonl, data/*.jsonnl, data/part-0002.jsonl]}}\n{TRAIN}"
    findings = about_paths(check(text))
    assert [(f.severity, f.fix.title if f.fix else f.message) for f in findings] == [
        ("error", "did you mean `./tiny-llama`?"),
        ("error", "did you mean `data/chat.jsonl`?"),
        ("error", "did you mean `data/*.jsonl`?"),
        ("error", "did you mean `data/*.jsonl`?"),
        ("info", "`data/part-0002.jsonl` is not on this machine"),
    ]
    assert findings[1].fix.sets == {"data.train.0": "data/chat.jsonl"}
    assert not findings[1].fix.safe
    assert len([f for f in about_paths(check_for_plan_of(folder, text)) if f.is_error]) == 4


def check_for_plan_of(folder: Path, text: str) -> CheckedFile:
    (folder / "spec.yaml").write_text(text)
    return check_for_plan("spec.yaml", None, None, 1, here=False)


def test_a_name_on_the_hub_is_not_looked_up(folder):
    write_model(folder / "tiny-llama")
    text = f"model: {{name_or_path: meta-llama/Llama-3.1-8B}}\ndata: {{train: tatsu-lab/alpaca}}\n{TRAIN}"
    assert about_paths(check(text, here=True)) == []
    (finding,) = about_paths(check(text.replace("meta-llama/Llama-3.1-8B", "tiny-lama"), here=True))
    assert (finding.severity, finding.gate) == ("info", "SP050")
    assert "`tiny-llama` is a folder" in finding.message


@pytest.mark.parametrize(
    ("lacking", "reason"),
    [
        ("config.json", "has no `config.json`"),
        ("model.safetensors", "has no weights"),
        ("tokenizer", "has no tokenizer"),
    ],
)
def test_a_folder_that_lacks_files_cannot_be_used(folder, lacking, reason):
    write_model(folder / "m")
    for file in (folder / "m").glob(f"{lacking}*"):
        file.unlink()
    text = f"model: {{name_or_path: ./m}}\ndata: {{train: builtin:python-docs}}\n{TRAIN}"
    (error,) = about_paths(check(text, here=True))
    assert (error.severity, error.message) == ("error", f"`./m` {reason}")
    (line,) = about_paths(check(text))
    assert (line.severity, line.message) == ("info", f"`./m` {reason}")
    if lacking == "model.safetensors":
        assert about_paths(check(text.replace("./m", "./m, random_init: true"), here=True)) == []


def test_a_placeholder_is_an_error_on_every_machine_and_in_every_command(folder):
    text = f"model: {{name_or_path: path/to/a/model}}\ndata: {{train: path/to/texts.jsonl}}\n{TRAIN}"
    for checked in (check_file("spec.yaml", text=text), check(text), check(text, here=True)):
        of_spec = [f.gate for f in checked.report.errors if f.gate != "EN002"]  # EN002: without the training packages
        assert of_spec == ["SP053", "SP053"]


def test_a_file_system_that_does_not_answer_is_named_and_not_waited_for(folder, monkeypatch):
    is_there = named_paths._is_there

    def look(named, text, base):
        return Event().wait() if "hung" in text else is_there(named, text, base)

    monkeypatch.setattr(named_paths, "_is_there", look)
    text = f"model: {{name_or_path: {folder}/hung/m, tokenizer: bytes}}\ndata: {{train: [{folder}/hung/a.txt, b.txt]}}\n{TRAIN}"
    started = time.monotonic()
    findings = about_paths(check(text, here=True))
    assert time.monotonic() - started < 30
    assert [(f.gate, f.severity) for f in findings] == [("SP051", "info"), ("SP050", "error")]
    assert "did not answer within 1 s and were not checked" in findings[0].message


def test_a_relative_path_starts_at_the_spec_and_else_at_the_current_folder(folder):
    write_model(folder / "specs" / "m")
    write_model(folder / "specs" / "tok")
    (folder / "specs" / "tok" / "config.json").unlink()
    (folder / "specs" / "[1].txt").write_text("text")
    (folder / "specs" / "plugin.py").write_text("")
    (folder / "here.txt").write_text("text")
    (folder / "specs" / "both.txt").write_text("spec's")
    (folder / "both.txt").write_text("cwd's")
    text = f"""\
model: {{name_or_path: ./m, tokenizer: tok}}
data: {{train: [here.txt, '*1].txt', both.txt]}}
plugins: {{file: plugin.py}}
{TRAIN}"""
    checked = check(text, here=True, file="specs/s.yaml")
    spec = checked.run.spec
    assert (spec.model.name_or_path, spec.model.tokenizer, spec.plugins.file) == (
        "specs/m",
        "specs/tok",
        "specs/plugin.py",
    )
    assert [source.path for source in spec.data.train] == ["here.txt", "specs/*1].txt", "specs/both.txt"]
    (ambiguous,) = about_paths(checked)
    assert (ambiguous.gate, ambiguous.severity, ambiguous.key) == ("SP052", "info", "data.train.2")
    absolute = check(text, file=str(folder / "specs" / "s.yaml")).run.spec
    assert absolute.model.name_or_path == f"{folder}/specs/m"
    same_folder = check(text.replace("./m", "specs/m").replace("tok}", "bytes}"), file="s.yaml").run.spec
    assert same_folder.model.name_or_path == "specs/m"


def test_the_home_folder_is_found(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder / "home"))
    write_model(folder / "home" / "m")
    checked = check(f"model: {{name_or_path: ~/m}}\ndata: {{train: builtin:python-docs}}\n{TRAIN}", here=True)
    assert about_paths(checked) == []
    assert checked.run.spec.model.name_or_path == f"{folder}/home/m"


def test_a_vocabulary_beyond_the_embedding_is_found_before_the_ranks(folder):
    write_model(folder / "m", tokens=320)
    write_model(folder / "large", tokens=321)
    text = f"model: {{name_or_path: ./m, tokenizer: ./large}}\ndata: {{train: builtin:python-docs}}\n{TRAIN}"
    (error,) = about_paths(check(text), ("MD101",))
    assert (error.severity, error.key, error.place.line) == ("error", "model.tokenizer", 1)
    assert error.message == "the tokenizer has 321 tokens, the model embeddings for 320"
    assert about_paths(check(text.replace(", tokenizer: ./large", "")), ("MD101",)) == []
    written = f"model: {{config: {json.dumps({**LLAMA, 'vocab_size': 256})}, tokenizer: bytes}}\ndata: {{train: builtin:python-docs}}\n{TRAIN}"
    (error,) = about_paths(check(written), ("MD101",))
    assert error.fix.sets == {"model.config.vocab_size": 320}
    added = {"added_tokens_decoder": {"320": {"content": "<more>"}}}
    write_model(folder / "m", tokens=320, **added)
    assert find_tokenizer("m").num_tokens == 321


def test_chats_without_a_template_are_found_before_the_ranks(folder):
    write_model(folder / "m", tokens=10)
    (folder / "c.jsonl").write_text('{"messages": []}\n')
    (folder / "t.jsonl").write_text('{"text": "a", "messages": []}\n')
    (folder / "blank.jsonl").write_text('\n{"messages": []}\n')
    (folder / "list.json").write_bytes(b'\xef\xbb\xbf[\n  {\n    "conversations": []\n  },\n  {}\n]\n')
    (folder / "pairs.json").write_text('[{"instruction": "a", "output": "b"}]')
    text = f"model: {{name_or_path: ./m}}\ndata: {{train: NAME}}\n{TRAIN}"
    for name, fires in (
        ("c.jsonl", True),
        ("'*.jsonl'", True),
        ("blank.jsonl", True),
        ("list.json", True),
        ("pairs.json", False),
        ("t.jsonl", False),
        ("builtin:python-docstrings-chat", True),
    ):
        found = about_paths(check(text.replace("NAME", name)), ("MD127",))
        assert bool(found) is fires, name
    templated = text.replace("NAME", "c.jsonl, chat_template: chatml")
    assert about_paths(check(templated), ("MD127",)) == []
    (folder / "m" / "chat_template.jinja").write_text("x")
    assert about_paths(check(text.replace("NAME", "c.jsonl")), ("MD127",)) == []


def test_a_length_beyond_the_positions_of_a_local_model_is_a_warning(folder):
    write_model(folder / "m", tokens=10)
    text = f"model: {{name_or_path: ./m}}\ndata: {{train: builtin:python-docs, max_length: 100000}}\n{TRAIN}"
    (finding,) = about_paths(check(text), ("MD014",))
    assert finding.message == "`data.max_length` is 100,000, the model was made for 512 positions"
    scaled = LLAMA | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}}
    (folder / "m" / "config.json").write_text(json.dumps(scaled))
    assert about_paths(check(text.replace("100000", "2048")), ("MD014",)) == []
    assert about_paths(check(text.replace("100000", "2049")), ("MD014",))


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        ("[c_attn]", [("error", "`peft` finds no module of this model for adapters with `target_modules: [c_attn]`")]),
        (
            "'.*c_attn'",
            [("error", "`peft` finds no module of this model for adapters with `target_modules: .*c_attn`")],
        ),
        ("[q_proj, c_attn]", [("error", "`c_attn` in `model.lora.target_modules` matches no module of the model")]),
        ("[q_proj, mlp]", [("error", "`mlp` is neither a linear layer nor an embedding, so `peft` refuses it")]),
        (
            "[q_proj], layers_to_transform: [7]",
            [("error", "[...] `target_modules: [q_proj]` and `layers_to_transform`")],
        ),
        ("[q_proj, lm_head, embed_tokens]", []),
        ("'.*[qv]_proj'", []),
        ("all-linear", []),
        ("'('", []),
    ],
)
def test_targets_of_adapters_are_modules_of_the_model_on_this_machine(folder, targets, expected):
    write_model(folder / "m", tokens=10)
    text = f"model: {{name_or_path: ./m, lora: {{target_modules: {targets}}}}}\ndata: {{train: builtin:python-docs}}\n{TRAIN}"
    found = about_paths(check(text), ("MD152", "MD155"))
    assert [f.severity for f in found] == [severity for severity, _ in expected]
    assert all(
        f.message.endswith(message.removeprefix("[...] ")) for f, (_, message) in zip(found, expected, strict=True)
    )
    assert all("`q_proj`, `k_proj`, `v_proj`" in f.notes[0] and f.key == "model.lora.target_modules" for f in found)
    (folder / "m" / "config.json").write_text(json.dumps({**LLAMA, "model_type": "its_own"}))
    assert about_paths(check(text), ("MD155",)) == [], "an unknown family"


def test_packages_and_devices_follow_the_same_rule(folder, monkeypatch):
    monkeypatch.setattr(missing_software, "find_spec", {}.get)
    monkeypatch.setattr(attention_kernel, "find_spec", {}.get)
    text = f"""\
model: {{config: {json.dumps(LLAMA)}, tokenizer: bytes, attn_implementation: flash_attention_2}}
data: {{train: builtin:python-docs}}
telemetry: {{trackers: [csv, wandb]}}
{TRAIN}"""
    (line,) = about_paths(check(text), ("EN016",))
    assert (line.severity, line.key) == ("info", "model.attn_implementation")
    assert "`flash_attn`" in line.message
    assert "`wandb`" in line.message
    errors = about_paths(check(text, here=True), ("EN016",))
    assert [(f.severity, f.key) for f in errors] == [
        ("error", "model.attn_implementation"),
        ("error", "telemetry.trackers"),
    ]
    assert "`sdpa` uses torch's own flash kernel" in errors[0].notes[0]
    packed = text.replace("python-docs}", "python-docs, packing: true, max_length: 65536}").replace("tion_2", "tion_3")
    error = about_paths(check(packed, here=True), ("EN016",))[0]
    assert "`flash_attn_interface`" in error.message
    assert "a mask of 4.00 GiB a row" in error.notes[0]
    assert error.fix.sets == {"model.attn_implementation": "auto"}, "`sdpa_varlen` is refused for some runs (MD024)"
    monkeypatch.setattr(missing_software, "find_spec", str)
    monkeypatch.setattr(attention_kernel, "find_spec", str)
    (device,) = about_paths(check(text, here=True), ("EN016",))
    assert "needs a GPU" in device.message


def test_the_recipes_of_a_fresh_clone_are_fine_in_ci(folder):
    outcome, results = check_files(
        ValidateOptions(tuple(map(str, sorted((ROOT / "ds_configs").glob("*.yaml")))), strict=True)
    )
    assert outcome.code == 0
    lines = [f for result in results for f in about_paths(result.checked)]
    assert {f.severity for f in lines} == {"info"}
    assert max(len(about_paths(result.checked)) for result in results) == 1, "one line a file"


def test_a_pipe_is_no_data(folder):
    os.mkfifo(folder / "texts.jsonl")
    findings = about_paths(check(f"model: {{name_or_path: a/b}}\ndata: {{train: texts.jsonl}}\n{TRAIN}", here=True))
    assert [finding.message for finding in findings] == ["`texts.jsonl` is a pipe or a device"]


def test_a_long_path_is_cut(folder):
    text = f"model: {{name_or_path: ./{'a' * 5000}}}\ndata: {{train: builtin:python-docs}}\n{TRAIN}"
    (finding,) = about_paths(check(text, here=True))
    assert finding.message.endswith("a...` is not a folder")
    assert len(finding.message) < 200
