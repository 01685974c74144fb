# SPDX-License-Identifier: Apache-2.0
"""Exceptions whose cause, or next step, follows from Python itself and the place that raised them: the kinds that
`catalogue/phases/python_errors.txt` has. Pure functions.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from harness.diagnosis.catalogue import CATALOGUE
from harness.diagnosis.diagnosis_types import STANDARD, Frame, LogEvent
from harness.diagnosis.evidence.missing_ranks import describe_mismatch
from harness.diagnosis.evidence.release_pair import find_definer, find_reader
from harness.diagnosis.rules.line_matcher import CUT, match_line
from harness.entry_file import read_entries
from harness.facts.deepspeed_keys import block_keys, block_paths
from harness.interpreter import read_module_source


class InferredCause(NamedTuple):
    """The id of the cause, its title and its change. `sure`: the message allows no other cause."""

    cause: str
    title: str
    change: str
    sure: bool = False


_KINDS = tuple(read_entries(CATALOGUE / "phases" / "python_errors.txt").values())
_PASSED_ON = re.compile(r"\(\*args, \*\*(?:kwargs|kw)\)|\(\*inputs?, \*\*kwargs\)|_call_impl\(|^raise\b")
"""A line that hands on the arguments of its caller."""
_CALLED = re.compile(r"(?<![\w.])(?P<root>[A-Za-z_]\w*)(?:\.\w+)*(?=\()")
_OWNED = re.compile(
    r"^(?:(?P<deepspeed>DeepSpeed|PipelineModule)|(?P<accelerate>Accelerator|PartialState)|(?P<peft>Peft|Lora)"
    r"|(?P<transformers>\w*TrainingArguments|PreTrained|Auto[A-Z]))"
)
"""Packages by the names that they define."""
_KNOWN_ROOTS = ("deepspeed", "torch", "transformers", "accelerate", "peft", "trl", "datasets", "vllm", "flash_attn")
_PACKAGE = re.compile(rf"(?:(?:site|dist)-packages/|^(?=(?:{'|'.join(_KNOWN_ROOTS)})/))(?P<name>[A-Za-z]\w*)(?=/)")
"""A quote may have shortened the path to the package."""
_ZERO3_FILE = re.compile(r"deepspeed/runtime/zero/(?:partition|parameter_offload|stage3)")
_ZERO3 = re.compile(
    rb"(?i)zero[-_ ]?(?:stage[-_ ]?)?3(?!\d)|ds_?z3|zero_?stage[\"'=: .]+3(?!\d)|[\"']stage[\"']: ?3\b|stage=3\b"
    rb"|partition_parameters"
)
_MAX_CODE = 120
_RAISE = re.compile(r"raise (?:\w+\.)*_?[A-Z]|assert\b")
"""A statement that makes an exception, and hands on none."""
_TIMEOUT_CAUSE = "LG070"
_TWO_RANKS = re.compile(r"^((?:\w+\.)*\w+?(?:Error|Exception))(?:\1)+(?:: )+")
"""Ranks that wrote an exception at once: `ValueErrorValueError: : ...`."""


def name_cause(first: LogEvent, events: Sequence[LogEvent], text: bytes = b"") -> LogEvent:
    """The event with the cause that follows from its kind, or from what several ranks say; itself where a message has
    named it, or nothing follows. `text`: the starts and the ends of all logs.
    """
    if first.cause == _TIMEOUT_CAUSE and (mismatch := describe_mismatch(events)):
        return replace(first, cause="LG071", title=mismatch, change="")
    if not first.cause and first.text.startswith(CUT):
        first = name_raised(first)
    inferred = infer_kind(first, text)
    return replace(first, **inferred._asdict()) if inferred is not None else first


def infer_kind(event: LogEvent, text: bytes) -> InferredCause | None:
    """The cause of an exception of a known kind, in a log with this text; None where it has none, or where a message
    has named the cause and the kind knows no more.
    """
    for kind, values in _find_kinds(event.text, event.frames):
        is_over = event.cause in kind.get("over", "").split() and not ("weak" in kind and (event.sure or event.title))
        if "cause" not in kind or (event.cause and not is_over) or ("named" in kind and "lost" in event.details):
            continue
        has_words = bool(re.search(kind.get("words", "").encode(), text))
        if has_words and ("partitioned" not in kind or shows_zero3(text, event.frames)):
            title, change = (kind[name].format(**values) for name in ("title", "change"))
            if kind["pattern"] == "." and event.line_number:  # the place alone: the message says what failed there
                title += f" (`{' '.join(event.text.split())[:_MAX_CODE]}`)"
            cause = kind["cause"] if kind["cause"] != "same" else event.cause
            return InferredCause(cause, title, change, sure="sure" in kind and event.sure)
    return None


def describe_kind(text: str, frames: Sequence[Frame]) -> str:
    """What to look at, by the kind of exception that the job's own code raised; empty for others."""
    found = _find_kinds(text, frames) if frames else ()
    return next((kind["change"].format(**values) for kind, values in found if "cause" not in kind), "")


