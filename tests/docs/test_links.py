# SPDX-License-Identifier: Apache-2.0
"""Links of all Markdown files: relative ones lead to a file and a heading, others are well-formed addresses."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.markdown_blocks import PAGES as DOCUMENTS
from tests.support.markdown_blocks import ROOT

LISTED = subprocess.run(
    ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
).stdout.splitlines()
PAGES = [ROOT / name for name in LISTED if (ROOT / name).is_file()]
CODE = re.compile(r"^(`{3,}).*?^\1\s*$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
PLACEHOLDER = re.compile(r"\b(NAME|FEATURE|FILE|FAMILY|PROGRAM)\b|\.\.")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)


@cache
def slugs_of(page: Path) -> frozenset[str]:
    """Anchors of a page's headings, as git hosts make them."""
    text = re.sub(r"^(`{3,}).*?^\1\s*$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    slugs: list[str] = []
    for heading in HEADING.findall(text):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        slugs.append(slug if slug not in slugs else f"{slug}-{slugs.count(slug)}")
    return frozenset(slugs)


def broken_links(page: Path, text: str) -> list[str]:
    broken = []
    for target in LINK.findall(CODE.sub("", text)):
        if re.match(r"[a-z]+:", target):
            parts = urlsplit(target)
            if parts.scheme not in ("http", "https") or "." not in parts.netloc:
                broken.append(target)
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or not file.is_relative_to(ROOT):
            broken.append(target)
        elif anchor and anchor not in slugs_of(file):
            broken.append(f"{target} (no such heading)")
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken_links(page, page.read_text(encoding="utf-8")) == []


def missing_paths(text: str) -> list[str]:
    """Files that a page names in code, from the root of the repository; capitals and dots stand for any name."""
    prose = re.sub(r"^(`{3,}).*?^\1\s*$", "", text, flags=re.DOTALL | re.MULTILINE)
    spans = " ".join(re.findall(r"`([^`\n]+)`", prose))
    named = re.findall(r"(?<![\w./-])((?:benchmarks|docs|ds_configs|harness|hostfiles|launch|tests)/[\w./-]*\w)", spans)
    return [name for name in named if not PLACEHOLDER.search(name) and not (ROOT / name).exists()]


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_is_named_exists(page: Path) -> None:
    assert missing_paths(page.read_text(encoding="utf-8")) == []


def test_a_missing_file_is_found() -> None:
    assert missing_paths("see `tests/no_such.py`, `ds_configs/NAME.yaml` and `docs/limits.md`") == ["tests/no_such.py"]


@pytest.mark.parametrize(
    "target", ["no-such.md", "README.md#no-such-heading", "#no-such", "https://nowhere", "../../x"]
)
def test_a_broken_link_is_found(target: str) -> None:
    assert len(broken_links(ROOT / "README.md", f"see [this]({target})")) == 1
