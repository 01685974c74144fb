# SPDX-License-Identifier: Apache-2.0
"""A name of the standard library, or a form of its grammar, that the job's Python does not have: it is too old or too
new for the code that uses it. `catalogue/phases/python_releases.txt` has the names by release.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from harness.diagnosis.catalogue import CATALOGUE, causes_with
from harness.diagnosis.diagnosis_types import LogEvent
from harness.diagnosis.evidence.release_pair import find_caller
from harness.entry_file import read_entries

_TABLE = read_entries(CATALOGUE / "phases" / "python_releases.txt")
_NAMED = re.compile(
    r"No module named '?(?P<module>[\w.]+)|cannot import name '?(?P<name>\w+)'?(?: from '(?P<of>[\w.]+)')?"
    r"|'(?P<class>[\w.]+)'(?: object)? has no attribute '(?P<attribute>\w+)'"
)
_PYTHON = re.compile(r"(?i)\b(?:c?python|py)(?: version)?[ :=/-]{0,3}3\.?(?P<minor>\d{1,2})(?=[\W_]|$)")
_WINDOW = 400
"""Characters around the name of a syntax error, above which Python prints the line."""
_SHOWN = 11
"""The minor release that a change offers, unless a newer one is needed."""


def name_python(event: LogEvent, log: bytes) -> LogEvent:
    """The event, told as a Python that is too old or too new, where it lacks what another release has; itself for other
    events, and where the log shows a release that has it. `log`: the starts and the ends of all logs.
    """
    if event.level != "root" or (event.cause and event.cause not in causes_with("lacks-name")):
        return event
    text = log.decode(errors="replace")
    places = (event.text, *(frame.file for frame in reversed(event.frames)), text)
    release = next(filter(None, map(_PYTHON.search, places)), None)
    have = int(release["minor"]) if release else 0
    package = find_caller(event.frames).partition(".")[0].replace("pkg_resources", "setuptools")
    for minor, name, field in _find_names(event.text, text):
        if not have or (have >= minor) is (field == "gone"):
            values = {
                "this": f"Python 3.{have}" if have else "this Python",
                "asker": f"`{package}`" if package else "this program",
                "name": name,
                "release": f"3.{minor}",
                "before": have if field != "gone" and have else minor - 1,
                "shown": max(minor, _SHOWN),
            }
            title, change = (_TABLE[field][part].format(**values) for part in ("title", "change"))
            return replace(event, cause="LG228", title=title, change=change, sure=event.sure and bool(have))
    return event


def _find_names(message: str, log: str) -> Iterator[tuple[int, str, str]]:
    """(N of Python 3.N, name, field of its entry) of what the message asks for."""
    match = _NAMED.search(message)
    module, name = (match["of"] or match["class"] or "", match["name"] or match["attribute"]) if match else ("", "")
    if name and not module and (line := re.search(rf"from ([\w.]+) import [^\n]*\b{name}\b", log)):
        module = line[1]
    asked = match["module"] if match and match["module"] else f"{module}.{name}"
    end = log.find("SyntaxError") + _WINDOW // 4 if "SyntaxError" in message else 0
    above = log[max(0, end - _WINDOW) : end] if end else message
    for release, fields in _TABLE.items():
        minor = int(release.partition(".")[2] or 0)
        yield from ((minor, asked, field) for field in ("new", "gone") if asked in fields.get(field, "").split())
        if "words" in fields and (found := re.search(fields["words"], above)):
            yield minor, found[0].strip().partition("\n")[0], "words"
