# SPDX-License-Identifier: Apache-2.0
"""The page of `plan --html` in a real browser: every cell has its colour, the sliders change it. Needs chromium; 6 s."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli.app import build_app
from tests.support.browser import CHROMIUM, Browser
from tests.views.report.test_in_browser import WIDER

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
CELLS = "[...document.querySelectorAll('.fits button')].map(b => [b.dataset.key, b.className, b.textContent])"
MOVE = "(() => {{ const r = document.getElementById('{name}'); r.value = {value}; r.dispatchEvent(new Event('input')); }})()"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "plan.html"
    words = "size --model llama-3.1-8b --gpus 4 --gpu A100-40GB --host-memory 200GB --html".split()
    result = CliRunner().invoke(build_app([*words, str(file)]), [*words, str(file)])
    assert (result.exit_code, file.is_file()) == (0, True), result.stderr
    return file


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_loads_nothing_and_complains_of_nothing(
    browser: Browser, page: Path, width: int, dark: bool
) -> None:
    browser.trouble.clear()
    browser.requests.clear()
    browser.open(page.as_uri(), width, dark=dark)
    assert browser.ask("innerWidth") == width
    assert browser.ask(WIDER) == []
    assert browser.trouble == []
    assert browser.requests == [page.as_uri()]
    ground = browser.ask("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(17, 21, 28)" if dark else "rgb(246, 247, 249)")
    colours = browser.ask(
        "Object.fromEntries([...document.querySelectorAll('.fits button')].map(b => [b.className, getComputedStyle(b).color]))"
    )
    assert {"good", "bad"} <= colours.keys()
    assert colours["good"] != colours["bad"]
    assert browser.ask("document.querySelectorAll('svg .have, svg .limit').length") >= 2
    assert browser.ask("document.querySelectorAll('.share').length") >= 2


def test_sliders_change_the_cells_and_a_cell_says_its_settings(browser: Browser, page: Path) -> None:
    browser.trouble.clear()
    browser.open(page.as_uri())
    before = browser.ask(CELLS)
    browser.ask(MOVE.format(name="length", value=2))
    longer = browser.ask(CELLS)
    assert browser.ask("document.getElementById('length-value').textContent") == "16,384"
    assert longer != before
    states = [sum(css == "good" for _, css, _ in cells) for cells in (before, longer)]
    assert states[1] <= states[0]  # what holds longer sequences holds shorter ones
    browser.ask(MOVE.format(name="length", value=1))
    assert browser.ask(CELLS) == before
    browser.ask(MOVE.format(name="batch", value=2))
    assert browser.ask(CELLS) != before
    browser.ask("document.querySelector('.fits button.good').click()")
    assert "GPU" in browser.ask("document.getElementById('detail').textContent")
    assert browser.trouble == []
