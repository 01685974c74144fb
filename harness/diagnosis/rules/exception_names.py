# SPDX-License-Identifier: Apache-2.0
"""Exceptions that have lost their names, or their names' form, where somebody quoted or typed them."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator

from harness.diagnosis.rules.line_matcher import WARNING_LINE, Match, match_line

_QUOTED = re.compile(
    r"(?:(?:[>*`#-]|(?:ERROR|CRITICAL|FATAL):[\w.]{0,40}:)(?: (?! ))?|E? {2,}(?! )|std(?:err|out): |\[[\w.-]{1,40}\] |"
    r"\d{1,6}:? )+"
    r"(?=(?:\w{1,40}\.){0,9}[A-Z]\w{0,60}(?:Error|Exception)(?:: |[`*]|$))"
)
"""What a quote, a list or a logger writes before an exception."""
_TYPED = re.compile(
    r"\s*(?P<name>[A-Z]\w{1,30}(?: [A-Z]?\w{1,30})? ?[Ee]rror)(?P<sign>[:,!]| {2,}(?=\S)) ?(?P<message>.*)"
)
"""`Value Error, "..."`; behind several blanks another rank has written before the message came."""
_LOST_NAMES = {"[Errno 2] ": ("FileNotFoundError",), "No module named": ("ModuleNotFoundError",)}
"""Names by the first words of a message; without them it is one of a check."""
_ADVICE = re.compile(
    r"\b(?:[Ff]all(?:s|ing) back|consider|considering|deprecated|will (?:only|not|be)|may encounter|can be|effective|"
    r"[Rr]educing|[Ee]xcluding|[Uu]sing|to enable|older version|instead|[Pp]lease set|longer than|which is|accepting|"
    r"[Ss]kip(?:s|ping|ped)|[Ii]gnor(?:es|ing|ed)|harmless|should be OK|[Rr]etry\w*)\b|\[c10d\]|torch\.Size"
)
"""Words of a warning, a note or a printed shape that has lost its logger's name."""
_TAGGED = re.compile(
    r"(?:^\[E (?=\w+\.cpp:)|\[(?:ERROR|CRITICAL|FATAL)\]|\b(?:ERROR|CRITICAL|FATAL)\b|"
    r"\b(?:[Ee]rror|[Ff]atal(?: error)?)(?=[:!]))[:!\s]*"
)
"""The tag of a line that reports an error."""
_OF_A_PROBE = re.compile(r"error: ld returned|\[c10d\]|PR_SVE_GET_VL|Unable to register \w+ factory")
"""What probes of compilers and CPUs print in jobs that run well."""
_REFUSAL = re.compile(
    r"(?i)\b(?:can(?:not|'t)|could(?: not|n't)|must|should|unable to|(?:is|are) (?:missing|required|invalid)|"
    r"unsupported|(?:not|n't) (?:yet |currently )?(?:found|exist|supported?|allowed|implemented|installed|available|"
    r"compatible|match)|unrecognized|incompatible|mutually exclusive)\b"
)
"""Words of a sentence that refuses something."""


def restore_exception(text: str, before: str) -> str:
    """The line with an exception's name first, as Python writes it; itself where it has none. `before`: the text of the
    writer's last event, which is the name alone where other ranks wrote between it and its message.
    """
    if "rror" not in text and "xception" not in text and not text.startswith(": "):
        return text
    text = text[quoted.end() :].rstrip("`*") if (quoted := _QUOTED.match(text)) else text
    if text.startswith(": ") and hasattr(builtins, before):
        return f"{before}{text}"
    typed = _TYPED.match(text)
    if typed is None or (text.startswith(f"{typed['name']}: ") and " " not in typed["name"]):
        return text
    name = typed["name"].title().replace(" ", "") if " " in typed["name"] else typed["name"]
    if not hasattr(builtins, name):
        return text
    return name if typed["sign"].isspace() else f"{name}: {typed['message'].strip(chr(34))}"


def match_bare(text: str) -> Iterator[tuple[str, Match]]:
    """(exception, cause) for each name that the line may have lost: people quote a message without it."""
    text = text.removeprefix(": ")
    names = next((names for words, names in _LOST_NAMES.items() if text.startswith(words)), None)
    is_note = bool(WARNING_LINE.search(text) or _ADVICE.search(text))
    for name in names or ("ValueError", "AssertionError", "RuntimeError"):
        match = None if is_note else match_line(f"{name}: {text}", (), in_traceback=False)
        if match is not None and match.level == "root":
            yield name, match._replace(sure=False)


def find_statement(text: str, *, is_quote: bool) -> str:
    """What a line says that reports an error and is no exception; empty where it reports none. In a quote a sentence
    that refuses something does so without a tag such as `ERROR`.
    """
    if WARNING_LINE.search(text) or _OF_A_PROBE.search(text) or match_line(text, (), in_traceback=False) is not None:
        return ""
    if tag := _TAGGED.search(text):
        return text[tag.end() :] or text
    return text if is_quote and _REFUSAL.search(text) and not _ADVICE.search(text) else ""
