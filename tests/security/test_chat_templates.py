# SPDX-License-Identifier: Apache-2.0
"""Chat templates and plug-ins of a stranger, as a rank reads them. Needs transformers; seconds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from harness.errors import UserError
from harness.runtime.dataset.chat_templates import BadRecord, ChatRecord, render_chat
from harness.runtime.plugin_loader import load_plugin
from harness.runtime.tokenizer import byte_tokenizer, load_tokenizer
from harness.spec.run_spec import ModelSpec, RunSpec
from tests.security.attempts import Attempt, attempt_param

pytestmark = pytest.mark.training
CHAT = ChatRecord([{"role": "user", "content": "a"}])


@pytest.mark.parametrize(
    "template",
    [
        attempt_param(
            Attempt(
                "C23", "a chat template that starts a program by `__globals__`", "refused by the sandbox", "refused"
            ),
            "{{ cycler.__init__.__globals__.os.system('touch ran') }}",
        ),
        attempt_param(
            Attempt("C24", "a chat template that walks `__subclasses__`", "refused by the sandbox", "refused"),
            "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        ),
        attempt_param(
            Attempt("C25", "a chat template that includes /etc/passwd", "refused: no loader", "refused"),
            "{% include '/etc/passwd' %}",
        ),
        attempt_param(
            Attempt("C26", "a chat template that changes the records", "refused by the sandbox", "refused"),
            "{{ messages.append(1) }}",
        ),
        attempt_param(
            Attempt("C27", "a chat template with a loop of 10^9 rounds", "OverflowError, a traceback", "a bad record"),
            "{% for i in range(999999999) %}x{% endfor %}",
        ),
        attempt_param(
            Attempt("C28", "a chat template that divides by zero", "ZeroDivisionError, a traceback", "a bad record"),
            "{{ 1/0 }}",
        ),
        attempt_param(
            Attempt("C29", "a chat template that calls itself", "RecursionError, a traceback", "a bad record"),
            "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        ),
    ],
)
def test_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str) -> None:
    monkeypatch.chdir(tmp_path)
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(BadRecord, match="the chat template refuses it"):
        render_chat(tokenizer, CHAT, assistant_only=False)
    assert list(tmp_path.iterdir()) == []


@Attempt("C30", "`data.chat_template` that is a pipe", "every rank waited for ever", "MD127 at once")
def test_template_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "t.jinja")
    with pytest.raises(UserError) as refused:
        load_tokenizer(ModelSpec(tokenizer="bytes"), str(tmp_path / "t.jinja"))
    assert refused.value.findings[0].gate == "MD127"


@Attempt("C31", "`data.chat_template: /dev/zero`", "was still reading after 4 s", "MD127 at once")
def test_template_device() -> None:
    with pytest.raises(UserError) as refused:
        load_tokenizer(ModelSpec(tokenizer="bytes"), "/dev/zero")
    assert refused.value.findings[0].gate == "MD127"


@Attempt("C32", "`plugins.file` that is a pipe on another host", "the rank waited for ever", "MD158 at once")
def test_plugin_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "mine.py")
    with pytest.raises(UserError) as refused:
        load_plugin(RunSpec.model_validate({"plugins": {"file": str(tmp_path / "mine.py")}}))
    assert refused.value.findings[0].gate == "MD158"


@Attempt("C33", "`plugins.file` that changes after it was allowed", "MD157, nothing ran", "MD157, nothing ran")
def test_changed_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.setenv("HARNESS_ALLOWED_CODE", "0f3c")
    with pytest.raises(UserError) as refused:
        load_plugin(RunSpec.model_validate({"plugins": {"file": str(tmp_path / "mine.py")}}))
    assert refused.value.findings[0].gate == "MD157"
    assert not (tmp_path / "ran").exists()
