# SPDX-License-Identifier: Apache-2.0
"""The pages of findings from loading, comparing and launching. Gates carry their own pages."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple


class Page(NamedTuple):
    """A name and the text that `harness explain` prints."""

    name: str
    text: str


@cache
def load_pages() -> dict[str, Page]:
    """Every page by the finding's id. The texts are imported only here: no start-up waits for them."""
    from harness.finding_pages import (
        checkpoint_pages,
        data_pages,
        engine_check_pages,
        file_pages,
        launch_pages,
        plan_pages,
        store_pages,
        upgrade_pages,
    )

    text = "\n".join(
        module.TEXT
        for module in (
            file_pages,
            data_pages,
            checkpoint_pages,
            launch_pages,
            engine_check_pages,
            plan_pages,
            store_pages,
            upgrade_pages,
        )
    )
    sections = re.findall(r"^## (\S+) (\S+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return {id_: Page(name, text.strip()) for id_, name, text in sections}


def is_engine_check(name: str) -> bool:
    """Is it the id of an engine check, which only a run can answer?"""
    return name.startswith("AT") and name in load_pages()


def is_ignorable(name: str) -> bool:
    """Is it an id of no gate that a spec may ignore: an engine check, or EN027, since a plan may err?"""
    return is_engine_check(name) or name == "EN027"
