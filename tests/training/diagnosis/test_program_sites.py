# SPDX-License-Identifier: Apache-2.0
"""Each `raise` with a message in the DeepSpeed code of the installed accelerate and transformers has a cause and a change.

Reads their sources, imports neither. Needs them installed; a second.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.diagnosis.diagnosis_types import Frame
from harness.diagnosis.explanation import describe_cause
from harness.diagnosis.rules.line_matcher import match_line
from tests.support.tracebacks import diagnose_text

SITES = [  # the package, the file, the classes or functions with DeepSpeed's code; none for all of it
    ("accelerate", "utils/deepspeed.py", ()),
    ("accelerate", "utils/dataclasses.py", ("DeepSpeedPlugin",)),
    ("accelerate", "accelerator.py", ("_prepare_deepspeed", "get_state_dict", "clip_grad_value_")),
    ("transformers", "integrations/deepspeed.py", ()),
]


def message_of(node: ast.expr | None) -> str:
    """The text of an argument, with `X1` for what is computed."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(message_of(value) for value in node.values)
    if isinstance(node, ast.BinOp):
        return message_of(node.left) + message_of(node.right)
    return "X1"


def raise_sites(file: Path, names: tuple[str, ...]) -> Iterator[str]:
    """`ValueError: the message` of each raise; lines of a message are joined as the scanner joins them."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    scopes = [n for n in ast.walk(tree) if getattr(n, "name", None) in names] if names else [tree]
    assert len(scopes) >= max(1, len(names)), names
    for scope in scopes:
        for node in ast.walk(scope):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                text = " ".join(map(message_of, node.exc.args)).strip()
                if text not in ("", "X1"):
                    yield f"{ast.unparse(node.exc.func)}: {text.replace(chr(10), ' | ')}"


def is_answered(message: str, path: Path) -> bool:
    """By the row of its line, or by a rule that reads the traceback around it."""
    match = match_line(message, (Frame(str(path), 1, "f"),), in_traceback=True)
    if match is not None and match.cause and (match.change or all(describe_cause(match.cause))):
        return True
    diagnosis = diagnose_text(f'Traceback (most recent call last):\n  File "{path}", line 1, in f\n{message}\n')
    return bool(diagnosis.cause and diagnosis.change)


@pytest.mark.parametrize(("package", "file", "names"), SITES, ids=str)
def test_every_raise_of_the_deepspeed_code_has_a_cause_and_a_change(package, file, names):
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin
    path = Path(spec.origin).parent / file
    messages = list(raise_sites(path, names))
    assert messages
    unmapped = [message for message in messages if not is_answered(message, path)]
    assert unmapped == []
