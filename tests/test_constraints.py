# SPDX-License-Identifier: Apache-2.0
"""The dependency sets of `.ci/run deps`: the oldest are the lower bounds of pyproject.toml, the default is in its bounds."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from harness.facts.deepspeed_version import parse_version
from harness.facts.tested_releases import TESTED_RELEASES, is_tested

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = ("train", "lora", "qlora", "stores", "trackers", "test")
BOUND = re.compile(r"^([\w.-]+)>=([\d.]+)")


def read_set(name: str) -> dict[str, str]:
    lines = (ROOT / "constraints" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {package.lower().replace("_", "-"): version for package, version in pairs}


def lower_bounds() -> dict[str, str]:
    texts = [*PROJECT["dependencies"], *(text for extra in EXTRAS for text in PROJECT["optional-dependencies"][extra])]
    matches = (BOUND.match(text) for text in texts)
    return {match[1].lower(): match[2] for match in matches if match}


def test_the_oldest_set_is_the_lower_bounds() -> None:
    assert read_set("oldest") == lower_bounds()


def test_the_default_set_is_inside_the_bounds() -> None:
    default = read_set("default")
    for package, bound in lower_bounds().items():
        if package in default:
            assert parse_version(default[package]) >= parse_version(bound), package
    assert {
        package for package in TESTED_RELEASES if package in default and not is_tested(package, default[package])
    } == set()
