# SPDX-License-Identifier: Apache-2.0
"""The pictures in docs/images: `python -m tests.docs.pictures` writes them. A test compares the text of the SVGs.

Terminal pictures are the real output of a command, drawn by rich. `--report RUN` also takes two pictures of the report of
a run, which needs chromium.
"""

from __future__ import annotations

import argparse
import html
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
MAX_BYTES = 150_000

FORMAT = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
    font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: system-ui, sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""
"""As rich's own, with fonts of the reader's machine: a picture loads nothing."""
THEME = TerminalTheme(
    (30, 33, 39),
    (220, 223, 228),
    [
        *((40, 44, 52), (240, 113, 120), (152, 195, 121), (229, 192, 123)),
        *((97, 175, 239), (198, 120, 221), (86, 182, 194), (220, 223, 228)),
    ],
)
_TEXT = re.compile(
    r'<text class="\S+-r\d+" x="([\d.]+)"[^>]*textLength="([\d.]+)" clip-path="url\(#\S+-line-(\d+)\)">(.*?)</text>'
)


class Picture(NamedTuple):
    """A file of docs/images: a command, the files that it reads with their content, and the terminal's columns."""

    name: str
    command: str
    files: dict[str, str]
    columns: int


_RECIPE = (ROOT / "ds_configs" / "llama-3.1-8b-zero3.yaml").read_text(encoding="utf-8")
_LOG = (ROOT / "tests" / "logs" / "cases" / "killed-on-one-host-of-two" / "job.log").read_text(encoding="utf-8")
PICTURES = (
    Picture(
        "validate",
        "harness validate-config ds_config.json --world-size 8 --deepspeed-version 0.19.8",
        {
            "ds_config.json": '{\n  "train_micro_batch_size_per_gpu": 2,\n  "zero_optimisation": {"stage": 3},\n'
            '  "gradient_clipping": 1.0\n}\n'
        },
        88,
    ),
    Picture("plan", "harness plan llama-3.1-8b-zero3.yaml", {"llama-3.1-8b-zero3.yaml": _RECIPE}, 100),
    Picture("failed-job", "harness explain --log job.log", {"job.log": _LOG}, 100),
)


def run_in_colour(picture: Picture) -> str:
    """The command line and what it prints on a terminal with colour."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in picture.files.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        words = shlex.split(picture.command)
        env = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
        env |= {"PYTHONPATH": str(ROOT), "COLUMNS": str(picture.columns), "FORCE_COLOR": "1"}
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=folder,
            env=env,
            text=True,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=120,
        )
    return f"$ {picture.command}\n{done.stdout}".rstrip() + "\n"


def draw(picture: Picture, output: str) -> str:
    """The SVG of a terminal that shows it."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123  (os.devnull is no path of ours)
        console = Console(
            record=True, width=picture.columns, file=nowhere, force_terminal=True, color_system="standard"
        )
        console.print(Text.from_ansi(output + "\n"), soft_wrap=False, end="")
        return console.export_svg(title="", theme=THEME, code_format=FORMAT, unique_id=picture.name)


def text_of(svg: str) -> str:
    """The text that an SVG of `draw` shows, line by line, without trailing spaces."""
    lines: dict[int, str] = {}
    for x, length, number, escaped in _TEXT.findall(svg):
        text = html.unescape(escaped).replace("\xa0", " ")
        column = round(float(x) / (float(length) / len(text)))
        line = lines.get(int(number), "")
        lines[int(number)] = line.ljust(column) + text
    return "\n".join(lines.get(n, "").rstrip() for n in range(max(lines) + 1))


def photograph_report(run_dir: Path) -> None:
    """The report of a run on a laptop and, dark, on a phone, as PNG."""
    from harness.views.report import write_report
    from tests.support.browser import Browser

    with tempfile.TemporaryDirectory() as folder, Browser(Path(folder) / "profile") as browser:
        page = write_report(run_dir, Path(folder) / "report.html").as_uri()
        for name, width, height, dark in (("report-laptop", 1280, 1000, False), ("report-phone-dark", 390, 1400, True)):
            browser.open(page, width, dark=dark)
            size = len(browser.screenshot(IMAGES / f"{name}.png", height))
            print(f"docs/images/{name}.png: {size} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.docs.pictures", description=__doc__)
    parser.add_argument("--report", type=Path, metavar="RUN", help="a run directory")
    options = parser.parse_args()
    IMAGES.mkdir(exist_ok=True)
    for picture in PICTURES:
        svg = draw(picture, run_in_colour(picture))
        (IMAGES / f"{picture.name}.svg").write_text(svg, encoding="utf-8")
        print(f"docs/images/{picture.name}.svg: {len(svg.encode())} bytes")
    if options.report is not None:
        photograph_report(options.report)


if __name__ == "__main__":
    main()
