"""What the findings of loading, comparing and launching mean, at length. Gates carry their pages themselves."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple


class Page(NamedTuple):
    """A name and the text that `harness explain` prints."""

    name: str
    text: str


@cache
def pages() -> dict[str, Page]:
    """Every page by the finding's id. The texts are imported only here: no start-up waits for them."""
    from harness.spec.pages import attest, checkpoints, data, files, plan, running, upgrades

    text = "\n".join(module.TEXT for module in (files, data, checkpoints, running, attest, plan, upgrades))
    found = re.findall(r"^## (\S+) (\S+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return {id_: Page(name, text.strip()) for id_, name, text in found}


def is_claim(name: str) -> bool:
    """Is it the id of something that a run asks its own engine, which nothing before the run can say?"""
    return name.startswith("AT") and name in pages()
