# SPDX-License-Identifier: Apache-2.0
"""The remedy that an error message states itself: "Do not set `x` in the config", "without specifying a y in z"; a
remedy that is no longer one, since the log shows its variable of the environment.
"""

from __future__ import annotations

import re
from dataclasses import replace

from harness.diagnosis.catalogue import CATALOGUE, causes_with
from harness.diagnosis.diagnosis_types import LogEvent
from harness.entry_file import read_entries

_PART = r"(?:\.\w+|\[(?:\w+|'\w+')\](?:_\w*)?)"
_SETTING = (
    r"(?P<{0}>`[^`\s]{{1,60}}`|['\"][\w.=\[\]-]{{1,60}}['\"]|--\w[\w-]*|"
    rf"(?<![A-Za-z])[A-Za-z][^\W_]*(?:_\w*{_PART}*|{_PART}+)(?:=\w+)?)"
    r"(?: \([^)]{{1,40}}\))?"
)
_GROUP = re.compile(r"(?<!P)<(\w+)>")
_RULES = tuple(
    (re.compile(_GROUP.sub(lambda group: _SETTING.format(group[1]), entry["pattern"])), entry)
    for entry in read_entries(CATALOGUE / "phases" / "stated_remedies.txt").values()
)
_WEIGHTS = ("weak", "told", "decisive")
_SPELLED = {"True": "true", "False": "false"}
_EXAMPLES = re.compile(r" \(e\.g\.[^)]*\)")
_POLITE = re.compile(r"^(?:[Pp]lease|[Yy]ou (?:must|should|need to|have to|can)(?: first)?|[Cc]onsider) ")
_MAX_CHARS = 1024


def strip_name(text: str) -> str:
    """The message of an exception without its name."""
    return re.sub(r"^(?:[\w.]+\.)?\w*(?:Error|Exception): ", "", text)


def find_stated_remedy(text: str, *, least: str = "weak") -> str:
    """The remedy that the message states, as a change is written, if its weight is the `least` or more; else empty."""
    message = _EXAMPLES.sub("", " ".join(strip_name(text[:_MAX_CHARS]).split()))
    for pattern, rule in _RULES:
        if match := pattern.search(message):
            values = {name: (value or "").strip() for name, value in match.groupdict().items()}
            values = {name: _SPELLED.get(value, value) for name, value in values.items()}
            names = {name: values[name].strip("`'\"") for name in values.keys() & {"name", "a", "b"}}
            values |= names if "bare" in rule else {name: f"`{bare}`" for name, bare in names.items()}
            remedy = _POLITE.sub("", rule["change"].format(**values))
            weight, _, condition = rule.get("weight", "told").partition(" with ")
            weight = "told" if condition and "`" not in remedy else weight
            return remedy[0].lower() + remedy[1:] if _WEIGHTS.index(weight) >= _WEIGHTS.index(least) else ""
    return ""


_NAMED_BY_THE_MESSAGE = re.compile(
    r"\w+ (?:or leave )?(?:out |off )?the [\w, ]{3,40}? (?:that|of) the message(?: names\b(?!:)|(?! names))"
)
"""A change that leaves the setting to the message."""
_RAISED = re.compile(r"(?:raise|assert)\b.*(?:site|dist)-packages/(?!deepspeed/)")
_MIN_QUOTED, _MAX_QUOTED = 16, 200
_MAX_MESSAGES = 3
"""Messages of a row that may share a title. A row with more cannot be about each of them."""


def tell_stated(event: LogEvent, title: str, change: str, *, is_gate: bool) -> tuple[LogEvent, str, str]:
    """The event, and its title and change with what the message states: its words, where a package raised it for one of
    many reasons that share a title, and its remedy, where none of the catalogue is about this message alone.
    """
    remedy = find_stated_remedy(event.text)
    if not event.cause or _NAMED_BY_THE_MESSAGE.match(change):
        rest = change.partition("; ")[2]
        change = "; ".join(filter(None, (remedy, rest))) if remedy else change
    elif remedy and not event.change and is_gate:  # one remedy of several
        is_another = set(re.findall(r"\w{8,}", remedy)).isdisjoint(re.findall(r"\w{8,}", change))
        change = f"{remedy}; or {change}" if is_another else change
    is_raised = any(_RAISED.match(f"{frame.code} {frame.file}") for frame in event.frames[-1:])
    message = " ".join(strip_name(event.text).replace(" | ", " ").split())
    is_said = message[:_MIN_QUOTED] in title
    is_shared = is_said or event.pattern.count("|") > _MAX_MESSAGES
    if not is_raised or event.cause not in causes_with("shared") or (event.title and not is_shared):
        return event, title, change
    title = title if is_said else f"{title}: {message[:_MAX_QUOTED]}"
    if remedy := find_stated_remedy(event.text, least="decisive"):
        change = remedy
    return replace(event, sure=event.sure and bool(remedy or event.change)), title, change


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
