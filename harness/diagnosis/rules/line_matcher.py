# SPDX-License-Identifier: Apache-2.0
"""A line -> its cause. The messages of programs are tried before the signatures of causes."""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import NamedTuple

from harness.diagnosis.catalogue import all_causes, all_rows, causes_by_id, causes_with
from harness.diagnosis.diagnosis_types import STOP_CAUSE, EventLevel, FailureSignature, Frame
from harness.diagnosis.rules.pattern_literals import find_literals
from harness.diagnosis.rules.pydantic_messages import describe_pydantic_error, match_pydantic_error

_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*_?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Iteration|Timeout|Warning|Failure|Expired|"
    r"Conflict|NotFound)\b(?::|$)"
)
_TRACEBACK_END = re.compile(r"^(?:(?:[A-Za-z_]\w*|<\w+>)\.)*[A-Z]\w*(?::|$)")
WARNING_LINE = re.compile(
    r"^(?:\w+\.)*\w*Warning\b(?! +\w+ +\S)|^Exception ignored in|ERROR: ld\.so|^\s*warnings\.warn"
    r"|^\s*(?:\[\w+\] )*\[?(?:WARNING|WARN|INFO|DEBUG)\b(?!: task | cli\.py:\d+ -- Stat)|^[\s>\d-]*except\b[^:]*:$"
    r"|\b(?:Warning|INFO|WARNING):(?! task \S+ blocked| rcu_| UNPROTECTED PRIVATE| REMOTE HOST)"
)
"""Lines of warnings, and lines that Python prints at its end. They report no failure."""


class Match(NamedTuple):
    """The cause of a line; an empty `cause` is an unknown exception."""

    cause: str
    level: EventLevel
    sure: bool
    details: Mapping[str, str]
    title: str = ""
    change: str = ""
    """Of the message, where it says more than its cause."""
    pattern: str = ""
    proves_change: bool = False


@dataclass(frozen=True)
class Rule:
    """A signature with its cause. Every match of its pattern contains one of `literals`, unless there are none."""

    cause: str
    level: EventLevel
    literals: tuple[str, ...]
    signature: FailureSignature

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Compiled when a line first has a literal: most patterns never are."""
        return re.compile(_loosen(self.signature.pattern))

    @cached_property
    def exact_pattern(self) -> re.Pattern[str]:
        """The pattern with the quotes that the program prints."""
        return re.compile(self.signature.pattern)

    @cached_property
    def frames(self) -> re.Pattern[str] | None:
        """The pattern for the traceback above; None for any."""
        return re.compile(self.signature.frames) if self.signature.frames else None


@cache
def all_rules() -> tuple[Rule, ...]:
    """The rules in the order in which they are tried: the messages of programs, then the signatures of causes."""
    causes = causes_by_id()
    rows = [(row.cause, row.signature) for row in all_rows()]
    rows += [(cause.id, signature) for cause in all_causes() for signature in cause.signatures]
    return tuple(
        Rule(id_, causes[id_].level if id_ in causes else "root", find_literals(_loosen(signature.pattern)), signature)
        for id_, signature in rows
    )


_TICK = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|`\??(?![*+{])")


def _loosen(pattern: str) -> str:
    """The pattern with any quote or none for each backtick: a line that is pasted outside of a block of code, or typed,
    has lost them. One below its traceback has them, or is another message.
    """
    return _TICK.sub(lambda match: "[`'\"]?" if match[0][0] == "`" else match[0], pattern)


class RuleIndex:
    """Finds the few rules that a line can match, however many there are.

    A literal is filed under four consecutive characters of it, those that the fewest literals have, with a 0 for each
    number. A line has the literal only if it has these four. Lines that differ in numbers alone are looked up once.
    """

    def __init__(self, literals_of_rules: Sequence[tuple[str, ...]]) -> None:
        shapes_of_rules = [[_NUMBER.sub("0", text) for text in literals] for literals in literals_of_rules]
        counts = Counter(part for shapes in shapes_of_rules for text in shapes for part in _parts(text))
        self._rules: dict[str, list[int]] = {}
        self.unfiled: list[int] = []
        """Rules that are tried on every line: no literal, or one that is shorter."""
        for number, shapes in enumerate(shapes_of_rules):
            if not shapes or min(map(len, shapes)) < _PART_CHARS:
                self.unfiled.append(number)
                continue
            for part in {min(_parts(text), key=lambda part: (counts[part], part)) for text in shapes}:
                self._rules.setdefault(part, []).append(number)
        self._find_shape = lru_cache(_MAX_SHAPES)(self._find_rules)

    def find(self, text: str) -> tuple[int, ...]:
        """The numbers of the rules that the line may match, in order."""
        return self._find_shape(_NUMBER.sub("0", text))[0]

    def find_filed(self, text: str) -> frozenset[int]:
        """The same without those that are tried on every line."""
        return self._find_shape(_NUMBER.sub("0", text))[1]

    def _find_rules(self, shape: str) -> tuple[tuple[int, ...], frozenset[int]]:
        found = [n for i in range(len(shape)) if (n := self._rules.get(shape[i : i + _PART_CHARS]))]
        filed = frozenset[int]().union(*found)
        return tuple(sorted(filed.union(self.unfiled))), filed


_NUMBER = re.compile(r"\d+")
_MAX_SHAPES = 512
_PART_CHARS = 4


def _parts(text: str) -> set[str]:
    return {text[i : i + _PART_CHARS] for i in range(len(text) - _PART_CHARS + 1)}


@cache
def _index_rules() -> RuleIndex:
    return RuleIndex([rule.literals for rule in all_rules()])


_WRAPPED = re.compile(r".*Failed to import [\w.]+ because of the following error \(look up [^)]*\):[ |]*(\S.*)")
"""An exception of transformers that says another one, which is the cause."""
_TYPED = str.maketrans("\u2018\u2019\u201c\u201d\uff1a", "''\"\":")
"""Quotes and colons as editors and keyboards set them."""
_GROUP = re.compile(r"(?:\w+\.)*\w*ExceptionGroup: .*\(\d+ sub-exceptions?\)")
_KILLING = "Killing subprocess "
"""DeepSpeed's launcher prints it for each rank, before it says why."""
_OWN_FINDING = re.compile(r"^(?:error|refused)\[(?P<id>[A-Z]{2}\d{3})\]: ")
"""An error finding of the harness, as ranks and commands print it."""


