# SPDX-License-Identifier: Apache-2.0
"""The report in a real browser: charts are drawn, nothing is wider than a phone, nothing is loaded. Needs chromium; 8 s."""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.views.report import write_report
from harness.views.report.live_server import LiveServer
from tests.support.browser import CHROMIUM, Browser
from tests.support.sample_run import eventful, step

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
