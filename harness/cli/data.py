# SPDX-License-Identifier: Apache-2.0
"""`harness data`: preview the tokenized training data of a run spec."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.check.check_file import CheckedFile, check_file
from harness.check.machine_findings import with_path_findings
from harness.cli.console import exit_with, log_to_stderr, print_findings
from harness.cli.options import AllowCodeOption, SetOption, SpecArgument, WorldSizeOption
from harness.cli.output_format import OutputFormat
from harness.errors import ExitCode, UserError
from harness.findings import Finding
from harness.launching.programs.data_preview import preview_data
from harness.launching.setup.code_trust import verify_code_allowed
from harness.launching.setup.launch_checks import refuse_deepspeed_json
from harness.run.resolved_run import ResolvedRun
from harness.spec.named_paths import LocatedPath
from harness.views import data as view
from harness.views.style import style_for

NO_ARGS_IS_HELP = True
_DATA_KEYS = ("data", "model", "train.seed")


def data(
    spec: SpecArgument,
    overrides: SetOption = None,
    world_size: WorldSizeOption = None,
    examples: Annotated[
        int, typer.Option("--examples", min=0, max=1000, metavar="N", help="Decoded sequences to show.")
    ] = 3,
    allow_local_code: AllowCodeOption = False,
    format: Annotated[OutputFormat, typer.Option("--format", help="Output format.")] = OutputFormat.text,
) -> None:
    """Prepare the data of a run spec as a run does, and preview it. A later run reuses the prepared data.

    Shows counts, skipped records by kind, lengths, padding, and decoded examples in which tokens without loss are
    marked.

    Exit codes: 0 fine, 1 the spec or the data has errors, 4 torch or transformers is missing.

    Example: harness data ds_configs/sft-chat.yaml
    """
    checked = check_file(spec, overrides=overrides, world_size=world_size, allow_code=True, look_at_paths=True)
    if checked.run is not None and checked.run.parallel_dims.world_size is None:
        world = checked.run.spec.launch.num_gpus or 1
        checked = check_file(spec, overrides=overrides, world_size=world, allow_code=True, look_at_paths=True)
    checked = with_path_findings(checked._replace(paths=_paths_of_data(checked)), here=True)
    run = _require_data_ok(checked)
    try:
        allowed = verify_code_allowed(run.spec, Path.cwd(), allow_local_code=allow_local_code)
        for sentence in allowed.sentences:
            log_to_stderr(f"--allow-local-code allows {sentence}")
        body = preview_data(run, examples, log_to_stderr, allowed)
    except UserError as refused:
        print_findings([_with_place(finding, checked) for finding in refused.findings], checked.lines_of)
        exit_with(refused.code)
    warnings = [*map(Finding.from_json, body["findings"])]
    if warnings:
        print_findings([_with_place(finding, checked) for finding in warnings], checked.lines_of)
    print(
        view.data_as_json(body)
        if format is OutputFormat.json
        else view.render_data(run.name, body, style_for(sys.stdout))
    )


def _paths_of_data(checked: CheckedFile) -> tuple[LocatedPath, ...]:
    """The data, the chat template and the tokenizer: the folder of a model is not needed where another has it."""
    keys = (("data",), ("model", "tokenizer"))
    return tuple(
        item
        for item in checked.paths
        if item.named.with_tokenizer or any(item.named.key[: len(key)] == key for key in keys)
    )


def _require_data_ok(checked: CheckedFile) -> ResolvedRun:
    """The run, if no finding about the data is an error. Other findings are left to `validate-config`."""
    ours = [f for f in checked.report.findings if checked.run is None or f.key.startswith(_DATA_KEYS)]
    if ours:
        print_findings(ours, checked.lines_of)
    if checked.run is None or any(f.severity == "error" for f in ours):
        print("Nothing was read.", file=sys.stderr)
        exit_with(checked.code)
    if checked.run.kind != "spec":
        print_findings([refuse_deepspeed_json(checked.report.file)], checked.lines_of)
        exit_with(ExitCode.FINDINGS)
    return checked.run


def _with_place(finding: Finding, checked: CheckedFile) -> Finding:
    """The finding with the place of its key in the spec."""
    if checked.source is None or not finding.key or not checked.source.has_key(finding.key):
        return finding
    return finding._replace(place=checked.source.place(finding.key))
