"""`harness data`: what the model will see of the data of a run spec."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from harness.cli.common import Checked, check_file, exit_with, print_findings
from harness.cli.options import SetOption, SpecArgument, WorldSizeOption
from harness.errors import Refused
from harness.findings import Finding
from harness.launching.showing import look_at_data
from harness.plan.run import Run
from harness.views import data as view
from harness.views.style import style_for

NO_ARGS_IS_HELP = True
_OURS = ("data", "model", "train.seed")


class Format(StrEnum):
    """Output formats."""

    text = "text"
    json = "json"


def data(
    spec: SpecArgument,
    overrides: SetOption = None,
    world_size: WorldSizeOption = None,
    examples: Annotated[
        int, typer.Option("--examples", min=0, max=1000, metavar="N", help="Decoded sequences to show.")
    ] = 3,
    format: Annotated[Format, typer.Option("--format", help="How it is printed.")] = Format.text,
) -> None:
    """Read, tokenise and lay out the data of a run spec as a run would, and show the result. The run finds it prepared.

    Counts, records left out by kind, lengths, how full sequences are, and examples with what is not trained on marked.

    Exit codes: 0 fine, 1 the spec or the data has errors, 4 torch or transformers is missing.

    Example: harness data ds_configs/sft-chat.yaml
    """
    checked = check_file(spec, overrides=overrides, world_size=world_size, allow_code=True)
    if checked.run is not None and checked.run.degrees.world is None:
        world = checked.run.spec.launch.num_gpus or 1
        checked = check_file(spec, overrides=overrides, world_size=world, allow_code=True)
    run = _run(checked)
    try:
        body = look_at_data(run, examples)
    except Refused as refused:
        print_findings([_placed(finding, checked) for finding in refused.findings], checked.source)
        exit_with(refused.code)
    print(view.as_json(body) if format is Format.json else view.text(run.name, body, style_for(sys.stdout)))


def _run(checked: Checked) -> Run:
    """The run, if nothing that concerns the data is wrong with it; what else is wrong is for `validate-config`."""
    ours = [f for f in checked.report.findings if checked.run is None or f.key.startswith(_OURS)]
    if ours:
        print_findings(ours, checked.source)
    if checked.run is None or any(f.severity == "error" for f in ours):
        print("Nothing was read.", file=sys.stderr)
        exit_with(checked.code)
    return checked.run


def _placed(finding: Finding, checked: Checked) -> Finding:
    """With the line of the spec that it is about."""
    if checked.source is None or not finding.key or not checked.source.has(finding.key):
        return finding
    return finding._replace(place=checked.source.place(finding.key))
