# SPDX-License-Identifier: Apache-2.0
"""`Use instead` of a gate's page: the example after the fix of its finding. The same on every machine."""

from __future__ import annotations

from harness.facts.deepspeed_version import FALLBACK_VERSION, DeepSpeedTarget, parse_version
from harness.facts.model_catalogue import catalogue_config
from harness.findings import Finding
from harness.gates import check_run
from harness.gates.page import Example
from harness.gates.registry import Gate
from harness.run.resolved_run import resolve_run
from harness.spec.hostfile import parse_hostfile
from harness.spec.parse.source import Source
from harness.spec.run_spec import RunSpec
from harness.spec.spec_loader import load_spec
from harness.spec.text_editor import EditError, apply_edits, edits_of_fix


def use_instead(gate: Gate) -> Example:
    """The example of the page as it should be: the written one, or the one that the fix makes.

    A fix that sets no key is made on the hosts: the files stay as they are, and the hosts answer otherwise. Raises
    EditError where the fix cannot be applied to the example; `Use instead` then has to be written.
    """
    page = gate.page
    if page.instead is not None:
        return page.instead
    if "the hosts' answers" in gate.needs:
        return page.example._replace(probe="")
    text, file = page.example.text, f"example.{page.example.kind}"
    findings, source = check_example(gate, page.example, file)
    fixes = [finding.fix for finding in findings if finding.fix is not None and finding.fix.sets]
    if not fixes:
        raise EditError(f"the example of {gate.id} has no finding with a fix")
    for fix in fixes:
        text = apply_edits(text, file, edits_of_fix(fix, source))
    return page.example._replace(text=text)


def newest_release(gate: Gate) -> str:
    """The newest release that the gate is true of, among those that gates were looked up in."""
    if gate.until is not None and gate.until < parse_version(FALLBACK_VERSION):
        return ".".join(map(str, gate.until))
    return FALLBACK_VERSION


def check_example(gate: Gate, example: Example, file: str) -> tuple[list[Finding], Source]:
    """The findings of the gate on its example, as on a launch on GPUs unless the example names another device."""
    target = DeepSpeedTarget(newest_release(gate), "requested")
    loaded = load_spec(file, (), target, text=example.text)
    if loaded.spec is None or loaded.source is None:
        raise ValueError(f"the example of {gate.id} cannot be read: {[f.message for f in loaded.findings]}")
    cluster = parse_hostfile(example.hostfile, "hostfile")[0] if example.hostfile else None
    run = resolve_run(_with_catalogue_model(loaded.spec), cluster=cluster, kind=loaded.kind)
    device = "cuda" if run.spec.cluster.gpu is None else None
    report = check_run(
        run, loaded.source, deepspeed=target, launching=True, consumer=loaded.consumer, accelerator=device
    )
    return [finding for finding in report.findings if finding.gate == gate.id], loaded.source


def _with_catalogue_model(spec: RunSpec) -> RunSpec:
    """The spec with the configuration that the catalogue has for its model: folders and caches do not count."""
    config = catalogue_config(spec.model.name_or_path or "")
    return (
        spec if config is None else spec.model_copy(update={"model": spec.model.model_copy(update={"config": config})})
    )
