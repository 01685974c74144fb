# SPDX-License-Identifier: Apache-2.0
"""Findings about this machine: paths, packages and devices that a spec names and that are not here.

They are errors where this machine runs the spec (`--here`, `launch`), else one line of information a file: a spec is
also checked where its data is not, such as in CI.

The targets of `model.lora` are compared with the names of the model's modules, where its configuration is on this
machine. The ranks refuse the same (MD152, and MD155 where `peft` does) once they have built the model. Families without
a formula, experts and models with other code are left to them.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Iterator, Sequence

from harness.check.check_file import CheckedFile, check_file
from harness.check.environment_fit import check_environment, describe_releases
from harness.check.finding_places import place_findings
from harness.check.missing_software import find_missing_software
from harness.check.model_findings import check_model_kind
from harness.check.planned_machine import (
    check_devices,
    check_sizes,
    check_weights,
    is_run_here,
    on_this_machine,
    plan_here,
    runs_on_local_cpu,
)
from harness.check.tokenizer_findings import check_tokenizer
from harness.errors import ExitCode, UnreadableKeyError
from harness.facts.devices import find_device
from harness.facts.model_facts import ModelFacts
from harness.findings import Finding, Fix, sort_findings
from harness.hostinfo import machine
from harness.hostinfo.path_probe import ANSWER_SECONDS
from harness.hostinfo.training_packages import missing_packages_finding
from harness.run.resolved_run import ResolvedRun
from harness.spec.named_paths import HOSTFILE_KEY, LocatedPath, is_placeholder
from harness.spec.parse.source import join_key
from harness.spec.sections.model_spec import LoraSpec

_KEY = "model.lora.target_modules"
_HEADS = ("lm_head", "embed_out")
"""Heads, which have no weight of their own where they are tied."""
_MAX_LENGTH = 160
_MAX_NAMES = 6
"""Paths that the line of information shows by name."""

_OF_FAMILIES = {"TP022", "TP023", "TP024", "TP025", "TP026"}
"""Gates of AutoTP about a family, which may only warn; the others that warn are about sizes."""


def with_machine_findings(checked: CheckedFile, *, here: bool, planned: bool = False) -> CheckedFile:
    """The same with findings about paths, packages and devices. `here`: this machine runs the spec. `planned`: the
    caller plans the run, and has the findings about its memory from there.
    """
    checked = with_launch_findings(checked if here else _without_hostfile_error(checked), here=here, planned=planned)
    if checked.run is None or checked.run.kind != "spec":
        return checked
    spec = checked.run.spec
    missing = list(find_missing_software(spec.model, spec.data, spec.telemetry, spec.launch.env))
    if here:
        packages = missing_packages_finding()
        found = [*missing, *([packages] if packages is not None else check_environment(checked.run))]
        releases = [Finding("EN020", "info", line) for line in describe_releases()]
        return with_findings(checked, [*found, *releases])
    if not missing:
        return checked
    message = "; ".join(finding.message for finding in missing)
    return with_findings(checked, [Finding(missing[0].gate, "info", message, missing[0].key)])


def count_local_ranks() -> int:
    """The ranks that a launch starts on this machine where nothing names a number."""
    return len(machine.accelerators_for(os.environ)) or 1


def find_plan_device(*, here: bool) -> str | None:
    """The device to plan for where a spec names none, as in a launch: `cpu` if this machine runs it and has no GPU."""
    return "cpu" if here and not machine.accelerators_for(os.environ) else None


def check_for_plan(
    spec: str,
    overrides: Sequence[str] | None,
    hostfile: str | None,
    world_size: int | None,
    *,
    here: bool,
    text: str | None = None,
) -> CheckedFile:
    """The check of a spec that is planned, which runs none of its code; `text` is that of the file `spec`, if at hand.
    Unless it runs `here`, it may plan for machines that have what this one lacks: only misspelt paths are findings.
    Data that this machine lacks are no error even `here`.
    """
    checked = check_file(
        spec,
        overrides=overrides,
        hostfile=hostfile,
        world_size=world_size,
        default_world_size=count_local_ranks() if here else None,
        launching=here,
        allow_code=True,
        look_at_paths=text is None,
        text=text,
    )
    if not here:
        return with_misspelt_paths(checked)
    texts = [item for item in checked.paths if item.named.key[0] == "data"]  # which a plan does not read
    others = tuple(item for item in checked.paths if item not in texts)
    checked = with_machine_findings(checked._replace(paths=others), here=True, planned=True)
    checked = with_findings(checked, check_paths(texts, here=False))
    if checked.run is None or not checked.report.ok or not is_run_here(checked.run):
        return checked
    lacking = list(check_devices(checked.run))
    lacking += check_sizes(checked.run, plan_here(checked.run)) if lacking and runs_on_local_cpu(checked.run) else ()
    checked = with_findings(checked, [*lacking, *check_weights(checked.run, planned=True)])
    given = {text.partition("=")[0].strip().removeprefix("cluster.") for text in overrides or ()}
    return checked._replace(run=on_this_machine(checked.run, given)) if checked.report.ok and checked.run else checked


def with_misspelt_paths(checked: CheckedFile) -> CheckedFile:
    """The same with findings about paths with a near name next to them, and about no others that are missing."""
    paths = tuple(path for path in checked.paths if path.similar is not None)
    return with_path_findings(checked._replace(paths=paths), here=False)


def with_launch_findings(checked: CheckedFile, *, here: bool, planned: bool = False) -> CheckedFile:
    """The same with findings about paths and, where ranks run `here`, about this machine. A launch itself checks its
    packages, and `planned` runs their size.
    """
    checked = with_path_findings(checked, here=here)
    return _with_local_findings(checked, planned=planned) if here else checked


def _with_local_findings(checked: CheckedFile, *, planned: bool) -> CheckedFile:
    """The same for a run on this machine, with findings about its CPU and, unless the run is `planned`, its size."""
    run, report = checked.run, checked.report
    try:
        if run is None or not is_run_here(run):
            return checked
        findings = list(check_local_cpu(run)) if runs_on_local_cpu(run) else []
        if not planned and report.ok:
            findings += [*check_devices(run), *check_weights(run, planned=True)]
            findings += () if any(finding.is_error for finding in findings) else check_sizes(run, plan_here(run))
    except UnreadableKeyError:  # the keys that decide have errors of their own
        return checked
    if any(f.gate == FP16_ON_CPU for f in findings):  # an error in the place of the gate's warning
        report = report._replace(findings=tuple(f for f in report.findings if f.gate != FP16_ON_CPU))
    return with_findings(checked._replace(report=report), findings)


def with_path_findings(checked: CheckedFile, *, here: bool) -> CheckedFile:
    """The same with findings about paths, and about the model and the tokenizer that are found there."""
    is_error = any(f.gate == "HO001" for f in checked.report.findings)
    paths = [item for item in checked.paths if item.named.key != HOSTFILE_KEY or not is_error]
    findings = check_paths(paths, here=here)
    if checked.run is not None and checked.run.kind == "spec":
        findings += check_tokenizer(checked.run.spec.model, checked.run.spec.data)
        told = {f.gate for f in checked.report.findings if f.is_error or f.gate in _OF_FAMILIES}
        findings += [f for f in check_model_kind(checked.run.spec) if not _is_told(f.gate, told)]
        if checked.run.spec.plugins.file is None:  # which may build another model
            findings += check_adapter_targets(checked.run)
    return with_findings(checked, findings)


def _is_told(gate: str, told: set[str]) -> bool:
    """Has a gate said the same of the model?"""
    if gate == "TP027":
        return any(other.startswith("TP") for other in told)
    return gate in told or (gate == "PP101" and "MD004" in told)


def _without_hostfile_error(checked: CheckedFile) -> CheckedFile:
    """The same without the error about a hostfile that is on other machines only; it remains among the paths."""
    if not any(p.named.key == HOSTFILE_KEY and p.state == "missing" and p.similar is None for p in checked.paths):
        return checked
    report = checked.report
    report = report._replace(findings=tuple(f for f in report.findings if f.gate != "HO001"))
    code = ExitCode.OK if report.ok and checked.code is ExitCode.FINDINGS else checked.code
    return checked._replace(report=report, code=code)


def with_findings(checked: CheckedFile, findings: Sequence[Finding]) -> CheckedFile:
    """The same with more findings, each at the place of its key."""
    if not findings:
        return checked
    placed = place_findings(findings, checked.source)
    report = checked.report._replace(findings=sort_findings([*checked.report.findings, *placed]))
    code = max(checked.code, ExitCode.OK if report.ok else ExitCode.FINDINGS)
    return checked._replace(report=report, code=code)


def check_paths(paths: Sequence[LocatedPath], *, here: bool) -> list[Finding]:
    """The findings about the paths of a spec: an error for each one that is missing `here` or has a similar name next
    to it, and a line of information about all others.
    """
    absent = [item for item in paths if item.state in ("missing", "unusable")]
    errors = [item for item in absent if here or item.similar is not None]
    others = [item for item in absent if item not in errors]
    silent = [item for item in paths if item.state == "silent"]
    findings = [_error(item) for item in errors]
    if others:
        verb = "is" if len(others) == 1 else "are"
        message = f"{_format_names(others)} {verb} not on this machine"
        unusable = next((item for item in others if item.state == "unusable"), None)
        if unusable is not None:
            reason = f"`{unusable.named.text}` {unusable.reason}"
            message = reason if len(others) == 1 else f"{_format_names(others)} cannot be used here: {reason}"
        findings.append(_information("SP050", message, others[0]))
    if silent:
        verb = "was" if len(silent) == 1 else "were"
        message = f"{_format_names(silent)} did not answer within {ANSWER_SECONDS:g} s and {verb} not checked"
        findings.append(_information("SP051", message, silent[0]))
    return [*findings, *_check_ambiguous(paths, here=here)]


def _error(item: LocatedPath) -> Finding:
    key = join_key(item.named.key)
    fix = Fix("correct the path, or create the file")
    meant = item.similar or item.longer
    if meant is not None:
        fix = Fix(f"did you mean `{meant}`?", {key: meant}, effect="reads another path")
    elif item.state == "unusable":
        fix = Fix("correct the path, or complete the folder")
    notes = _searched_notes(item) if item.state == "missing" else ()
    message = f"{_quote(item)} {item.reason}"
    return Finding("SP050", "error", message, key, item.named.place, notes=notes, fix=fix)


def _searched_notes(item: LocatedPath) -> tuple[str, ...]:
    """The folders in which a relative path was searched."""
    if not item.searched:
        return ()
    if len(item.searched) == 1:
        return (f"a relative path starts at the spec's folder, `{item.searched[0]}`",)
    first, second = item.searched
    return (f"a relative path starts at the spec's folder, `{first}`, or else at the current one, `{second}`",)


def _information(gate: str, message: str, item: LocatedPath) -> Finding:
    return Finding(gate, "info", message, join_key(item.named.key), item.named.place)


def _quote(item: LocatedPath) -> str:
    """The path as the spec has it, cut where it is longer than a path can be read."""
    text = item.named.text
    return f"`{text if len(text) <= _MAX_LENGTH else text[:_MAX_LENGTH] + '...'}`"


def _format_names(items: Iterable[LocatedPath]) -> str:
    names = list(dict.fromkeys(map(_quote, items)))
    more = len(names) - _MAX_NAMES
    if more > 0:
        return f"{', '.join(names[:_MAX_NAMES])} and {more} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _check_ambiguous(paths: Sequence[LocatedPath], *, here: bool) -> Iterator[Finding]:
    """Names that may mean something else than they are taken for."""
    for item in paths:
        if item.state == "not a path" and item.similar is not None:
            message = f"`{item.named.text}` is no folder here, so it is a name on the Hub; `{item.similar}` is a folder"
            yield _information("SP050", message, item)
        if here and item.other is not None:
            message = f"`{item.named.text}` is in the spec's folder and in the current one: `{item.path}` is used"
            yield _information("SP052", message, item)


FP16_ON_CPU = "PR017"
_RANKS = "launch.num_gpus"
_FP16_FLAGS = {"avx512_fp16", "avx_ne_convert"}
"""A processor of x86 without both computes nothing in fp16; with one of them, torch decides."""


def check_local_cpu(run: ResolvedRun) -> Iterator[Finding]:
    """The findings about a run that trains on this machine's CPU."""
    precision = run.spec.precision
    if precision.fp16 and not precision.bf16 and _lacks_fp16():
        yield Finding(
            FP16_ON_CPU,
            "error",
            "fp16 does not run on this machine's CPU, which has no AVX512-FP16",
            "precision.fp16",
            notes=("DeepSpeed refuses it on every rank: `Type fp16 is not supported on your device`",),
            fix=Fix(
                "set `precision.fp16` to false and `precision.bf16` to true",
                {"precision.fp16": False, "precision.bf16": True},
                effect="trains in bf16, without loss scaling",
            ),
        )
    ranks, cores = run.parallel_dims.world_size or 1, machine.usable_cores()
    kind = find_device(run.spec.cluster.gpu) if run.spec.cluster.gpu else None
    is_cpu_meant = kind is None or kind.is_cpu or machine.is_cpu_forced({**os.environ, **run.spec.launch.env})
    if ranks > cores and is_cpu_meant:  # EN027 says that GPUs are missing
        yield Finding(
            "EN017",
            "warning",
            f"{ranks} ranks share the {cores} core{'s' if cores > 1 else ''} of this machine, which has no GPU",
            _RANKS,
            notes=("ranks wait for each other at each collective, so a step takes longer than with fewer ranks",),
            fix=Fix(f"set `{_RANKS}: {cores}`", {_RANKS: cores}, effect="the batch is divided differently"),
        )


