# SPDX-License-Identifier: Apache-2.0
"""Does `harness explain --log` know the messages that DeepSpeed itself can end with?

    python benchmarks/log_catalogue.py [--folder runtime/zero] [--sites] [--unmapped] [--ungated]
                                       [--write] [--archives FOLDER]

Reads every `raise` and `assert` of the installed DeepSpeed below `FOLDERS` (`message_sites.py`), writes each as a log
of one rank would have it and asks `harness.diagnosis` for the cause. A site is mapped if the answer has a cause and a
change of substance. A site without a message (`assert` alone) is shown apart and not counted. `--sites` prints each
site with its answer, `--unmapped` the rows of `tests/diagnosis/unmapped_messages.tsv` as they have to be, and
`--ungated` the settings that a remedy names and no gate foresees.

`--write` writes `benchmarks/results/log-catalogue-DATE.md`, and reads the archives of all releases for
`harness/diagnosis/catalogue/releases.json`: the first and last release whose files have the message of a row.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.message_sites import MessageSite, read_sites  # noqa: E402
from harness.diagnosis import Diagnosis, diagnose  # noqa: E402
from harness.diagnosis.catalogue import MESSAGE_FILES, all_causes, all_rows, causes_by_id, rows_of  # noqa: E402
from harness.diagnosis.decision import find_changes  # noqa: E402
from harness.diagnosis.diagnosis_types import FailureSignature  # noqa: E402
from harness.facts.deepspeed_keys import block_keys, block_paths  # noqa: E402
from harness.facts.deepspeed_version import installed_source_folder, installed_version  # noqa: E402
from tests.releases.archives import ARCHIVES, SUPPORTED_RELEASES, read_python_files  # noqa: E402

FOLDERS = ("runtime/", "launcher/", "comm/", "ops/op_builder/", "checkpoint/", "module_inject/")
UNMAPPED = ROOT / "tests" / "diagnosis" / "unmapped_messages.tsv"
RELEASES = ROOT / "harness" / "diagnosis" / "catalogue" / "releases.json"
_NO_SUBSTANCE = re.compile(
    r"^(?:read the lines below|check the (?:frame|frames|line) \w+$|`harness explain \w+` explains it$|$)"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """A site and what the diagnosis says of it."""

    site: MessageSite
    diagnosis: Diagnosis

    @property
    def is_counted(self) -> bool:
        return self.site.kind != "bare assert"

    @property
    def is_mapped(self) -> bool:
        return bool(self.diagnosis.cause) and not _NO_SUBSTANCE.search(self.diagnosis.change)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default="", help="only files below it, such as runtime/zero")
    parser.add_argument("--sites", action="store_true", help="print each site with its answer")
    parser.add_argument("--unmapped", action="store_true", help="print the rows of unmapped_messages.tsv")
    parser.add_argument("--ungated", action="store_true", help="print messages about the JSON that no gate foresees")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--archives", type=Path, default=ARCHIVES)
    arguments = parser.parse_args()
    answers = [a for a in ask_installed() if a.site.file.startswith(arguments.folder)]
    if arguments.sites:
        print("\n".join(map(format_answer, answers)))
    if arguments.unmapped:
        print("\n".join(format_unmapped(answers)))
        return 0
    if arguments.ungated:
        print("\n".join(format_ungated(answers)))
        return 0
    if arguments.write:
        RELEASES.write_text(format_releases(find_releases(arguments.archives)), encoding="utf-8")
        file = ROOT / "benchmarks" / "results" / f"log-catalogue-{datetime.now(UTC):%Y-%m-%d}.md"
        file.write_text(format_page(answers), encoding="utf-8")
    print(format_page(answers))
    return 0


def installed_files() -> dict[str, str]:
    """The Python files of the installed DeepSpeed, by their path below it. Raises FileNotFoundError without it."""
    folder = installed_source_folder()
    if folder is None:
        raise FileNotFoundError("DeepSpeed is not installed")
    return {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in folder.rglob("*.py")}


def ask_installed() -> list[Answer]:
    """The answer for each site of the installed DeepSpeed below `FOLDERS`."""
    sites = [site for site in read_sites(installed_files()) if site.file.startswith(FOLDERS)]
    return [Answer(site, diagnose([io.BytesIO(site.format_log().encode())])) for site in sites]


def read_reasons() -> dict[tuple[str, str, str], str]:
    """The reasons of `unmapped_messages.tsv`, by the key of a site."""
    lines = UNMAPPED.read_text("utf-8").splitlines() if UNMAPPED.is_file() else []
    rows = [line.split("\t") for line in lines if line and not line.startswith("#")]
    return {(file, function, message): reason for file, function, message, reason in rows}


def format_unmapped(answers: Iterable[Answer]) -> list[str]:
    """A row for each site that is not mapped, with the reason that it has already."""
    reasons = read_reasons()
    keys = dict.fromkeys(a.site.key for a in answers if a.is_counted and not a.is_mapped)
    return ["\t".join((*key, reasons.get(key, ""))).replace("\r", " ") for key in keys]


def format_ungated(answers: Iterable[Answer]) -> list[str]:
    """`CAUSE KEY=VALUE COUNT FILE: MESSAGE` for the messages of the installed release whose remedy sets or removes a
    key of the DeepSpeed JSON, though neither a gate nor the reader of the file reports their cause.
    """
    rows = dict[str, list[str]]()
    for answer in answers:
        changes = find_changes(answer.diagnosis.change)
        named = ", ".join(f"{key}={json.dumps(value)}" for key, value in changes.items() if key in json_keys())
        if named and answer.diagnosis.cause in causes_by_id():
            said = " ".join(answer.site.error_line.split())[:100]
            rows.setdefault(f"{answer.diagnosis.cause} {named}", []).append(f"{answer.site.file}: {said}")
    return [f"{row}  {len(said)}  {said[0]}" for row, said in sorted(rows.items())]


@cache
def json_keys() -> frozenset[str]:
    """The dotted keys of every documented block of the DeepSpeed JSON."""
    blocks = {path: block_keys(path) or {} for path in ("", *block_paths())}
    return frozenset(f"{path}.{key}".lstrip(".") for path, block in blocks.items() for key in block)


def format_answer(answer: Answer) -> str:
    site, diagnosis = answer.site, answer.diagnosis
    sure = "" if diagnosis.confidence == "certain" else " *"
    answer_line = f"{diagnosis.cause or '-'}{sure} {diagnosis.title} -> {diagnosis.change[:100]}"
    return f"{site.file}:{site.line} {site.function}: {site.error_line[:150]!r}\n    {answer_line}"


def find_releases(archives: Path) -> dict[str, tuple[str, str]]:
    """The first and last release that says the message of a row or signature, by its pattern."""
    said: dict[str, tuple[str, str]] = {}
    for release in SUPPORTED_RELEASES:
        for pattern in find_said_patterns(_read_lines(release, archives)):
            said[pattern] = (said.get(pattern, (release, ""))[0], release)
        print(f"{release}: {len(said)} patterns", file=sys.stderr)
    return said


def find_said_patterns(lines: Iterable[tuple[str, str]]) -> set[str]:
    """The patterns that are the first to match one of the lines. `lines`: (frame, line)."""
    return {pattern for frame, line in lines if (pattern := _first_pattern(frame, line))}


def lines_of_sites(sites: Iterable[MessageSite]) -> set[tuple[str, str]]:
    """(frame, line) of each line of the sites' messages."""
    return {
        (f"deepspeed/{site.file} {site.function}", line)
        for site in sites
        if site.kind != "re-raise"
        for line in site.error_line.splitlines()
    }


