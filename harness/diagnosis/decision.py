# SPDX-License-Identifier: Apache-2.0
"""The next action for a failed job, by its first cause: retry, retry elsewhere, change and retry, or stop.

A cause of the catalogue may have the decision; else its level and the change derive it. Pure functions.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.diagnosis.catalogue import causes_by_id
from harness.diagnosis.diagnosis_types import STOP_CAUSE, Action, Diagnosis

_CODE = re.compile(
    r"(?P<verb>\b(?:remove|set|without|no|leave out) )?`(?P<text>[^`]+)`"
    r"(?: to (?P<value>`[\w.+-]+`|-?\d[\w.+-]*\b|true|false|null))?"
)
"""A setting as a change writes it: `key: value`, `"key": {"key": value}`, "remove `key`", "set `key` to value",
"without `key=value`".
"""
_KEY = re.compile(r"\"?(?P<key>(?![A-Z]+\b)[A-Za-z_][\w.]*)\"?\s?[:=](?!=)\s?(?P<value>\S.*)", re.DOTALL)
"""One word in capitals is a place to fill in, such as `HOST:0,1`."""
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")
_PYTHON_VALUES: Mapping[str, Any] = {"True": True, "False": False, "None": None}
_STATEMENT = re.compile(r"\bcannot\b|` (?:counts|shows)\b|\bis the default\b")
"""A part of a change that says what is so, not what to do."""
_EXPRESSION = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+")
"""A value that is Python's, such as `tokenizer.eos_token`: no program can write it into a file."""
_OF_A_PACKAGE = re.compile(r"(?:torch|deepspeed|transformers|accelerate|peft|trl|engine|model|self)\.\w")
_ALTERNATIVE = re.compile(r"; |, (?:or|else)\b|\bor\b|\buntil then\b")
_RELEASE = re.compile(r"install (?:a newer \w|[a-z][\w-]+ \d)")
_NETWORK = re.compile(rf"{_RELEASE.pattern}|(?:set|check that) `?[A-Z\d_]+(?:_IFNAME|_ADDR|_PORT|_DISABLE)\b")
"""First words of a change that a job needs before the same start works: before its first step, in its network, too."""
_PREPARED = re.compile(r"prepare the data before the launch|download models\b|pass the (?:environment|GPUs) on\b")
"""The same, of a host that is well and of ranks that only waited."""
_REMEDIES = frozenset(
    "accept add apply build call cast change choose configure convert copy correct create decrease define disable "
    "download enable ensure export free freeze gather import increase initialize install keep launch leave load lower "
    "make mark move pad pass pip prepare provide put raise reduce remove rename replace request resize resume return "
    "set shorten specify start switch take train try turn unset update upgrade use wrap write".split()
)
"""First words of a part of a change that says what to do, in settings, packages, files or code. Others ask to look."""
_SETTING = re.compile(r"check (?:that )?the (?:name|path|file|folder)\b|give (?:`[a-z-]|the (?:folder|ranks)|a valid)")
"""The same of a part that names what a setting says."""
_PART = re.compile(r"; |: |, (?=\w)|\b(?:or|and|then|to) ")
_BEFORE_TRAINING = (*"launcher import arguments trainer rendezvous model weights engine".split(), "first step")
_READ_OR_WRITTEN = ("data", "optimizer states", "resuming", "exporting")
_OF_SOME_RANKS = ("first step", "saving", "exporting", "evaluation", "generation", "best model")
"""Phases in which ranks wait for each other because their code, or their data, differs."""
_KIND_OF_JOB = "the job "
"""The first words of a note of `job_kinds.txt` on what ranks of such a job do apart, in every attempt."""
_WAIT, _NETWORK_CAUSES = "LG070", ("LG072", "LG073", "LG210")
_FEW_STEPS = 5
_RENDEZVOUS, _HUB = "LG067", "LG040"
_UNREACHED = re.compile(
    r"failed to connect|No route|on refused|unreachable|not known|be retrieved|(?i:name ?resol|certificat)"
)
_OF_EACH_START = ("LG017", "LG018", "LG192", "LG215")
"""Native code, a kernel or a worker ended, or NCCL was not set up: before a step, the same start does so again."""
_REFUSED = re.compile(
    r"system error|ncclSystemError|internal error|ncclInternalError|invalid usage|no socket|NET/IB(?!.*async)"
    "|a network error"
)
_REASONS: Mapping[Action, str] = {
    "retry": "the input is not at fault: the same start may work",
    "retry elsewhere": "the machine is at fault, not the input",
    "change and retry": "the same settings fail again",
    "stop": "the same input fails again",
}

