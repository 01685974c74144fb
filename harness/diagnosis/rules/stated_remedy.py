# SPDX-License-Identifier: Apache-2.0
"""The remedy that an error message states itself: "Do not set `x` in the config", "without specifying a y in z"; a
remedy that is no longer one, since the log shows its variable of the environment.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_NAME = r"(?P<quote>[`'\"])?(?P<name>(?:--)?[a-z]\w*(?:[._-]\w+)*)(?(quote)[`'\"])"
_PLACE = (
    r"(?: (?P<where>in|from|to) (?:the |your )?(?P<place>[\w ]*?(?:config(?:uration)?|JSON|file|arguments?)[\w ]*?))?"
)
_VALUE = r"[`'\"]?(?P<value>True|False|None|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|auto)(?![\w-])[`'\"]?"


_SPELLED = {"True": "true", "False": "false"}
_RULES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    (
        re.compile(
            rf"\b[Dd](?:o not|on't) (?:set|pass|specify|use|provide) {_NAME}{_PLACE}(?= as\b| since\b| when\b|[.,;]|$)"
        ),
        lambda match: f"remove `{match['name']}`" + (f" from the {match['place'].strip()}" if match["place"] else ""),
    ),
    (
        re.compile(
            r"\bwithout (?:first )?(?:specifying|setting|passing|providing|defining|configuring) (?P<what>[^.;]+)"
        ),
        lambda match: f"add {match['what'].strip()}",
    ),
    (
        re.compile(
            r"(?:[Vv]alid|[Aa]llowed|[Pp]ossible|[Ss]upported) (?:values|choices|options) (?:for|of) (?:the )?"
            r"(?P<what>[\w `'-]+?)(?: are:?|:) (?P<values>\[[^\]]{1,80}\])"
        ),
        lambda match: f"set the {match['what'].strip()} to one of {match['values']}",
    ),
    (
        re.compile(rf"{_NAME} (?:must|should|needs to|has to) be (?:set to )?{_VALUE}"),
        lambda match: f"set `{match['name']}: {_SPELLED.get(match['value'], match['value'])}`",
    ),
    (
        re.compile(
            rf"{_NAME} (?:must|should|needs to|has to) be (?:set|given|configured) (?:with)?in (?:the |your )?"
            r"(?P<place>[\w ]+?(?:config(?:uration)?|JSON|file|arguments?)(?: file)?)\b"
        ),
        lambda match: f"move `{match['name']}` to the {match['place']}",
    ),
    (
        re.compile(
            r"(?:^|[.;:,] )(?P<order>(?:[Pp]lease |[Yy]ou (?:must|should|need to|have to) |[Tt]ry to |[Ee]ither )?"
            r"(?:[Ss]et|[Uu]se|[Pp]ass|specify|[Ii]nstall|[Uu]pgrade|[Rr]emove|[Dd]isable|[Ee]nable|provide|add|configure|"
            r"make sure|ensure|increase|decrease|reduce|change) "
            r"[^.;]{8,240}(?:\.\w[^.;]*){0,6})"
        ),
        lambda match: re.sub(r"^(?:[Pp]lease|[Yy]ou (?:must|should|need to|have to)) ", "", match["order"].strip()),
    ),
)
_MAX_CHARS = 1024


def _names_a_setting(match: re.Match[str]) -> bool:
    """Not `input must be 4-dimensional`, nor `do not use it`: a setting is quoted, or has a sign that words lack."""
    name = match.groupdict().get("name")
    return not name or bool(match["quote"]) or re.search(r"[._]|^--", name) is not None


def find_stated_remedy(text: str) -> str:
    """The remedy that the message tells its reader, as a change is written; empty where it tells nothing."""
    message = " ".join(re.sub(r"^(?:[\w.]+\.)?\w+(?:Error|Exception): ", "", text[:_MAX_CHARS]).split())
    for pattern, describe in _RULES:
        if (match := pattern.search(message)) and _names_a_setting(match):
            remedy = describe(match)
            return remedy[0].lower() + remedy[1:]
    return ""


_SHOWN = re.compile(
    rb"(?<!\S)(?<!\bset )(?<!\btry )(?<!\buse )(?<!\bwith )(?<!\bpass )(?<!\band )(?<!\bor )"
    rb"([A-Z][A-Z0-9]*_[A-Z0-9_]+)(?:=| set by environment to )[\"']?([^\s\"';]+?)\.?(?=[\s\"';]|$)"
)
_MENTION = re.compile(
    r"(?P<verb>\bset )?(?P<quote>`?)(?P<name>[A-Z][A-Z0-9]*_[A-Z0-9_]+)(?:=(?P<value>[\w.]+))?(?P=quote)"
    r"(?P<to> to (?=the |an? ))?"
)


def correct_for_variables(change: str, text: bytes) -> str:
    """The change, where the log shows a variable that it sets: the same value is no remedy, another is checked. Each is
    written as NAME=VALUE, which is where secrets are looked for.
    """
    shown = {name.decode(): value.decode(errors="replace") for name, value in _SHOWN.findall(text)}

    def describe(mention: re.Match[str]) -> str:
        name, verb, value = mention["name"], mention["verb"] or "", shown.get(mention["name"])
        if value is not None and mention["value"] == value:
            return f"`{name}={value}` is set already" if verb else f"`{name}={value}` (set already)"
        is_open = value is not None and verb and mention["to"]
        return f"check that `{name}={value}` of this log names " if is_open else mention[0]

    return _MENTION.sub(describe, change) if shown else change
