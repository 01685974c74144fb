# SPDX-License-Identifier: Apache-2.0
"""The pictures in docs/images show what the commands print today, load nothing, and stay small."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.docs.pictures import IMAGES, MAX_BYTES, PICTURES, ROOT, Picture, draw, run_in_colour, text_of


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_a_picture_shows_what_its_command_prints(picture: Picture) -> None:
    svg = (IMAGES / f"{picture.name}.svg").read_text(encoding="utf-8")
    today = text_of(draw(picture, run_in_colour(picture)))  # long lines fold where the terminal ends
    assert text_of(svg).splitlines() == today.splitlines(), "write it again: python -m tests.docs.pictures"
    assert re.findall(r"https?://[^\"]+", svg) == ["http://www.w3.org/2000/svg"]


def test_the_comparison_sees_a_changed_word() -> None:
    picture = Picture("sample", "harness", {}, 40)
    lines = "$ harness\n\x1b[1;31merror\x1b[0m: two  words\n\n  <&> three\n"
    assert text_of(draw(picture, lines)) == "$ harness\nerror: two  words\n\n  <&> three"
    assert text_of(draw(picture, lines.replace("words", "world"))) != text_of(draw(picture, lines))


def test_pictures_are_small_and_shown() -> None:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    pages = "".join((ROOT / name).read_text(encoding="utf-8") for name in listed.split())
    files = sorted(IMAGES.iterdir())
    assert {f"{picture.name}.svg" for picture in PICTURES} <= {file.name for file in files}
    for file in files:
        assert file.stat().st_size < MAX_BYTES, file.name
        assert f"images/{file.name}" in pages, f"no page shows {file.name}"
