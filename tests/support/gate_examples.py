# SPDX-License-Identifier: Apache-2.0
"""The examples of a gate's page, put to the gates; for the tests that walk the registry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import yaml

from harness.facts.deepspeed_version import DeepSpeedTarget, Version, parse_version
from harness.findings import Finding, Report
from harness.gates import check_run
from harness.gates.page import Example
from harness.gates.registry import Cite, Gate
from harness.gates.use_instead import newest_release, use_instead
from harness.run.resolved_run import ResolvedRun, resolve_run
from harness.spec.hostfile import read_hostfile
from harness.spec.parse.source import Source
from harness.spec.spec_loader import load_spec
from tests.support.host_surveys import survey_of

Write = Callable[[str, str], str]

# What a spec needs besides the few lines that a page shows.
COMPLETE = {
    "model.name_or_path": "some/model",
    "data.train": "builtin:python-docs",
    "train.max_steps": 10,
    "train.per_device_train_batch_size": 1,
}
# Gates about a key that the completion would bring.
ABOUT = {"MD001": "model.", "MD002": "data.", "MD003": "train.max"}


class Judged(NamedTuple):
    """What became of an example."""

    report: Report
    run: ResolvedRun
    source: Source
    loading: tuple[Finding, ...]


def speaks_of(cite: Cite, version: Version) -> bool:
    """Does the quote stand in this release, as it says?"""
    is_late_enough = not cite.since or version >= parse_version(cite.since)
    return is_late_enough and (not cite.until or version <= parse_version(cite.until))


def example_of(gate: Gate, heading: str) -> Example:
    """The example below a heading of the page: `Example` or `Use instead`."""
    return gate.page.example if heading == "Example" else use_instead(gate)


def completed(text: str, *, without: str = "") -> list[str]:
    """`--set` overrides that complete an example, except for keys that it writes itself or that its gate is about."""
    written = yaml.safe_load(text) or {}

    def has(key: str) -> bool:
        section, name = key.split(".")
        return name in (written.get(section) or {})

    batch = any(has(f"train.{k}") for k in ("global_batch_size", "per_device_train_batch_size"))
    skip = {"train.per_device_train_batch_size"} if batch else set()
    if has("model.config"):
        skip.add("model.name_or_path")
    return [
        f"{key}={value}"
        for key, value in COMPLETE.items()
        if not has(key) and key not in skip and not key.startswith(without or "-")
    ]


def judge(
    gate: Gate,
    heading: str,
    write: Write,
    overrides: Sequence[str] = (),
    *,
    version: str | None = None,
    launching: bool = True,
    accelerator: str | None = "cuda",
    example: Example | None = None,
    allow_code: bool = False,
) -> Judged:
    """Put an example to all gates, as it would be launched on GPUs, unless its `cluster.gpu` says something else.

    `version` is the DeepSpeed checked against; where it is not given, the newest that the gate speaks of.
    """
    text, kind, hostfile, answers, _ = example or example_of(gate, heading)
    target = DeepSpeedTarget(version or newest_release(gate), "asked for")
    if kind == "json":
        loaded = load_spec(write("ds_config.json", text), overrides, target)
    else:
        more = completed(text, without=ABOUT.get(gate.id, "") if heading == "Example" else "")
        loaded = load_spec(write("spec.yaml", text), [*more, *overrides], target)
    assert loaded.spec is not None, loaded.findings
    assert loaded.source is not None
    cluster = None
    if hostfile:
        cluster, found = read_hostfile(write("hostfile", hostfile))
        assert not found, found
    run = resolve_run(loaded.spec, cluster=cluster, kind=loaded.kind)
    consumer = getattr(loaded, "consumer", None)
    device = accelerator if run.spec.cluster.gpu is None else None
    survey = None
    if cluster is not None and "the hosts' answers" in gate.needs:
        survey = survey_of(cluster, yaml.safe_load(answers) or {})
    more = {"consumer": consumer, "accelerator": device, "survey": survey, "allow_code": allow_code}
    report = check_run(run, loaded.source, deepspeed=target, launching=launching, **more)
    return Judged(report, run, loaded.source, loaded.findings)