def _read_lines(release: str, archives: Path) -> set[tuple[str, str]]:
    """The lines of a release, kept beside its archive."""
    source = Path(__file__).with_name("message_sites.py")
    kept = archives / f"messages-{release}.json"
    if kept.is_file() and kept.stat().st_mtime > source.stat().st_mtime:
        return {(frame, line) for frame, line in json.loads(kept.read_text("utf-8"))}
    lines = lines_of_sites(read_sites(read_python_files("deepspeed", release, archives)))
    kept.write_text(json.dumps(sorted(lines)), encoding="utf-8")
    return lines


@cache
def _signatures() -> Sequence[tuple[FailureSignature, re.Pattern[str], re.Pattern[str]]]:
    signatures = [row.signature for row in all_rows()]
    signatures += [signature for cause in all_causes() for signature in cause.signatures]
    return [(s, re.compile(s.pattern), re.compile(s.frames)) for s in signatures]


@cache
def _first_pattern(frame: str, line: str) -> str:
    return next(
        (s.pattern for s, pattern, frames in _signatures() if pattern.search(line) and frames.search(frame)), ""
    )


def format_releases(said: dict[str, tuple[str, str]]) -> str:
    """JSON, a line a pattern."""
    rows = [f"{json.dumps(pattern)}: {json.dumps(list(ends))}" for pattern, ends in sorted(said.items())]
    return "{\n" + ",\n".join(rows) + "\n}\n"