MAX_MATCHED_CHARS = 1024
"""Of a longer line, or a longer message of several lines, patterns see only the start and the end: three quarters of
this number and one quarter. Most patterns need time that grows with the square of the length, and a log is untrusted.
"""


def match_line(text: str, frames: Sequence[Frame], *, in_traceback: bool) -> Match | None:
    """The cause of the line; None for no failure. `frames`: the traceback that the line ends, if any."""
    if len(text) > MAX_MATCHED_CHARS:
        text = f"{text[: MAX_MATCHED_CHARS * 3 // 4]} ... {text[-MAX_MATCHED_CHARS // 4 :]}"
    if own_finding := _OWN_FINDING.match(text):
        return Match(own_finding["id"], "root", True, {})
    text = text.replace("HIP error: ", "CUDA error: ")
    text = text if text.isascii() else text.translate(_TYPED)
    inner = _WRAPPED.match(text) if "Failed to import" in text else None
    match = _match_known_cause(inner[1], ()) if inner else None
    match = match if match and match.level == "root" else _match_known_cause(text, frames)
    if match is not None or _GROUP.match(text):
        return match
    if _KILLING in text:
        return Match(STOP_CAUSE, "hint", False, {"killing": ""})
    is_exception = _EXCEPTION.match(text) or text.startswith("Exception: ")
    is_failure = is_exception or (in_traceback and _TRACEBACK_END.match(text))
    return Match("", "root", False, {}) if is_failure and not WARNING_LINE.search(text) else None


_RAISES = re.compile(r"(?:assert\b|raise (?P<name>\w[\w.]*))")
CUT = "the log ends in the middle of a traceback, before the exception"
_QUOTED = re.compile(r"([\"'])(?P<text>.*?)(?:\1|$)")


def match_cut(frames: Sequence[Frame]) -> tuple[Match, str]:
    """The cause of a traceback that ends before its exception, and what to quote: its last line may tell what it
    raises or asserts.
    """
    code = frames[-1].code if frames else ""
    if raises := _RAISES.match(code):
        said = max((quoted["text"] for quoted in _QUOTED.finditer(code)), key=len, default="")
        exception = raises["name"] or "AssertionError"
        match = match_line(f"{exception}: {said}" if said else exception, frames, in_traceback=True)
        if match is not None and match.cause:
            return match._replace(sure=False), code
    return Match("", "root", False, {}), CUT


def may_match_rule(text: str) -> bool:
    """Does the line contain a literal of a rule? Rules without one do not count."""
    rules = all_rules()
    numbers = _index_rules().find_filed(text)
    return any(literal in text for number in numbers for literal in rules[number].literals)


def is_exception_line(text: str) -> bool:
    """Is the line an exception's last one, such as `ValueError: ...`?"""
    return bool(_EXCEPTION.match(text))


