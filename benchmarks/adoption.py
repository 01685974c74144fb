# SPDX-License-Identifier: Apache-2.0
"""`harness adopt` on public configurations of axolotl, LLaMA-Factory, ms-swift and ArcticTraining.

The folder has checkouts, each under OWNER+NAME; no file of theirs is part of this repository. Candidates train by the
next token: files for preferences, rewards or distillation are none. Files whose sha256 ends with an even digit are for
development, the others are held out. The rule picks by program, from its repositories in turn, first files that use
DeepSpeed, then others, each in the order of their sha256. A key is accounted for when the conversion changes once it is
removed or has another value.

    python benchmarks/adoption.py CHECKOUTS --count 10 --markdown benchmarks/results/adoption-DATE.md
"""

from __future__ import annotations

import argparse
import hashlib
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from harness.convert.conversion import ConvertedSpec, convert_file
from harness.convert.shell_command import find_training_command, is_shell_script
from harness.errors import UserError
from harness.facts.deepspeed_version import resolve_target
from harness.spec.spec_loader import load_spec

PROGRAMS = ("axolotl", "LLaMA-Factory", "ms-swift", "ArcticTraining")
OTHER_VALUES = ("another-value", 7919, 0.377, True, False)


class Candidate(NamedTuple):
    program: str
    repository: str
    path: Path
    relative: str
    digest: str


class Outcome(NamedTuple):
    candidate: Candidate
    converted: bool
    reason: str
    keys: int = 0
    defaults: int = 0
    manual: int = 0
    lossy: int = 0
    harmless: int = 0
    unaccounted: tuple[str, ...] = ()


def find_candidates(folder: Path) -> Iterator[Candidate]:
    """Configurations of training by a test of their own, which knows nothing of `harness adopt`."""
    seen: set[str] = set()
    for path in sorted(folder.rglob("*")):
        if path.suffix not in (".yaml", ".yml", ".json", ".sh") or not path.is_file() or ".git" in path.parts:
            continue
        content = path.read_bytes()
        program = name_program(path, content.decode("utf-8", "replace"))
        digest = hashlib.sha256(content).hexdigest()
        if program and digest not in seen and len(content) < 100_000:
            seen.add(digest)
            relative = path.relative_to(folder)
            yield Candidate(program, relative.parts[0].replace("+", "/"), path, "/".join(relative.parts[1:]), digest)


def name_program(path: Path, text: str) -> str | None:
    if path.suffix == ".sh":
        is_sft = re.search(r"(^|\s)swift\s+(sft|pt)\s", text) is not None and "swift rlhf" not in text
        return "ms-swift" if is_sft else None
    try:
        data = yaml.safe_load(text) if len(text) < 100_000 else None
    except (yaml.YAMLError, ValueError):
        return None
    return name_program_of(data) if isinstance(data, dict) and not trains_by_another_loss(data) else None


def name_program_of(data: dict[str, Any]) -> str | None:
    has_method = "stage" in data or "finetuning_type" in data
    has_sources = isinstance(data.get("data"), dict) and "sources" in data["data"]
    marks = {
        "ArcticTraining": isinstance(data.get("model"), dict) and has_sources,
        "axolotl": "base_model" in data and ("datasets" in data or "pretraining_dataset" in data),
        "LLaMA-Factory": "model_name_or_path" in data and has_method and "dataset" in data,
        "ms-swift": isinstance(data.get("model"), str) and "dataset" in data and "num_train_epochs" in data,
    }
    return next((program for program, holds in marks.items() if holds), None)


def trains_by_another_loss(data: dict[str, Any]) -> bool:
    if any(data.get(key) for key in ("rl", "reward_model", "process_reward_model", "rlhf_type", "kd_trainer")):
        return True
    is_sectioned = isinstance(data.get("model"), dict)
    return data.get("stage", "sft") not in ("sft", "pt") or (
        is_sectioned and data.get("type", "sft") not in ("sft", "causal")
    )


def pick(candidates: list[Candidate], count: int, *, development: bool) -> list[Candidate]:
    """The files by the rule; repositories take turns."""
    wanted = "02468ace" if development else "13579bdf"
    picked: list[Candidate] = []
    for program in PROGRAMS:
        own = sorted((c for c in candidates if c.program == program and c.digest[-1] in wanted), key=rank)
        turns: Counter[str] = Counter()
        order = []
        for candidate in own:
            order.append(
                (uses_deepspeed(candidate) is False, turns[candidate.repository], candidate.repository, candidate)
            )
            turns[candidate.repository] += 1
        picked += [candidate for *_, candidate in sorted(order, key=lambda entry: entry[:3])][:count]
    return picked


def rank(candidate: Candidate) -> tuple[bool, str]:
    return not uses_deepspeed(candidate), candidate.digest


def uses_deepspeed(candidate: Candidate) -> bool:
    text = candidate.path.read_text("utf-8", "replace")
    named = re.search(r'^\s*(?:--|")?deepspeed"?[: ]\s*[^\s#]', text, re.MULTILINE) is not None
    return candidate.program == "ArcticTraining" or named