def format_page(answers: Sequence[Answer]) -> str:
    """Markdown: coverage by folder, causes, and every site without an answer."""
    counted = [a for a in answers if a.is_counted]
    bare = [a for a in answers if not a.is_counted]
    mapped = [a for a in counted if a.is_mapped]
    share = f"{len(mapped) / max(1, len(counted)):.1%}"
    lines = [
        "# Messages of DeepSpeed that the diagnosis of logs knows",
        "",
        f"`python benchmarks/log_catalogue.py`, DeepSpeed {installed_version()}: {len(mapped)} of {len(counted)}"
        f" `raise` and `assert` with a message lead to a cause with a change ({share}); so do"
        f" {sum(a.is_mapped for a in bare)} of {len(bare)} `assert` without a message, which their frame identifies.",
        "",
        "| Folder | Sites | Mapped | Certain | Share | Without a message | Mapped |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        *_format_folders(answers),
        "",
        "| Table of messages | Rows | Without `*` | With a change of their own | Said by a release of DeepSpeed |",
        "| --- | ---: | ---: | ---: | ---: |",
        *_format_tables(),
        "",
        "| Sites | Causes that they lead to |",
        "| ---: | --- |",
        *_format_causes(mapped),
        "",
        "Not mapped, with their reason:",
        "",
        *(f"* {row}" for row in _format_misses(counted)),
    ]
    return "\n".join(lines) + "\n"


def _format_folders(answers: Sequence[Answer]) -> Iterator[str]:
    for folder in FOLDERS:
        inside = [a for a in answers if a.site.file.startswith(folder)]
        counted, bare = [a for a in inside if a.is_counted], [a for a in inside if not a.is_counted]
        mapped = [a for a in counted if a.is_mapped]
        if inside:
            certain = sum(a.diagnosis.confidence == "certain" for a in mapped)
            share = f"{len(mapped) / max(1, len(counted)):.0%}"
            cells = (len(counted), len(mapped), certain, share, len(bare), sum(a.is_mapped for a in bare))
            yield f"| `{folder}` | {' | '.join(map(str, cells))} |"


def _format_tables() -> Iterator[str]:
    releases = json.loads(RELEASES.read_text(encoding="utf-8"))
    for name in sorted(MESSAGE_FILES):
        signatures = [row.signature for row in rows_of(name)]
        own, said = sum(bool(s.change) for s in signatures), sum(s.pattern in releases for s in signatures)
        cells = (len(signatures), sum(s.sure for s in signatures), own, said)
        yield f"| `{name}` | {' | '.join(map(str, cells))} |"


def _format_causes(mapped: Iterable[Answer]) -> Iterator[str]:
    by_count: dict[int, list[str]] = {}
    for cause, count in sorted(Counter(a.diagnosis.cause for a in mapped).items()):
        by_count.setdefault(count, []).append(cause)
    for count, causes in sorted(by_count.items(), reverse=True):
        yield f"| {count} | {', '.join(causes)} |"


def _format_misses(counted: Iterable[Answer]) -> Iterator[str]:
    reasons = read_reasons()
    for key in dict.fromkeys(a.site.key for a in counted if not a.is_mapped):
        file, function, message = key
        yield f"`{file}`, `{function}`: `{message}`: {reasons.get(key, 'no reason yet')}"


if __name__ == "__main__":
    sys.exit(main())
