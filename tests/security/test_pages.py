# SPDX-License-Identifier: Apache-2.0
"""Text of somebody else's in the pages and pictures that the harness writes."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from harness.views.report.page import MAX_BYTES, write_report
from tests.security.attempts import Attempt
from tests.security.command_runner import SPEC, run_command
from tests.support.sample_run import eventful, head, step, tiny, write_run

EVIL = "</script></style></title></pre><!--<script>alert(1)</script><img src=x onerror=alert(1)><a href='javascript:1'>\u2028"


class _Page(HTMLParser):
    """The elements and attributes of a page, and the texts of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.scripts: list[str] = []
        self._is_script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self._is_script = tag == "script"

    def handle_data(self, data: str) -> None:
        if self._is_script:
            self.scripts.append(data)
            self._is_script = False


@pytest.fixture(scope="module")
def evil_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A report of a run each of whose texts is hostile."""
    folder = eventful(tmp_path_factory.mktemp("run") / "run", 60, changes={"launch": {"env": {"A": EVIL}}})
    for name in ("spec.yaml", "ds_config.json", "sample.txt"):
        (folder / name).write_text(EVIL)
    for file in folder.glob("*.json"):
        if file.name not in ("ds_config.json", "spec.resolved.json"):
            file.write_text(json.dumps(_with_evil_texts(json.loads(file.read_text()))))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kinds = (
        {"type": kind, "step": 60, "reason": EVIL, "error": EVIL, "host": EVIL, "path": EVIL}
        for kind in ("stop", "save", "skip")
    )
    rows = [*(_with_evil_texts(row, keep=("type",)) for row in rows), *kinds]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = folder.rename(folder.parent / EVIL.replace("/", "-"))
    return write_report(folder).read_text(encoding="utf-8")


def _with_evil_texts(value: object, keep: tuple[str, ...] = ()) -> object:
    if isinstance(value, dict):
        return {k: v if k in keep else _with_evil_texts(v, keep) for k, v in value.items()}
    if isinstance(value, list):
        return [_with_evil_texts(item, keep) for item in value]
    return EVIL if isinstance(value, str) else value


@Attempt("W20", "HTML in every text of a run directory", "escaped", "no element and no attribute comes from it")
def test_report(evil_page: str) -> None:
    page = _Page(evil_page)
    assert "img" not in page.tags
    assert page.tags.count("script") == 3
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert not [value for _, value in page.attributes if value.strip().lower().startswith("javascript:")]
    assert "alert(1)" not in "".join(page.scripts[1:])


@Attempt("W21", "`</script>` in the data of the curves", "escaped", "escaped, and valid JSON")
def test_embedded_data(evil_page: str) -> None:
    (data,) = re.findall(r'<script type="application/json" id="charts">(.*?)</script>', evil_page, re.DOTALL)
    json.loads(data)
    assert "<" not in data


@Attempt("W22", "a script that input brings into the page", "refused by the policy", "refused: one script, by its hash")
def test_policy(evil_page: str) -> None:
    policy = next(value for name, value in _Page(evil_page).attributes if name == "content" and "default-src" in value)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["connect-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    script = _Page(evil_page).scripts[-1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert rules["script-src"] == f"'sha256-{digest}'"


@Attempt("W23", "a report that loads from the network", "it loads nothing", "it loads nothing")
def test_no_loads(evil_page: str) -> None:
    loads = [
        value for name, value in _Page(evil_page).attributes if name in ("src", "srcset", "data", "poster", "action")
    ]
    assert loads == []
    assert [v for n, v in _Page(evil_page).attributes if n == "href" and not v.startswith(("#", "https://"))] == []
    assert "url(" not in evil_page.replace("url(data:", "")


@Attempt("W24", "3,000 rows of metrics, 20,000 findings and hosts", "a bounded page", "below two megabytes")
def test_size(tmp_path: Path) -> None:
    finding = {"gate": "MM001", "severity": "warning", "message": "m" * 200, "fix": {"title": "t"}}
    files = {"findings.json": json.dumps({"findings": [finding] * 20_000, "ignored": []})}
    lines = [head(tiny(), hosts=[f"host{n}" for n in range(20_000)]), *(step(n) for n in range(1, 3_000))]
    folder = write_run(tmp_path / "r", tiny(), lines, ("failed",) * 3, files=files)
    assert len(write_report(folder).read_bytes()) <= MAX_BYTES


@Attempt("W25", "`report.html` is a link to a file of the reader's", "the file is overwritten", "the link is replaced")
def test_report_link(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "r", tiny(), [head(tiny()), step(1)])
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (folder / "report.html").symlink_to(victim)
    write_report(folder)
    assert victim.read_text() == "precious"
    assert not (folder / "report.html").is_symlink()


@Attempt(
    "W26", "HTML in the name of a run, for the picture of its memory", "the name is refused", "the name is refused"
)
def test_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cluster = "cluster: {gpu: H100-80GB, gpus_per_node: 2}\n"
    Path("s.yaml").write_text(f"name: {json.dumps(EVIL)}\n{SPEC}{cluster}")
    answer = run_command("plan", "s.yaml", "--world-size", "2", "--plot", "m.svg")
    assert answer.code == 1
    assert "SP007" in answer.text
    assert not Path("m.svg").exists()
    Path("s.yaml").write_text(f"name: good\n{SPEC}{cluster}")
    assert run_command("plan", "s.yaml", "--world-size", "2", "--plot", "m.svg").code == 0
    assert "Memory of good" in Path("m.svg").read_text(encoding="utf-8")