def convert(path: str) -> ConvertedSpec:
    return convert_file(path, resolve_target())


def try_candidate(candidate: Candidate) -> Outcome:
    try:
        converted = convert(str(candidate.path))
    except UserError as refused:
        return Outcome(candidate, False, refused.findings[0].message)
    loaded = load_spec("spec.yaml", (), resolve_target(), text=converted.text)
    errors = [finding for finding in loaded.findings if finding.is_error]
    if errors:
        raise RuntimeError(f"{candidate.path}: {errors[0].message}")
    return Outcome(
        candidate,
        True,
        "",
        len(values_of(candidate)),
        len(converted.defaults),
        *(len(converted.notes_of(kind)) for kind in ("manual", "lossy", "harmless")),
        tuple(find_unaccounted(candidate)),
    )


def values_of(candidate: Candidate) -> dict[str, Any]:
    text = candidate.path.read_text("utf-8", "replace")
    if is_shell_script(str(candidate.path), text):
        command = find_training_command(str(candidate.path), text)
        return dict(command.source.data) if command is not None else {}
    data = yaml.safe_load(text)
    return dict(data) if isinstance(data, dict) else {}


def find_unaccounted(candidate: Candidate) -> Iterator[str]:
    """Keys whose removal, and any of five other values, leave spec and notes as they are."""
    values = values_of(candidate)
    with tempfile.TemporaryDirectory(dir=candidate.path.parent) as folder:
        file = Path(folder, "config.yaml")
        whole = describe(file, values)
        for path in key_paths(values):
            changed = any(describe(file, replace(values, path, other)) != whole for other in (None, *OTHER_VALUES))
            if not changed:
                yield ".".join(path)


def key_paths(values: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Top-level keys with a value, and those of the sections that ArcticTraining has."""
    sections = ("model", "data", "optimizer", "scheduler", "tokenizer", "logger", "wandb")
    for key, value in values.items():
        if isinstance(value, dict) and key in sections:
            yield from ((key, inner) for inner, item in value.items() if item not in (None, "", [], {}))
        elif value not in (None, "", [], {}):
            yield (key,)


def replace(values: dict[str, Any], path: tuple[str, ...], other: Any) -> dict[str, Any]:
    """The values with another one at a path; None removes the key."""
    if len(path) > 1:
        return {**values, path[0]: replace(values[path[0]], path[1:], other)}
    rest = {key: value for key, value in values.items() if key != path[0]}
    return rest if other is None else {**rest, path[0]: other}


def describe(file: Path, values: dict[str, Any]) -> str:
    """What a conversion says of these values: the spec, the notes without their lines, or the refusal."""
    file.write_text(yaml.safe_dump(values, sort_keys=False, allow_unicode=True))
    try:
        converted = convert(str(file))
    except UserError as refused:
        return refused.findings[0].message
    return repr((converted.draft.spec, [note.message for note in converted.notes]))


def render_markdown(outcomes: list[Outcome]) -> str:
    lines = [
        "| Program | Repository | File | sha256 | Outcome | Keys | Defaults | Manual | Lossy | Harmless | Missed |",
        "| --- | --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for o in outcomes:
        c = o.candidate
        start = f"| {c.program} | {c.repository} | `{c.relative}` | `{c.digest[:12]}`"
        if o.converted:
            missing = ", ".join(f"`{key}`" for key in o.unaccounted) or "none"
            lines.append(
                f"{start} | converted | {o.keys} | {o.defaults} | {o.manual} | {o.lossy} | {o.harmless} | {missing} |"
            )
        else:
            lines.append(f"{start} | refused: {o.reason} | | | | | | |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=10, help="files by program")
    parser.add_argument(
        "--development", action="store_true", help="the files for development instead of those held out"
    )
    parser.add_argument("--list", action="store_true", help="list the picked files and their hashes alone")
    parser.add_argument("--exclude", action="append", default=[], help="a hash of a file that somebody has looked at")
    parser.add_argument("--markdown", type=Path, help="write the table here")
    options = parser.parse_args()
    candidates = [c for c in find_candidates(options.folder) if not c.digest.startswith(tuple(options.exclude))]
    picked = pick(candidates, options.count, development=options.development)
    if options.list:
        for c in picked:
            print(c.program, c.repository, c.relative, c.digest)
        return
    outcomes = [try_candidate(candidate) for candidate in picked]
    table = render_markdown(outcomes)
    counts = Counter(o.candidate.program for o in outcomes if o.converted)
    unaccounted = sum(len(o.unaccounted) for o in outcomes)
    summary = ", ".join(f"{name} {counts[name]}" for name in PROGRAMS)
    print(f"{len(candidates)} candidates, {len(picked)} picked, {sum(counts.values())} converted ({summary}), ", end="")
    print(f"{unaccounted} keys unaccounted for")
    if options.markdown:
        options.markdown.write_text(table)
    else:
        print(table)


if __name__ == "__main__":
    main()
