# SPDX-License-Identifier: Apache-2.0
"""Everything that the gates say, as text to compare: has a change of their code changed what a user sees?

    python benchmarks/gate_snapshot.py --write FOLDER              # before a change
    python benchmarks/gate_snapshot.py --write OTHER --files DIR   # after it
    python benchmarks/gate_snapshot.py --compare FOLDER OTHER      # the findings that came and went, as a table

One line of JSON for each case. `summary.jsonl` is the one to read: id, name, severity, releases and the findings on the
page's Example as it would be launched. `gates.jsonl` has the data and the page of each gate, all but "Use instead".
`examples.jsonl` has the report on each page's Example, as a spec and as the DeepSpeed JSON that it renders to, for
several releases and accelerators. `drawn.jsonl` has the reports on configurations that the conformance suite draws.
`files.jsonl` has those on every file below `--files`, for each reader of a DeepSpeed JSON. A report is whole: ids,
severities, messages, places, notes, fixes, and the gates that were skipped.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from harness.check.check_file import check_file  # noqa: E402
from harness.errors import UserError  # noqa: E402
from harness.facts.deepspeed_version import DeepSpeedTarget  # noqa: E402
from harness.findings import Finding, Report  # noqa: E402
from harness.gates import check_run  # noqa: E402
from harness.gates.registry import Gate, all_gates  # noqa: E402
from harness.render.ds_config import render_ds_config  # noqa: E402
from harness.run.resolved_run import resolve_run  # noqa: E402
from harness.spec.spec_loader import load_spec  # noqa: E402
from harness.views.gate_pages import render_page  # noqa: E402

Json = dict[str, Any]
RELEASES = ("0.14.5", "0.16.4", "0.16.9", "0.17.6", "0.18.3", "0.19.2", "0.19.8")
DRAWN = 520
ACCELERATORS = ("cuda", "cpu", None)


def main() -> None:
    """Write the files into the folder, and a digest of each to the terminal; or compare two folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", type=Path, metavar="FOLDER")
    action.add_argument("--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"))
    parser.add_argument("--files", type=Path, metavar="DIR", help="configurations from elsewhere")
    parser.add_argument("--drawn", type=int, default=DRAWN, help="cases of the conformance suite (default %(default)s)")
    args = parser.parse_args()
    if args.compare:
        for name in ("files", "drawn"):
            _print_changes(name, *(_read_cases(folder / f"{name}.jsonl") for folder in args.compare))
        return
    folder: Path = args.write.resolve()
    files: Path | None = args.files.resolve() if args.files else None
    folder.mkdir(parents=True, exist_ok=True)
    sets: dict[str, Iterator[Json]] = {
        "summary": map(_summary, all_gates()),
        "gates": map(_gate_data, all_gates()),
        "examples": (case for gate in all_gates() for case in _example_reports(gate)),
        "drawn": _drawn_reports(args.drawn),
        **({"files": _file_reports(files)} if files else {}),
    }
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)  # reports name files relative to here
        for name, cases in sets.items():
            lines = [json.dumps(case, sort_keys=True) for case in cases]
            text = "\n".join(lines) + "\n"
            (folder / f"{name}.jsonl").write_text(text)
            print(f"{name}: {len(lines)} cases, sha256 {hashlib.sha256(text.encode()).hexdigest()}", flush=True)


def _gate_data(gate: Gate) -> Json:
    page = render_page(gate.id, 120) or ""
    page = re.sub(r"\n## Use instead\n.*?(?=\n\nWithout this gate, DeepSpeed )", "", page, flags=re.DOTALL)
    return {
        "case": gate.id,
        "name": gate.name,
        "title": gate.page.title,
        "versions": gate.versions,
        "severity": ", ".join(gate.severities),
        "upstream": gate.upstream,
        "needs": gate.needs,
        "policy": gate.policy,
        "unseen": gate.unseen,
        "ignorable": gate.ignorable,
        "cites": gate.cites,
        "page": page,
    }


def _summary(gate: Gate) -> Json:
    findings = importlib.import_module("tests.support.gate_examples").judge(gate, "Example", _write).report.findings
    return {
        "case": gate.id,
        "name": gate.name,
        "severity": ", ".join(gate.severities),
        "versions": gate.versions,
        "findings": [finding.to_json() for finding in findings],
    }


