# SPDX-License-Identifier: Apache-2.0
"""Pages of findings from loading, comparing and launching, read from the `.md` files here. Gates carry their own pages.

A page begins with `## ID name`; its first sentence is its title.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple


class Page(NamedTuple):
    """A name and the text that `harness explain` prints."""

    name: str
    text: str


@cache
def load_pages() -> dict[str, Page]:
    """Every page by the finding's id. The files are read only here: no start-up waits for them."""
    files = sorted(Path(__file__).parent.glob("*.md"))
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    sections = re.findall(r"^## (\S+) (\S+)\n(.*?)(?=^##? |\Z)", text, re.MULTILINE | re.DOTALL)
    return {id_: Page(name, text.strip()) for id_, name, text in sections}


def is_engine_check(name: str) -> bool:
    """Is it the id of an engine check, which only a run can answer?"""
    return name.startswith("AT") and name in load_pages()


def is_ignorable(name: str) -> bool:
    """Is it an id of no gate that a spec may ignore: an engine check, or EN027, since a plan may err?"""
    return is_engine_check(name) or name == "EN027"