def _match_known_cause(text: str, frames: Sequence[Frame]) -> Match | None:
    finding_id = match_pydantic_error(text)
    if finding_id is not None:
        return Match(finding_id, "root", True, {}, *describe_pydantic_error(text))
    rules = all_rules()
    for number in _index_rules().find(text):
        rule = rules[number]
        if rule.literals and not any(map(text.__contains__, rule.literals)):
            continue
        match = rule.pattern.search(text)
        if match is None or (frames and not rule.exact_pattern.search(text)):
            continue
        is_told_so = rule.level == "hint" or rule.cause == _NO_LIBAIO or rule.cause in causes_with("in-warnings")
        if not is_told_so and WARNING_LINE.search(text):
            continue
        sure = rule.signature.sure
        if rule.frames is not None:
            if not frames:
                if rule.signature.frames_required:
                    continue
                sure = False
            elif not any(
                rule.frames.search(place)
                for frame in (frames[-1:] if rule.signature.last_frame else frames)
                for place in _places_of(frame)
            ):
                continue
        sure = sure and not _is_own_check(frames)
        details = {key: value for key, value in match.groupdict().items() if value is not None}
        title, change = _describe_match(match, rule.signature, frames)
        pattern, proves_change = rule.signature.pattern, rule.signature.proves_change
        return Match(rule.cause, rule.level, sure, details, title, change, pattern, proves_change)
    return None


def _describe_match(match: re.Match[str], signature: FailureSignature, frames: Sequence[Frame]) -> tuple[str, str]:
    """The title and the change that the signature has for this match."""
    title, change = signature.title, signature.change
    if "{" not in title and "{" not in change:
        return title, change
    details = {key: value for key, value in match.groupdict().items() if value is not None}
    groups = {**match.groupdict(), MULTIPLES: _multiples_of(details), REASON: _reason_of(details)}
    groups[PACKAGE] = details.get("module", "").partition(".")[0]
    groups[ASSERTED] = found["expression"] if frames and (found := _ASSERT.match(frames[-1].code)) else ""
    return _fill_fields(title, groups), _fill_fields(change, groups)


_LIBRARY_FILE = re.compile(
    r"(?:site|dist)-packages/|/lib/python3|^<|(?:^|/)(?:deepspeed|torch|transformers|accelerate|peft|trl|harness)/"
)


def _is_own_check(frames: Sequence[Frame]) -> bool:
    """Did the job's own code raise the exception? Its text may then only resemble that of a program."""
    if not frames or _LIBRARY_FILE.search(frames[-1].file.replace("\\", "/")):
        return False
    return frames[-1].code.startswith(("raise", "assert"))


_FIELD = re.compile(r"(?P<before>: | )?(?P<quote>`?)\{(?P<name>\w+)\}(?P=quote)")


ASSERTED = "asserted"
"""A field of titles and changes: the expression of the `assert` that the last frame shows; empty without one."""
PACKAGE = "package"
"""A field of titles and changes: the package of the group `module`; empty without one."""
REASON = "reason"
"""A field of titles and changes: what the system says of the group `errno`; empty without one."""
MULTIPLES = "multiples"
"""A field of titles and changes: the batch sizes around `batch` that `micro` on each of `ranks` divides; empty where
`batch` is one."""
_ASSERT = re.compile(r"assert (?P<expression>.+?)(?:, .*)?$")


def _reason_of(details: Mapping[str, str]) -> str:
    number = details.get("errno", "")
    return os.strerror(int(number)) if number.isdecimal() and int(number) in errno.errorcode else ""


def _multiples_of(details: Mapping[str, str]) -> str:
    values = (details.get(name, "") for name in ("batch", "micro", "ranks"))
    batch, micro, ranks = (int(value) if value.isdecimal() else 0 for value in values)
    unit = micro * ranks
    below = batch // unit * unit if unit else 0
    return (f"{below} or {below + unit}" if below else str(unit)) if unit and batch % unit else ""


_TELLING_CALL = re.compile(r"pin_memory\(|\b(?:os|shutil)\.\w+\(|\.(?:unlink|rmdir)\(")


def _places_of(frame: Frame) -> Iterator[str]:
    """`FILE FUNCTION`, and a second time with the line of source where that says what was wrong: an `assert`, a buffer
    that is pinned, a file that is removed or renamed.
    """
    yield f"{frame.file} {frame.function}"
    if frame.code.startswith("assert ") or _TELLING_CALL.search(frame.code):
        yield f"{frame.file} {frame.function} {frame.code}"


def _fill_fields(text: str, groups: Mapping[str, str | None]) -> str:
    """The text with each `{name}` replaced by its group; if empty, what joins it to the text before goes, too."""

    def fill(field: re.Match[str]) -> str:
        if field["name"] not in groups:
            return field[0]
        value = " ".join((groups[field["name"]] or "").split())
        if field["name"] == _PAIRS:
            keys = [f"`{key}`" for key in dict.fromkeys(re.findall(r"- ds ([\w.]+)=", value))]
            value = " and ".join([", ".join(keys[:-1]), keys[-1]] if len(keys) > 1 else keys) or value
        value = value[:_MAX_FIELD_CHARS]
        quote = field["quote"]
        return f"{field['before'] or ''}{quote}{value}{quote}" if value else ""

    return _FIELD.sub(fill, text)


_MAX_FIELD_CHARS = 160
_NO_LIBAIO = "ZR032"
"""A gate whose fault DeepSpeed warns of."""
_PAIRS = "pairs"
"""The group of `- ds KEY=VALUE vs hf ARGUMENT=VALUE`, once for each key that mismatches."""