def _example_reports(gate: Gate) -> Iterator[Json]:
    pages = importlib.import_module("tests.support.gate_examples")
    context_of = importlib.import_module("tests.gates.test_same_in_json").context

    def put_to_gates(name: str, more: Sequence[str] = (), **options: Any) -> Any:
        try:
            judged = pages.judge(gate, "Example", _write, more, **options)
        except AssertionError as error:  # the file cannot be read as far as the gates
            return {"case": f"{gate.id} {name}", "unreadable": str(error)}, None
        loading = [f.to_json() for f in judged.loading]
        return {"case": f"{gate.id} {name}", "loading": loading, **judged.report.to_json()}, judged.run

    first, run = put_to_gates("as launched")
    yield first
    for version in RELEASES:
        for accelerator in ACCELERATORS:
            name = f"{version} {accelerator}"
            yield put_to_gates(name, version=version, accelerator=accelerator, launching=accelerator == "cuda")[0]
    example = pages.example_of(gate, "Example")
    if run is not None and example.kind == "yaml":
        rendered = example._replace(text=render_ds_config(run).json_text, kind="json")
        yield put_to_gates("as JSON", list(context_of(run)), example=rendered)[0]


def _write(name: str, text: str) -> str:
    Path(name).write_text(text)
    return name


def _drawn_reports(count: int) -> Iterator[Json]:
    draw = importlib.import_module("tests.conformance.draw").draw
    file_text = importlib.import_module("tests.conformance.case").file_text
    for number in range(count):
        case = draw(1, number)
        suffix, text = file_text(case)
        file = _write(f"case{suffix}", text)
        overrides = [f"parallel.pipeline_parallel_size={case.pipeline}"] if case.form == "json" else []
        consumer: Any = case.options.get("consumer", "deepspeed") if case.form == "json" else None
        for version in RELEASES[-3:]:
            target = DeepSpeedTarget(version, "asked for")
            found: tuple[Finding, ...]
            try:
                loaded = load_spec(file, overrides, target, consumer=consumer)
                found, report = loaded.findings, Report(file)
                if loaded.spec is not None and loaded.source is not None:
                    run = resolve_run(loaded.spec, world_size=case.world, kind=loaded.kind)
                    reader = loaded.consumer
                    report = check_run(run, loaded.source, deepspeed=target, consumer=reader, accelerator="cpu")
            except UserError as error:
                found, report = error.findings, Report(file)
            loading = [f.to_json() for f in found]
            yield {"case": f"{case.id} {version}", "loading": loading, **report.to_json()}


def _file_reports(folder: Path) -> Iterator[Json]:
    for file in sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix in (".json", ".yaml", ".yml")):
        text = file.read_bytes().decode("utf-8", "replace")
        name = file.relative_to(folder).as_posix()
        for consumer in (None, "deepspeed", "hf", "accelerate"):
            for world_size in (None, 8):
                try:
                    checked = check_file(name, text=text, consumer=consumer, world_size=world_size)
                    report = checked.report.to_json()
                except UserError as error:
                    report = {"refused": [f.to_json() for f in error.findings]}
                yield {"case": f"{name} {consumer} {world_size}", **report}


def _read_cases(file: Path) -> dict[str, Json]:
    """The cases of a snapshot by their names; none where the file was not written."""
    lines = file.read_text().splitlines() if file.exists() else []
    return {case["case"]: case for case in map(json.loads, lines)}


def _print_changes(name: str, before: dict[str, Json], after: dict[str, Json]) -> None:
    """Print a table of the findings that only one of two snapshots has, by id and severity."""
    appeared: Counter[tuple[str, str]] = Counter()
    gone: Counter[tuple[str, str]] = Counter()
    for case in before.keys() & after.keys():
        old, new = _findings_of(before[case]), _findings_of(after[case])
        appeared.update((gate, severity) for gate, severity, _ in (new - old).elements())
        gone.update((gate, severity) for gate, severity, _ in (old - new).elements())
    passes = Counter((before[case].get("ok"), after[case].get("ok")) for case in before.keys() & after.keys())
    print(f"## {name}: {len(before)} cases before, {len(after)} after\n")
    print(f"Without errors only after: {passes[False, True]}; only before: {passes[True, False]}.\n")
    print("| Finding | Severity | New | Gone |\n| --- | --- | ---: | ---: |")
    for key in sorted({*appeared, *gone}):
        print(f"| {key[0]} | {key[1]} | {appeared[key]} | {gone[key]} |")
    print()


def _findings_of(case: Json) -> Counter[tuple[str, str, str]]:
    findings = [*case.get("loading", ()), *case.get("findings", ()), *case.get("refused", ())]
    return Counter((finding["gate"], finding["severity"], finding["key"]) for finding in findings)


if __name__ == "__main__":
    main()
