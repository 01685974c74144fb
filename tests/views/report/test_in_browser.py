# SPDX-License-Identifier: Apache-2.0
"""The report in a real browser: charts are drawn, nothing is wider than a phone, nothing is loaded. Needs chromium; 8 s."""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.run_records.summary import write_remarks
from harness.views.report import write_report
from harness.views.report.live_server import LiveServer
from harness.views.report.runs_page import write_runs_page
from tests.support.browser import CHROMIUM, Browser
from tests.support.sample_run import eventful, head, step, tiny, write_run

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
WIDER = """[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1
    && !e.closest('.scroll')).map(e => e.outerHTML.slice(0, 80))"""
UNDRAWN = """[...document.querySelectorAll('.plot')].filter(e => e.clientWidth && !e.querySelector('canvas')).map(e => e.id)"""
INK = """[...document.querySelectorAll('canvas')].map(c => { const d = c.getContext('2d').getImageData(0, 0, c.width,
    c.height).data; const seen = new Set(); for (let i = 0; i < d.length; i += 4) if (d[i + 3]) seen.add(d[i] + ',' +
    d[i + 1] + ',' + d[i + 2]); return seen.size; })"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return eventful(tmp_path_factory.mktemp("runs") / "large-20260921-120000", 120)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_is_drawn_and_fits(browser: Browser, run_dir: Path, tmp_path: Path, width: int, dark: bool) -> None:
    browser.trouble.clear()
    browser.requests.clear()
    url = write_report(run_dir).as_uri()
    browser.open(url, width, dark=dark)
    assert browser.ask("innerWidth") == width
    assert browser.ask("document.querySelectorAll('.plot canvas').length") == 8
    assert browser.ask(UNDRAWN) == []
    assert min(browser.ask(INK)) > 5  # an empty canvas has one colour at most
    assert browser.ask(WIDER) == []
    assert browser.trouble == []
    assert browser.requests == [url]
    picture = browser.screenshot(tmp_path / "report.png", 900)
    ground = browser.ask("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(17, 21, 28)" if dark else "rgb(246, 247, 249)")
    assert len(zlib.compress(picture)) > 10_000  # more than one colour


def test_smoothing_and_axes(browser: Browser, run_dir: Path) -> None:
    browser.trouble.clear()
    browser.open(write_report(run_dir).as_uri())
    plots = "[...document.querySelectorAll('.plot canvas')]"
    pictures = f"{plots}.map(c => c.toDataURL())"
    change = (
        "document.getElementById('{0}').value = '{1}'; document.getElementById('{0}').dispatchEvent(new Event('{2}'))"
    )
    raw = browser.ask(pictures)
    browser.ask(change.format("smoothing", "0.9", "input"))
    smooth = browser.ask(pictures)
    assert [a == b for a, b in zip(raw, smooth, strict=True)][:3] == [False, False, False]  # loss, rate, norm
    for axis in ("tokens", "hours"):
        browser.ask(change.format("axis", axis, "change"))
        moved = browser.ask(pictures)
        assert all(a != b for a, b in zip(moved[:5], smooth[:5], strict=True)), axis
    browser.ask(change.format("axis", "step", "change") + ";" + change.format("smoothing", "0", "input"))
    assert browser.ask(pictures) == raw
    assert browser.trouble == []


@pytest.fixture(scope="module")
def all_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of five runs, one of them a branch with tags; the name of another is a script."""
    folder = tmp_path_factory.mktemp("many") / "runs"
    for number in range(3):
        eventful(folder / f"large-{number}", 60 + 20 * number)
    write_report(folder / "large-1")
    evil = write_run(folder / "<img src=x onerror=alert(1)>", tiny(), [head(tiny()), step(1, loss=9.5)])
    launch = {"training": "z", "parent": "large-2", "branch_of": "large-2"}
    branch = write_run(
        folder / "z", tiny(), [head(tiny(), start_step=40), step(41)], files={"launch.json": json.dumps(launch)}
    )
    write_remarks(branch, ["lr sweep"], "3 x the rate")
    write_remarks(evil, ["<b>"], "<script>document.title = 'owned'</script>")
    (folder.parent / "pages").mkdir()
    return write_runs_page(folder, folder.parent / "pages" / "all.html")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_of_all_runs(browser: Browser, all_runs: Path, tmp_path: Path, width: int, dark: bool) -> None:
    browser.trouble.clear()
    browser.requests.clear()
    browser.open(all_runs.as_uri(), width, dark=dark)
    assert browser.ask("document.querySelectorAll('.plot canvas').length") == 3
    assert min(browser.ask(INK)) > 5
    assert browser.ask(WIDER) == []
    assert browser.ask("document.querySelectorAll('img').length") == 0
    assert browser.trouble == []
    assert browser.requests == [all_runs.as_uri()]
    browser.screenshot(tmp_path / "runs.png")