_OBSERVED: Mapping[str, Action] = {
    "and start again without": "retry elsewhere",
    ": stop the job, resume": "change and retry",
    ": stop the job; compare": "change and retry",
}
"""The advice of observations (`silent_faults`) that asks for more than a look."""
_KILLED, _WHOLE_MODEL = ("LG003", "LG247"), ("saving", "exporting")
FULL_PERCENT = 80.0
"""Of the host's memory, in the last line that tells it: the rest is soon gone."""
_EXCEPTION = re.compile(r"^(?:[\w.]+\.)?(?P<name>\w+(?:Error|Exception))(?::|$| \|)")
_OF_THE_INPUT = frozenset(
    "TypeError AttributeError NameError UnboundLocalError ImportError ModuleNotFoundError KeyError IndexError "
    "ValueError AssertionError NotImplementedError SyntaxError IndentationError ZeroDivisionError ValidationError "
    "RecursionError UnicodeDecodeError JSONDecodeError OverflowError".split()
)
_OF_ANYTHING = ("RuntimeError", "Exception", "FileNotFoundError", "IsADirectoryError", "NotADirectoryError")
_MAY_PASS = re.compile(
    r"time[d ]?-? ?out|connect|network|socket|unavailable|temporar|busy|retry|try again|429|50[234]\b|refused|reset by|"
    r"CUDA|NCCL|HIP error|cuDNN|cublas|driver|ECC|I/O|disk|space|memory|lock|stale|corrupt|broken",
    re.IGNORECASE,
)
"""Words of what another start, or another machine, may not see again."""
_UNSEEN = "LG074"
"""The first failure is not in the log, so that nothing is known of it."""
_BY_HAND = re.compile(r"\bKeyboardInterrupt\b|\bSIGINT\b")
_PROTECTIONS = {"weights_only", "trust_remote_code", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"}
"""Keys that a person switches off, never a program."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The next action and its reason. `hosts` are at fault; `changes` are the keys and values of the first remedy that
    the change names. `is_certain`: so is the failure, whatever its remedy. `may_pass`: another attempt may get further
    all the same.
    """

    action: Action
    reason: str
    hosts: tuple[str, ...] = ()
    changes: Mapping[str, Any] = field(default_factory=dict)
    is_certain: bool = False
    may_pass: bool = False
    needs_space: bool = False
    hosts_may_return: bool = False


def decide_action(diagnosis: Diagnosis) -> Decision | None:
    """The decision; None for a job that did not fail, but for an observation that says what to do, and where the cause
    is not known: nothing is decided then.
    """
    if diagnosis.state != "failed" or not diagnosis.cause or diagnosis.cause == _UNSEEN:
        return _decide_without_cause(diagnosis)
    cause = causes_by_id().get(diagnosis.cause)
    changes = find_changes(diagnosis.change)
    action: Action = "change and retry" if changes or has_remedy(diagnosis.change) else "stop"
    host = diagnosis.host or diagnosis.details.get("host", "")
    if cause is not None:
        action = cause.decision or ("retry" if cause.level != "root" else action)
    elif _is_of_settings(diagnosis.cause):
        action = "change and retry"
    if diagnosis.cause == STOP_CAUSE and any(_BY_HAND.search(text) for _, text in diagnosis.lines):
        action = "stop"
    elif _needs_more_memory(diagnosis):
        action = "change and retry"
    elif action == "retry" and (repeated := _decide_repeated(diagnosis)):
        action = repeated
    reason = _REASONS[action] if diagnosis.cause != STOP_CAUSE or action != "stop" else "somebody pressed Ctrl-C"
    if action == "retry elsewhere" and host:
        reason = f"{host} is at fault, not the input"
    is_early = diagnosis.phase is None or _is_at_start(diagnosis)
    is_named = action == "retry" and bool((_NETWORK if is_early else _RELEASE).match(diagnosis.change))
    is_named = is_named or (action in ("retry", "retry elsewhere") and bool(_PREPARED.match(diagnosis.change)))
    if is_named:
        action, reason = "change and retry", _REASONS["change and retry"]
    traits = cause.traits if cause is not None else frozenset[str]()
    return Decision(
        action,
        f"{reason} ({diagnosis.cause}, {diagnosis.confidence})",
        (host,) if action == "retry elsewhere" and host else (),
        changes if action == "change and retry" else {},
        is_certain=diagnosis.is_named or diagnosis.confidence == "certain",
        may_pass="may-pass" in traits or is_named,
        hosts_may_return="may-return" in traits,
        needs_space="waits-for-space" in traits,
    )


def _is_of_settings(finding: str) -> bool:
    """Is it a finding about a run spec or a DeepSpeed JSON, by its id?"""
    from harness.gates.registry import all_gates

    return finding.startswith("SP") or any(gate.id == finding for gate in all_gates())


def has_remedy(change: str) -> bool:
    """Does a change name what to do, in settings, packages, files or code, and not only where to look?"""
    return any(_SETTING.match(part) or part.lstrip("`").partition(" ")[0] in _REMEDIES for part in _PART.split(change))


def _decide_without_cause(diagnosis: Diagnosis) -> Decision | None:
    """By an observation, or by the kind of an unknown exception."""
    if diagnosis.state == "no failure seen":
        observed = (action for note in diagnosis.notes for words, action in _OBSERVED.items() if words in note)
        return next((Decision(action, f"{_REASONS[action]} (an observation alone)") for action in observed), None)
    return _decide_unknown(diagnosis) if diagnosis.state == "failed" and not diagnosis.cause else None


def _decide_unknown(diagnosis: Diagnosis) -> Decision | None:
    """No retry after an exception that Python raises for code or values, or for anything before the first step ended,
    but what its message or its package tells to change; nothing is decided of others, nor of machines and networks.
    """
    match = _EXCEPTION.match(diagnosis.message)
    if match is None or _MAY_PASS.search(diagnosis.message):
        return None
    name = match["name"]
    if name not in _OF_THE_INPUT and (name not in _OF_ANYTHING or not _is_at_start(diagnosis)):
        return None
    action: Action = "change and retry" if has_remedy(diagnosis.change) else "stop"
    return Decision(action, f"{name} is raised for code or values, which a retry does not change (cause unknown)")


def _needs_more_memory(diagnosis: Diagnosis) -> bool:
    """Was a rank killed while the host's memory was nearly full, before the log shows training, or at a save?"""
    if diagnosis.cause not in _KILLED:
        return False
    is_full = float(diagnosis.details.get("memory_percent", 0)) >= FULL_PERCENT
    phase = diagnosis.phase
    return is_full or phase is None or phase.name in _WHOLE_MODEL or (phase.step is None and phase.name != "training")


def _is_at_start(diagnosis: Diagnosis) -> bool:
    phase = diagnosis.phase
    return phase is not None and phase.step is None and phase.name in (*_BEFORE_TRAINING, *_READ_OR_WRITTEN)


def _decide_repeated(diagnosis: Diagnosis) -> Action | None:
    """The action where ranks waited or crashed, or the network failed, in a part of the job that another attempt
    reaches again in the same way; None where time or luck may have been at fault.
    """
    phase, is_early = diagnosis.phase, _is_at_start(diagnosis)
    if diagnosis.cause in _OF_EACH_START:
        return "change and retry" if phase is None or phase.step is None else None
    if diagnosis.cause in (_RENDEZVOUS, _HUB):
        return "change and retry" if _UNREACHED.search(diagnosis.message) else None
    if diagnosis.cause not in (_WAIT, *_NETWORK_CAUSES):
        return None
    if diagnosis.cause != _WAIT:
        is_refused = (is_early or phase is None) and _REFUSED.search(diagnosis.message)
        return "change and retry" if is_refused or (is_early and diagnosis.host) else None
    is_of_ranks = phase is not None and (phase.name in _OF_SOME_RANKS or 0 < (phase.step or 0) <= _FEW_STEPS)
    if is_of_ranks or any(note.startswith(_KIND_OF_JOB) for note in diagnosis.notes):
        return "stop"
    return "change and retry" if is_early else None


def find_changes(change: str) -> dict[str, Any]:
    """The keys and values of the first remedy that a change names: "set `a.b: 0`" is {"a.b": 0}; a key that is to be
    removed has None, one whose value the reader chooses has "...". Empty where it names none.
    """
    for part in _ALTERNATIVE.split(change):
        if _STATEMENT.search(part):
            continue
        changes, verb, end = dict[str, Any](), "", 0
        for match in _CODE.finditer(part):
            verb = match["verb"] or (verb if part[end : match.start()] in (", ", " and ") else "")
            changes |= _parse_setting(match["text"], verb, match["value"] or "")
            end = match.end()
        if changes:
            return {key: value for key, value in changes.items() if key.rpartition(".")[2] not in _PROTECTIONS}
    return {}


def _parse_setting(text: str, verb: str, value: str) -> dict[str, Any]:
    """The keys of one piece of code; empty for any other code, such as a command or a name of a package."""
    if _OF_A_PACKAGE.match(text):
        return {}
    if _NAME.fullmatch(text):
        if verb == "remove ":
            return {text: None}
        return {text: _parse_value(value.strip("`"))} if verb and value else {}
    with contextlib.suppress(ValueError, RecursionError):
        values = json.loads("{" + text.replace("...", '"..."') + "}")
        return dict(_flatten(values))
    setting = _KEY.fullmatch(text)
    value_text = setting["value"] if setting is not None else ""
    if setting is None or re.search(r"[\s()<>{}]|^[A-Z]+$", value_text) or _EXPRESSION.fullmatch(value_text):
        return {}
    return {setting["key"]: _parse_value(setting["value"]) if verb in ("", "set ") else None}


def _parse_value(text: str) -> Any:
    if text in _PYTHON_VALUES:
        return _PYTHON_VALUES[text]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text.strip("'")


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of nested objects."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
