# SPDX-License-Identifier: Apache-2.0
"""Sphinx builds the site from the whole repository: the pages in `docs/`, and the READMEs that they link to."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import harness  # noqa: E402
from harness.check.finding_index import FAMILIES, list_rows  # noqa: E402
from harness.views.gate_pages import UPSTREAM, page_text  # noqa: E402

project = "harness"
version = release = harness.__version__
extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = [
    "*.md",
    "docs/**",
    "benchmarks/**.md",
    "ds_configs/*.md",
    "harness/*.md",
    "harness/facts/*.md",
    "harness/gates/*.md",
    "hostfiles/*.md",
    "launch/*.md",
    "tests/conformance/*.md",
]
exclude_patterns = ["**/.*", ".*", "build", "dist", "rehearsals", "runs", "tuning", "**/__pycache__", "*.egg-info"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"harness {release}"
html_extra_path = ["site_root"]
FINDINGS = ROOT / "docs" / "findings"
"""Pages of gates by family, written by each build and not committed."""


def write_finding_pages(_: Sphinx) -> None:
    """A page for each family of gates, from the registry. A page that has not changed keeps its time."""
    FINDINGS.mkdir(exist_ok=True)
    pages: dict[str, list[str]] = {}
    for row in list_rows():
        if row.gate is None:
            continue
        family = row.id[:2]
        head = [f"# {family}: {FAMILIES.get(family, family)}"]
        text = re.sub(r"^## (.+)$", r"**\1**\n", page_text(row.gate), flags=re.MULTILINE)
        text = re.sub(r"^```(?!$|yaml|json).*$", "```text", text, flags=re.MULTILINE)
        facts = f"Without this gate, DeepSpeed {UPSTREAM[row.gate.upstream]}. Releases: {row.gate.versions}."
        cites = "".join(f"\n* `deepspeed/{cite.file}`: `{cite.quote}`" for cite in row.gate.cites)
        pages.setdefault(family, head).append(f"## {row.id}: {row.name}\n\n{text}\n\n{facts}\n{cites}")
    for family, parts in pages.items():
        file, text = FINDINGS / f"{family}.md", "\n\n".join(parts) + "\n"
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Sphinx calls this once, before it looks for pages."""
    app.connect("builder-inited", write_finding_pages)