def test_runs_are_sorted_filtered_and_compared(browser: Browser, all_runs: Path) -> None:
    browser.trouble.clear()
    browser.open(all_runs.as_uri())
    names = "[...document.querySelectorAll('.all-runs tbody tr')].filter(r => !r.hidden).map(r => r.cells[1].innerText)"
    shown = browser.ask(names)
    assert shown.index("z") == shown.index("large-2") + 1
    assert browser.ask("document.querySelector('tr.branch td[title]').title") == "branch of large-2"
    link = browser.ask("document.querySelector('.all-runs a').href")
    assert link == (all_runs.parent.parent / "runs/large-1/report.html").as_uri()
    title = "[...document.querySelectorAll('.all-runs th button')].find(b => b.innerText == '{}').click()"
    browser.ask(title.format("loss"))
    losses = "[...document.querySelectorAll('.all-runs tbody tr')].map(r => Number(r.cells[4].innerText))"
    assert browser.ask(losses) == sorted(browser.ask(losses))
    browser.ask(title.format("loss"))
    assert browser.ask(losses) == sorted(browser.ask(losses), reverse=True)
    find = "const f = document.getElementById('filter'); f.value = 'SWEEP'; f.dispatchEvent(new Event('input'))"
    browser.ask("{" + find + "}")
    assert browser.ask(names) == ["z"]
    assert browser.ask("document.getElementById('count').innerText") == "1 of 5 runs"
    keys = "[...document.querySelector('.legend').children].filter(k => !k.hidden).length"
    before = browser.ask(f"[{keys}, document.querySelector('canvas').toDataURL()]")
    browser.ask("document.querySelectorAll('.all-runs input').forEach(b => { if (!b.checked) b.click(); })")
    after = browser.ask(f"[{keys}, document.querySelector('canvas').toDataURL()]")
    assert (before[0], after[0]) == (3, 5)
    assert before[1] != after[1]
    browser.ask("document.querySelectorAll('.all-runs input').forEach(b => b.click())")
    assert browser.ask("document.querySelectorAll('.plot canvas').length") == 0
    assert browser.trouble == []


def test_a_hostile_name_runs_no_script(browser: Browser, tmp_path: Path) -> None:
    evil = "<img src=x onerror=document.title='owned'><script>document.title='owned'</script>"
    folder = eventful(tmp_path / "run", 60, changes={"launch": {"env": {"A": evil}}})
    for name in ("spec.yaml", "ds_config.json", "sample.txt"):
        (folder / name).write_text(evil + "</script></style></pre>" + evil)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"type": "stop", "step": 60, "reason": evil}) + "\n")
    folder = folder.rename(tmp_path / "<img src=x onerror=alert(1)>")
    browser.trouble.clear()
    browser.open(write_report(folder).as_uri())
    assert browser.ask("document.title").startswith("<img src=x")
    assert browser.ask("document.querySelectorAll('img').length") == 0
    assert browser.ask(UNDRAWN) == []
    assert browser.trouble == []


def test_a_watched_run_is_drawn_anew_by_itself(browser: Browser, tmp_path: Path) -> None:
    folder = eventful(tmp_path / "run", 60)
    made = LiveServer([folder], 0)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        browser.open(made.url)
        browser.ask("document.querySelectorAll('details.card')[1].open = true")
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(step(61, loss=1.2345)) + "\n")
        found = False
        for _ in range(20):  # the page is replaced while it is asked, so the answer of one may never come
            browser.ask("new Promise(r => setTimeout(r, 300))")
            new = "document.body.innerText.includes('1.2345')"
            if found := browser.ask(f"{new} && document.querySelectorAll('details.card')[1].open") is True:
                break
        assert found
    finally:
        made.shutdown()
        made.server_close()