def _lacks_fp16() -> bool:
    """Is it certain that DeepSpeed refuses fp16? It asks torch, whose import takes seconds."""
    flags = machine.cpu_flags()
    return platform.machine() == "x86_64" and bool(flags) and not flags & _FP16_FLAGS


def check_adapter_targets(run: ResolvedRun) -> list[Finding]:
    """The findings about targets that are no modules of the model (MD152 one of several, MD155 all of them or another
    kind of module).
    """
    model = run.spec.model
    lora = model.lora
    if lora is None or lora.target_modules is None or model.trust_remote_code:
        return []
    if model.name_or_path is not None and is_placeholder(model.name_or_path):
        return []
    facts = run.find_model().facts
    if facts is None or facts.experts or "language_model" in facts.layer_path:
        return []
    try:
        return list(_check_targets(lora, facts))
    except re.error:  # a pattern that `peft` refuses, too
        return []


def _check_targets(lora: LoraSpec, facts: ModelFacts) -> Iterator[Finding]:
    from harness.plan.weights.trainable_split import DEFAULT_TARGETS, is_target

    matrices = [p.name.removesuffix(".weight") for p in facts.parameters() if len(p.shape) == 2]
    matrices += [head for head in _HEADS if head not in matrices]
    usual = ", ".join(DEFAULT_TARGETS.get(facts.family, _own_names(matrices)[:2]))
    fix = Fix(f"name modules of the model, such as `[{usual}]`, or `all-linear`")
    names = ", ".join(f"`{name}`" for name in _own_names(matrices) if name not in _HEADS)
    notes = (f"the layers and embeddings of `{facts.family}` are {names}",)
    if not any(is_target(module, facts, lora) for module in matrices):
        message = f"`peft` finds no module of this model for adapters with {_quote_targets(lora)}"
        yield Finding("MD155", "error", message, _KEY, notes=notes, fix=fix)
        return
    parts = {part for p in facts.parameters() for part in _enclosing_modules(p.name)} - {*matrices}
    for target in lora.target_modules if isinstance(lora.target_modules, tuple) else ():
        if _is_end(target, parts):
            message = f"`{target}` is neither a linear layer nor an embedding, so `peft` refuses it"
            yield Finding("MD155", "error", message, _KEY, notes=notes, fix=fix)
        elif not _is_end(target, matrices):
            message = f"`{target}` in `{_KEY}` matches no module of the model"
            yield Finding("MD152", "error", message, _KEY, notes=notes, fix=fix)


def _enclosing_modules(name: str) -> Iterator[str]:
    """The modules that a parameter lies in: `a.b` and `a` of `a.b.weight`."""
    while name := name.rpartition(".")[0]:
        yield name


def _is_end(target: str, modules: Iterable[str]) -> bool:
    return any(module == target or module.endswith(f".{target}") for module in modules)


def _own_names(modules: list[str]) -> list[str]:
    """The last parts of the names, each once."""
    return list(dict.fromkeys(module.rpartition(".")[2] for module in modules))


def _quote_targets(lora: LoraSpec) -> str:
    targets = lora.target_modules
    text = targets if isinstance(targets, str) else f"[{', '.join(targets or ())}]"
    others = [key for key in ("exclude_modules", "layers_to_transform") if getattr(lora, key) is not None]
    return " and ".join([f"`target_modules: {text}`", *(f"`{key}`" for key in others)])
