# SPDX-License-Identifier: Apache-2.0
"""Words of the pages in `docs/` that people wrote: `python -m tests.docs.word_count`.

A word is what `wc -w` counts, so code, tables and shown outputs are included. A page that a command of this repository writes is
reference, and not counted.
"""

from __future__ import annotations

import re

from tests.support.markdown_blocks import ROOT

LIMIT = 45_000


def count_words() -> dict[str, int]:
    """The words of each page that is not generated."""
    recipes = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipes += (ROOT / "tests" / "security" / "code_table.py").read_text(encoding="utf-8")
    generated = set(re.findall(r"> docs/(\S+\.md)", recipes))
    pages = sorted((ROOT / "docs").glob("*.md"))
    return {page.name: len(page.read_text(encoding="utf-8").split()) for page in pages if page.name not in generated}


if __name__ == "__main__":
    words = count_words()
    for name, number in sorted(words.items(), key=lambda item: item[1]):
        print(f"{number:6,} {name}")
    print(f"{sum(words.values()):6,} of at most {LIMIT:,}")