def shows_zero3(text: bytes, frames: Sequence[Frame]) -> bool:
    """Does a log, or a traceback, show that parameters are partitioned?"""
    return bool(_ZERO3.search(text)) or any(_ZERO3_FILE.search(frame.file) for frame in frames)


def _find_kinds(text: str, frames: Sequence[Frame]) -> Sequence[tuple[Mapping[str, str], Mapping[str, str]]]:
    """(fields, values) of the kinds that the exception may be of."""
    text = _TWO_RANKS.sub(r"\1: ", text)
    places = [frame.file.replace("\\", "/") for frame in frames]
    raiser = next((_PACKAGE.search(file) for file in reversed(places) if not STANDARD.search(file)), None)
    is_raised = bool(frames and _RAISE.match(frames[-1].code))
    frames = _without_passing_on(frames)
    last = frames[-1] if frames else Frame("", 0, "")
    match = _PACKAGE.search(last.file.replace("\\", "/"))
    package = match["name"] if match else ""
    place = "package" if package else "standard library" if STANDARD.search(last.file) else "script"
    frame_texts = "\n".join(f"{frame.file} {frame.function} {frame.code}" for frame in frames)
    found = []
    for kind in _KINDS:
        match = re.search(kind["pattern"], text)
        if match is None or place not in kind.get("place", place) or not re.search(kind.get("code", ""), last.code):
            continue
        values = {name: value or "" for name, value in match.groupdict().items()}
        values |= {"package": package, "function": last.function, "line": last.code[:_MAX_CODE]}
        values["raiser"] = raiser["name"] if raiser else ""
        values |= _describe_called(values.get("callee", ""), last.code)
        is_known = values["owner"] not in ("", package) or "owner" not in kind
        is_known = is_known and ("raiser" not in kind or bool(re.fullmatch(kind["raiser"], values["raiser"])))
        is_known = is_known and (is_raised or "raised" not in kind)
        values["reader"] = find_reader(text) if "reader" in kind else ""
        is_known = is_known and ("reader" not in kind or bool(values["reader"]))
        if is_known and "definer" in kind:
            values["definer"], values["release"] = find_definer(
                match["callee"], match["name"], takes=kind["definer"] == "takes"
            )
            is_known = bool(values["definer"])
        keys = (block_keys(path) or () for path in block_paths())
        is_known = is_known and ("json" not in kind or any(values["key"] in block for block in keys))
        if is_known and (place_match := re.search(kind.get("frames", ""), frame_texts)):
            found.append((kind, values | place_match.groupdict("")))
    return found


def _without_passing_on(frames: Sequence[Frame]) -> Sequence[Frame]:
    """The frames up to the one that wrote the call."""
    kept = list(frames)
    while len(kept) > 1 and _PASSED_ON.search(kept[-1].code):
        kept.pop()
    return kept


def _describe_called(callee: str, code: str) -> Mapping[str, str]:
    """What a line calls, and the package that defines it; empty where neither the call nor the name tells."""
    called = _CALLED.search(code)
    callee = callee.removesuffix(".__init__")
    if called and callee == "__init__":
        callee = called[0]
    match = _OWNED.match(callee)
    owner = called["root"] if called and called["root"] in _KNOWN_ROOTS else (match.lastgroup if match else "") or ""
    return {"callee": callee, "owner": owner}


_MODULE = re.compile(r"(?:^|/)(?P<module>(?:deepspeed|accelerate|transformers|peft|trl|datasets)/(?:\w+/)*\w+)\.py$")
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
    """The exceptions that a frame of one of these packages can raise itself, each as its last line in a
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
