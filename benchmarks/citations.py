# SPDX-License-Identifier: Apache-2.0
"""Each quote of DeepSpeed's code in a gate, looked up in the source archive of each release that the gate speaks of.

    python benchmarks/citations.py [RELEASE ...] [--archives FOLDER] [--write]

Without releases, all those of `RELEASES`. An archive that is not in FOLDER yet is downloaded there by pip, the source
distribution alone, without what it depends on. Nothing of it is run or imported: files are read out of the archive.

Three questions, and the exit code is 1 when one of the first two has an answer:

* Which quotes do not stand in a release that their gate and their own `since` and `until` speak of?
* Which keys of `harness.facts` are no word of a release that they are said to be read by?
* Which gates have no quote at all for a release? They rest on what their pages say was run or read.

`--write` puts the answers into `benchmarks/results/citations-DATE.md` and the releases in which each quote stands into
`citations-DATE.json`, which `tests/gates/test_citations.py` compares with the gates.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from harness.facts.deepspeed_keys import Key, block_keys, block_paths  # noqa: E402
from harness.facts.deepspeed_version import Version, parse_version  # noqa: E402
from harness.gates.registry import Gate, all_gates  # noqa: E402
from tests.releases.archives import ARCHIVES, get_archive, iterate_files  # noqa: E402
from tests.releases.archives import DEEPSPEED_RELEASES as RELEASES  # noqa: E402

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Release(NamedTuple):
    """The files of one release that are cited, by their path below `deepspeed/`, and every word of its Python code."""

    name: str
    files: Mapping[str, str]
    words: frozenset[str]

    @property
    def version(self) -> Version:
        return parse_version(self.name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", nargs="*", default=RELEASES, help="such as 0.18.2")
    parser.add_argument("--archives", type=Path, default=ARCHIVES)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    cited_files = {cite.file for gate in all_gates() for cite in gate.cites}
    releases = [
        read_release(name, get_archive("deepspeed", name, args.archives), cited_files) for name in args.releases
    ]
    misses, gaps = list(find_misses(releases)), list(find_gaps(releases))
    unknown_keys = list(find_unknown_keys(releases))
    text = format_page(releases, misses, unknown_keys, gaps)
    print(text)
    if args.write:
        file = ROOT / "benchmarks" / "results" / f"citations-{datetime.now(UTC):%Y-%m-%d}.md"
        file.write_text(text, encoding="utf-8")
        file.with_suffix(".json").write_text(format_places(releases), encoding="utf-8")
    return 1 if misses or unknown_keys else 0


def read_release(release: str, archive: Path, cited_files: Iterable[str]) -> Release:
    """The release as its archive has it, where `accelerator/` and `csrc/` are not below `deepspeed/` as when built."""
    wanted, files, words = set(cited_files), {}, set()
    for path, read in iterate_files(archive):
        inner = path.removeprefix("deepspeed/")
        is_python = path.startswith("deepspeed/") and path.endswith(".py")
        text = read().decode("utf-8", "replace") if is_python or inner in wanted else ""
        if inner in wanted:
            files[inner] = text
        if is_python:
            words |= set(_WORD.findall(text))
    return Release(release, files, frozenset(words))


def find_misses(releases: Sequence[Release]) -> Iterator[tuple[str, str, str, str]]:
    """(gate, file, quote, releases) where a quote does not stand although it should."""
    for gate in all_gates():
        for cite in gate.cites:
            asked = [r for r in releases if gate.applies_to(r.version) and cite.speaks_of(r.version)]
            missing = [r.name for r in asked if cite.quote not in r.files.get(cite.file, "")]
            if missing:
                yield gate.id, cite.file, cite.quote, format_releases(missing, releases)
            if releases[0].name == RELEASES[0] and not asked:
                yield gate.id, cite.file, cite.quote, "speaks of no release"


def find_gaps(releases: Sequence[Release]) -> Iterator[tuple[Gate, str]]:
    """The gates that cite code, and the releases of theirs for which they have no quote."""
    for gate in all_gates():
        asked = [r for r in releases if gate.applies_to(r.version)]
        bare = [r.name for r in asked if not any(cite.speaks_of(r.version) for cite in gate.cites)]
        if gate.cites and bare:
            yield gate, format_releases(bare, releases)


def find_unknown_keys(releases: Sequence[Release]) -> Iterator[tuple[str, str]]:
    """(key, releases) where a release that should read the key does not have the word."""
    for block in ("", *block_paths()):
        for key in (block_keys(block) or {}).values():
            path = f"{block}.{key.name}" if block else key.name
            missing = [r.name for r in releases if _is_read(path, key, r.version) and key.name not in r.words]
            if missing:
                yield path, format_releases(missing, releases)


def _is_read(path: str, key: Key, version: Version) -> bool:
    """Do the tables say that this release reads the key, and the blocks around it?"""
    *blocks, _ = path.split(".")
    outer = [(block_keys(".".join(blocks[:depth])) or {}).get(name) for depth, name in enumerate(blocks)]
    known = [key, *(entry for entry in outer if entry is not None)]
    return all((k.since is None or version >= k.since) and (k.gone is None or version < k.gone) for k in known)


def format_releases(names: Iterable[str], releases: Sequence[Release]) -> str:
    """`0.14.0 to 0.15.4, 0.17.0`: ranges without a gap among the releases that were looked at."""
    wanted, ranges, start, last = set(names), [], "", ""
    for release in [*(r.name for r in releases), ""]:
        if release in wanted:
            start, last = start or release, release
        elif start:
            ranges.append(start if start == last else f"{start} to {last}")
            start = ""
    return ", ".join(ranges)


def format_places(releases: Sequence[Release]) -> str:
    """JSON, a line a quote: ranges (first and last release) in which it stands, whatever the gates say."""
    cites = sorted({(cite.file, cite.quote) for gate in all_gates() for cite in gate.cites})
    lines = []
    for file, quote in cites:
        standing = [r.name for r in releases if quote in r.files.get(file, "")]
        stands = [part.partition(" to ")[::2] for part in format_releases(standing, releases).split(", ") if part]
        lines.append(json.dumps({"file": file, "quote": quote, "stands": stands}))
    return f'{{"releases": {json.dumps([r.name for r in releases])},\n"quotes": [\n' + ",\n".join(lines) + "\n]}\n"


def format_page(
    releases: Sequence[Release],
    misses: Sequence[tuple[str, str, str, str]],
    unknown_keys: Sequence[tuple[str, str]],
    gaps: Sequence[tuple[Gate, str]],
) -> str:
    """Markdown: counts, and every answer."""
    gates = all_gates()
    cites = [(gate, cite) for gate in gates for cite in gate.cites]
    lookups = sum(gate.applies_to(r.version) and cite.speaks_of(r.version) for gate, cite in cites for r in releases)
    keys = sum(len(block_keys(block) or {}) for block in ("", *block_paths()))
    named = f"{releases[0].name} to {releases[-1].name}" if len(releases) > 1 else releases[0].name
    lines = [
        "# Citations of DeepSpeed's code, by release",
        "",
        f"`python benchmarks/citations.py`: {len(gates)} gates with {len(cites)} quotes, looked up in the source"
        f" archives of {len(releases)} releases, {named}: {lookups:,} look-ups, {len(misses)} misses. {keys} keys of"
        f" the tables: {len(unknown_keys)} are no word of a release that should read them.",
        "",
        "| Gate | File | Quote | Does not stand in |",
        "| --- | --- | --- | --- |",
        *(f"| {gate} | `{file}` | `{quote}` | {where} |" for gate, file, quote, where in misses),
        "",
        "| Key | No word of |",
        "| --- | --- |",
        *(f"| `{key}` | {where} |" for key, where in unknown_keys),
        "",
        "Gates that cite code, but not of each of their releases; of these the page says what was run or read:",
        "",
        "| Gate | Severity | Releases without a quote |",
        "| --- | --- | --- |",
        *(f"| {gate.id} | {', '.join(gate.severities)} | {where} |" for gate, where in gaps),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
