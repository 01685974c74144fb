# SPDX-License-Identifier: Apache-2.0
"""A traceback that ends before its exception -> what its last function raises in the installed release."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from harness.diagnosis.diagnosis_types import Frame, LogEvent
from harness.diagnosis.rules.line_matcher import match_line
from harness.interpreter import read_module_source

_MODULE = re.compile(r"(?:^|/)(?P<module>(?:deepspeed|accelerate|transformers)/(?:\w+/)*\w+)\.py$")
_VALUE = "4"
"""For each value in a message. What a message says of its values is not known, and no title shows it."""


def name_raised(event: LogEvent) -> LogEvent:
    """The event with the one cause that the catalogue has for what its last function raises, or for the statement that
    its last line shows; itself where there is none, or more than one.
    """
    lines = _find_raised(event.frames[-1]) if event.frames else []
    matches = [match_line(line.format(_VALUE), event.frames, in_traceback=True) for line in lines]
    causes = {match.cause if match and match.level == "root" else "" for match in matches}
    if len(causes) != 1 or (found := matches[0]) is None or not found.cause:
        return event
    title, change = ("", "") if found.details else (found.title, found.change)
    text = f"{event.text}; `{event.frames[-1].function}` raises here: {lines[0].format('...')}"
    return replace(event, text=text, cause=found.cause, title=title, change=change, pattern=found.pattern)


def _find_raised(frame: Frame) -> list[str]:
    """The exceptions that a frame of DeepSpeed, accelerate or transformers can raise itself, each as its last line in a
    log with `{0}` for values; none where its line calls something, and where the package is not installed.
    """
    found = _MODULE.search(frame.file.replace("\\", "/"))
    source = read_module_source(found["module"].replace("/", ".")) if found else None
    if source is None or not re.match(r"(?:raise|assert)\b|$", frame.code):
        return []
    rows, nodes = source.splitlines(), ast.walk(ast.parse(source))
    inner = [n for f in nodes if isinstance(f, ast.FunctionDef) and f.name == frame.function for n in ast.walk(f)]
    sites = [n for n in inner if isinstance(n, ast.Raise | ast.Assert)]
    shown = [n for n in sites if rows[n.lineno - 1].strip().startswith(frame.code)]
    exact = [n for n in shown if n.lineno == frame.line]
    same_kind = [n for n in sites if isinstance(n, ast.Assert) == frame.code.startswith("assert")]
    assigned = [n for n in inner if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name)]
    texts = {ast.unparse(node.targets[0]): node.value for node in assigned}
    return [_render_raised(site, texts) for site in exact or shown or same_kind]


def _render_raised(site: ast.Raise | ast.Assert, texts: Mapping[str, ast.expr]) -> str:
    """`ValueError: the words of the message {0}`; without the name of an exception that was caught before."""
    raised = site.exc if isinstance(site, ast.Raise) else None
    name = ast.unparse(raised.func) if isinstance(raised, ast.Call) else ""
    parts = (raised.args if isinstance(raised, ast.Call) else []) if isinstance(site, ast.Raise) else [site.msg]
    words = "".join(_render_words(ast.Tuple([texts.get(ast.unparse(part), part) for part in parts if part])))
    return f"{name if isinstance(site, ast.Raise) else 'AssertionError'}: {words}"


def _render_words(node: ast.AST) -> Iterator[str]:
    """The constant texts of an expression in their order, with `{0}` for each value between them."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value.replace("{", "{{").replace("}", "}}").replace("\n", " | ")
    elif isinstance(node, ast.FormattedValue):
        yield "{0}"
    else:
        for child in ast.iter_child_nodes(node):
            yield from _render_words(child)
