# SPDX-License-Identifier: Apache-2.0
"""A second opinion on a failed job: the gates, run on the configuration that its log contains or names, under the
release of DeepSpeed that the log shows. The log is untrusted: nothing of it is run or written, and no file of any kind
but configurations is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from harness.check.check_file import CheckedFile, check_file
from harness.diagnosis.diagnosis_types import Diagnosis, LogFacts
from harness.facts.deepspeed_version import DeepSpeedTarget, parse_version, resolve_target
from harness.file_io import open_regular
from harness.findings import Finding

_TEXT_NAME = "printed-by-deepspeed.json"
_MAX_FINDINGS = 5
_MAX_FILES = 3
_MAX_FILE_BYTES = 1 << 20
_NOT_A_CONFIG = frozenset(("SP001", "SP016", "SP020", "GT001"))
"""Findings about a file that is no configuration, and about faults of ours."""
_RANKS = {"error": 0, "warning": 1}


class LogOpinion(NamedTuple):
    """`source` names the configuration, `deepspeed` the release. `findings` are errors first, at most five; `num_more`
    are left out. `agrees`: one of all is the cause that the log shows.
    """

    source: str
    deepspeed: str
    findings: tuple[Finding, ...]
    num_more: int = 0
    agrees: bool = False


def review_config(diagnosis: Diagnosis, folders: Sequence[Path]) -> tuple[Diagnosis, LogOpinion | None]:
    """The diagnosis, more certain where the gates agree with it, and what the gates find; None where there is no
    configuration, or nothing to say about it. Files are looked up below `folders`.
    """
    if diagnosis.state not in ("failed", "no failure seen"):
        return diagnosis, None
    facts = diagnosis.facts
    target = _target_of(facts)
    for source, checked in _check_configs(facts, folders, target):
        findings = [f for f in checked.report.findings if f.severity in _RANKS and f.gate not in _NOT_A_CONFIG]
        agreeing = [f for f in findings if diagnosis.cause and f.gate == diagnosis.cause]
        if facts.config:
            findings = [f for f in findings if f in agreeing or not _is_refuted(f)]
        if not findings:
            continue
        ordered = sorted(findings, key=lambda f: (f not in agreeing, _RANKS[f.severity], f.gate))
        opinion = LogOpinion(
            source,
            f"{target.text} ({'the log shows it' if 'deepspeed' in facts.versions else target.origin})",
            tuple(ordered[:_MAX_FINDINGS]),
            max(len(ordered) - _MAX_FINDINGS, 0),
            bool(agreeing),
        )
        is_strong = bool(facts.config) and any(f.is_error for f in agreeing) and diagnosis.confidence == "likely"
        return (replace(diagnosis, confidence="certain") if is_strong else diagnosis), opinion
    return diagnosis, None


def _is_refuted(finding: Finding) -> bool:
    """Does a log with DeepSpeed's printed configuration show that the finding is none? DeepSpeed prints it when the
    engine is built: what it refuses by an error until then was accepted.
    """
    from harness.gates.registry import all_gates

    gate = next((gate for gate in all_gates() if gate.id == finding.gate), None)
    return gate.upstream in ("raises", "asserts") if gate is not None else finding.is_error


def _target_of(facts: LogFacts) -> DeepSpeedTarget:
    """The DeepSpeed of the job; the one here where the log shows none."""
    version = facts.versions.get("deepspeed")
    try:
        parse_version(version or "")
    except ValueError:
        return resolve_target()
    return DeepSpeedTarget(version or "", "requested")


def _check_configs(
    facts: LogFacts, folders: Sequence[Path], target: DeepSpeedTarget
) -> Iterator[tuple[str, CheckedFile]]:
    """(name, result) of the printed configuration, else of the files that the log names and this machine has."""
    ranks = facts.world_size or None
    if facts.config:
        checked = _check_safely(_TEXT_NAME, text=facts.config, deepspeed=target, world_size=ranks, consumer="deepspeed")
        if checked is not None:
            yield "the configuration that DeepSpeed printed", checked
        return
    for path in list(_find_files(facts.config_files, folders))[:_MAX_FILES]:
        checked = _check_safely(str(path), deepspeed=target, default_world_size=ranks)
        if checked is None or checked.source is None:
            continue
        if not any(f.gate in _NOT_A_CONFIG for f in checked.report.findings):
            yield f"`{path.name}` as it is now", checked


def _check_safely(name: str, **options: Any) -> CheckedFile | None:
    """The result of the check; None where it raises: the text is untrusted, and the diagnosis is shown without it."""
    try:
        return check_file(name, **options)
    except Exception:
        return None


def _find_files(names: Sequence[str], folders: Sequence[Path]) -> Iterator[Path]:
    """The files that lie below one of the folders, or whose absolute path the log has; regular and small."""
    for name in names:
        candidates = [Path(name)] if name.startswith("/") else [folder / name for folder in folders]
        for candidate, folder in zip(candidates, folders, strict=False):
            if (path := _regular_file(candidate, None if name.startswith("/") else folder)) is not None:
                yield path
                break


def _regular_file(path: Path, folder: Path | None) -> Path | None:
    """The path, if it is a small regular file that does not lead out of the folder."""
    try:
        resolved = path.resolve()
        if folder is not None and not resolved.is_relative_to(folder.resolve()):
            return None
        with open_regular(resolved, follow=False) as stream:
            return resolved if len(stream.read(_MAX_FILE_BYTES + 1)) <= _MAX_FILE_BYTES else None
    except (OSError, ValueError, RuntimeError):
        return None
