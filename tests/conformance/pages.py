# SPDX-License-Identifier: Apache-2.0
"""Every gate's page as cases: the Example must go wrong as the gate says, Use instead must run. Imports no torch."""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import replace
from pathlib import Path

from harness.errors import UserError
from harness.facts.deepspeed_version import resolve_target
from harness.gates.registry import Gate, all_gates
from harness.run.resolved_run import ResolvedRun, resolve_run
from harness.spec.spec_loader import load_spec
from tests.support import gate_examples

from . import ours
from .case import Case
from .jobs import model_of

VERSION = (0, 19, 8)
LARGEST = 4
LIFTED = ("PR017",)
"""The runner lifts DeepSpeed's check for AVX512-FP16."""


def cases() -> list[Case]:
    """Two a gate, where the release here is one that the gate is about and its claim can be seen on CPUs."""
    found = []
    for gate in all_gates():
        if _visible(gate):
            found += [c for c in (_case(gate, "Example"), _case(gate, "Use instead")) if c is not None]
    return found


def _visible(gate: Gate) -> bool:
    """Is the claim about this DeepSpeed, and can CPUs and a small model show it?

    AutoEP cannot: it finds no experts in the models of today's transformers.
    """
    sized = "model facts" in gate.needs and "num_hidden_layers" not in gate.page.example.text
    other = (
        gate.unseen
        or gate.policy
        or gate.id in LIFTED
        or "a launch" in gate.needs
        or not gate.cites
        or "expert_parallel" in gate.page.example.text
    )
    return gate.applies_to(VERSION) and not sized and not other


def named(name: str) -> list[Case]:
    """The case of this id."""
    return [c for c in cases() if c.id == name]


def _case(gate: Gate, heading: str) -> Case | None:
    example = gate_examples.example_of(gate, heading)
    text = re.sub(r"""(nvme_path["']?:\s*)["']?/[^\s,"'}]*["']?""", r'\1"{DIR}/nvme"', example.text)
    if example.hostfile:
        return None  # more hosts than this machine is
    if example.kind == "yaml":
        text = _complete(gate, heading, text)
    run = _run(text, example.kind)
    if run is None:
        return None
    degrees = run.parallel_dims
    world = degrees.world_size or max(2, degrees.model_parallel_size)
    if world > LARGEST:
        return None
    first = heading == "Example"
    case = Case(
        f"{gate.id}-{'example' if first else 'instead'}",
        "json" if example.kind == "json" else "spec",
        json.loads(text) if example.kind == "json" else {},
        world,
        (f"{gate.id[:2]}:page of {gate.id}, {gate.upstream if first else 'use instead'}",),
        (gate.id,),
        degrees.tensor,
        degrees.pipeline,
        degrees.sequence,
        model_of(run),
        text=text,
        page=gate.upstream if first else "instead",
        options={"load": True} if gate.id.startswith("CK") else {},
    )
    if degrees.world_size is None and not first:  # the page leaves the ranks open: as many as its batch is right on
        fits = [w for w in (world, 4, 3, 1) if not ours.verdict(replace(case, world=w)).refused]
        case = replace(case, world=next(iter(fits), world))
    return case


def _complete(gate: Gate, heading: str, text: str) -> str:
    import yaml

    raw = yaml.safe_load(text) or {}
    for override in gate_examples.completed(
        text, without=gate_examples.ABOUT.get(gate.id, "") if heading == "Example" else ""
    ):
        key, _, value = override.partition("=")
        section, name = key.split(".")
        raw.setdefault(section, {})[name] = yaml.safe_load(value)
    return str(yaml.safe_dump(raw, sort_keys=False))


def _run(text: str, kind: str) -> ResolvedRun | None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "ds_config.json" if kind == "json" else "spec.yaml")
        file.write_text(text)
        try:
            loaded = load_spec(str(file), (), resolve_target(".".join(map(str, VERSION))))
        except UserError:
            return None
    return resolve_run(loaded.spec, kind=loaded.kind) if loaded.spec is not None else None
