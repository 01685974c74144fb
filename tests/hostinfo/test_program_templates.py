# SPDX-License-Identifier: Apache-2.0
"""Templates are those of the installed program: made-up ones here, with its files and its names."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from harness.cli.app import main

FACTORY = """
class Template:
    stop_words, efficient_eos = [], False
    def __init__(self, user): self.user = user
    def fix_special_tokens(self, tokenizer): pass
    def encode_multiturn(self, tokenizer, turns, system, tools):
        text = [(self.user if t["role"] == "user" else "") + t["content"] for t in turns]
        text[0] = (system or "") + text[0]
        return [([ord(c) for c in text[i]], [ord(c) for c in text[i + 1]]) for i in range(0, len(text), 2)]
    def _get_jinja_template(self, tokenizer): return "" if self.user == "odd" else self.user
TEMPLATES = {"same": Template(""), "other": Template("U:"), "odd": Template("odd")}
"""
"""What the template program's answers need of LLaMA-Factory, and of a tokenizer: a template's text is what users say."""
TOKENIZER = """
class AutoTokenizer:
    eos_token_id, chat_template = 0, ""
    @classmethod
    def from_pretrained(cls, name):
        tokenizer = cls()
        tokenizer.chat_template = None if name == "bare" else "OWN"
        return tokenizer
    def apply_chat_template(self, turns, tokenize):
        user = {"OWN": ""}.get(self.chat_template, self.chat_template)
        return "".join((user if t["role"] == "user" else "") + t["content"] for t in turns)
    def __call__(self, text, add_special_tokens): return {"input_ids": [ord(c) for c in text]}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    packages = tmp_path / "packages"
    for name, text in (
        ("llamafactory/__init__.py", ""),
        ("llamafactory/data/__init__.py", ""),
        ("llamafactory/data/template.py", FACTORY),
        ("transformers.py", TOKENIZER),
        ("axolotl/__init__.py", "raise ImportError('nothing is imported')"),
        ("axolotl/utils/chat_templates/templates/own_kind.jinja", "{{ messages }}"),
    ):
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(text, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(packages))
    monkeypatch.syspath_prepend(str(packages))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _adopt(
    body: dict[str, object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[dict, str]:
    Path("file.yaml").write_text(yaml.safe_dump(body), encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["harness", "adopt", "file.yaml", "-o", "spec.yaml"])
    with pytest.raises(SystemExit) as ended:
        main()
    notes = capsys.readouterr().err
    assert ended.value.code == 0, notes
    return yaml.safe_load(Path("spec.yaml").read_text(encoding="utf-8"))["data"], notes


@pytest.mark.parametrize(
    ("name", "model", "text"),
    [
        ("same", "own", None),
        ("other", "own", "U:"),
        ("other", "bare", "U:"),
        ("odd", "own", None),
        ("none", "own", None),
    ],
)
def test_llama_factory_says_its_template(folder, monkeypatch, capsys, name, model, text):
    body = {"stage": "sft", "do_train": True, "model_name_or_path": model, "template": name, "finetuning_type": "full"}
    data, notes = _adopt(body, monkeypatch, capsys)
    file = folder / f"llama-factory-{name}.jinja"
    assert (file.read_text(encoding="utf-8") if file.exists() else None) == text
    assert data.get("chat_template") == (file.name if text else None)
    assert ("set `data.chat_template` where it differs" in notes) == (name in ("odd", "none"))
    assert ("the same tokens by the tokenizer's own" in notes) == (name == "same")


def test_axolotl_has_its_template_in_a_file(folder, monkeypatch, capsys):
    body = {"base_model": "own", "datasets": [{"path": "a.jsonl", "type": "chat_template"}], "sequence_len": 64}
    data, _ = _adopt({**body, "chat_template": "own_kind"}, monkeypatch, capsys)
    assert data["chat_template"] == "axolotl-own_kind.jinja"
    assert (folder / data["chat_template"]).read_text(encoding="utf-8") == "{{ messages }}"
    data, notes = _adopt({**body, "chat_template": "../own_kind"}, monkeypatch, capsys)
    assert "chat_template" not in data
    assert "axolotl's own template" in notes
