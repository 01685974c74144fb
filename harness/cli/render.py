"""`harness render`: the DeepSpeed JSON that a run spec stands for."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from harness.check.check_file import check_file
from harness.cli.console import exit_on_errors, exit_with, print_findings
from harness.cli.options import HostfileOption, SetOption, SpecArgument, WorldSizeOption
from harness.errors import ExitCode
from harness.file_io import read_regular
from harness.findings import Finding, Fix, Place
from harness.plan.tuned_defaults.rules import with_tuned_defaults
from harness.render import DSConfig
from harness.render import render_ds_config as render_run
from harness.spec.parse.source import MAX_BYTES

NO_ARGS_IS_HELP = True


def render(
    spec: SpecArgument,
    hostfile: HostfileOption = None,
    world_size: WorldSizeOption = None,
    overrides: SetOption = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare with the JSON beside the spec; exit 1 when it differs.")
    ] = False,
    write: Annotated[bool, typer.Option("--write", help="Write the JSON beside the spec.")] = False,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the JSON there; with --check, compare with it.",
        ),
    ] = None,
    reasons: Annotated[bool, typer.Option("--reasons", help="Print each key with the reason for its value.")] = False,
) -> None:
    """Print the DeepSpeed JSON of a run spec, or keep a checked-in one in step with it.

    Example: harness render ds_configs/demo.yaml --check
    """
    run = exit_on_errors(
        check_file(spec, overrides=overrides, hostfile=hostfile, world_size=world_size, allow_code=True),
        "Nothing was rendered",
    )
    config = render_run(with_tuned_defaults(run, Path.cwd()))
    beside = Path(output) if output else Path(spec).with_suffix(".json")
    if check or write or output:
        _check_output_options(spec, beside, both=check and write, named=output is not None)
    if check:
        _compare_with_file(config, beside, spec)
    elif write or output:
        _write_config(config, beside)
    elif reasons:
        _print_reasons(config)
    else:
        print(config.json_text, end="")


def _check_output_options(spec: str, target: Path, *, both: bool, named: bool) -> None:
    """The spec itself is never written over, and standard input has nothing beside it."""
    finding = None
    if both:
        finding = Finding("SP011", "error", "`--check` and `--write` exclude each other", fix=Fix("give one of them"))
    elif spec == "-" and not named:
        finding = Finding("RN003", "error", "standard input has no file beside it", fix=Fix("name one with `--output`"))
    elif spec != "-" and target.resolve() == Path(spec).resolve():
        fix = Fix("name another file with `--output`")
        finding = Finding("RN003", "error", f"`{target}` is the spec itself, which stays as it is", fix=fix)
    if finding is not None:
        print_findings([finding], None)
        exit_with(ExitCode.USAGE)


def _compare_with_file(config: DSConfig, file: Path, spec: str) -> None:
    try:
        found = read_regular(file, MAX_BYTES).decode().replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        finding = Finding(
            "RN001",
            "error",
            f"`{file}` cannot be compared: {getattr(error, 'strerror', None) or 'not UTF-8 text'}",
            place=Place(str(file), 1, 1),
            fix=Fix(f"make it with `harness render {spec} --write`"),
        )
        print_findings([finding], None)
        exit_with(ExitCode.FINDINGS)
    if found == config.json_text:
        print(f"OK. {file} is what {spec} renders to.")
        return
    line = _first_differing_line(found, config.json_text)
    finding = Finding(
        "RN002",
        "error",
        f"`{file}` is not what `{spec}` renders to",
        place=Place(str(file), line, 1),
        label="differs from here on",
        fix=Fix(f"run `harness render {spec} --write`"),
    )
    print_findings([finding], None)
    _print_diff(found, config.json_text, str(file))
    exit_with(ExitCode.FINDINGS)


def _first_differing_line(old: str, new: str) -> int:
    pairs = zip(old.splitlines(), new.splitlines(), strict=False)
    return next((n for n, (a, b) in enumerate(pairs, start=1) if a != b), min(old.count("\n"), new.count("\n")) + 1)


def _print_diff(old: str, new: str, name: str) -> None:
    import difflib

    for line in difflib.unified_diff(old.splitlines(), new.splitlines(), name, "rendered", lineterm=""):
        print(line)


def _write_config(config: DSConfig, file: Path) -> None:
    from harness.file_io import write_atomically

    try:
        write_atomically(file, config.json_text)
    except OSError as error:
        print_findings(
            [
                Finding(
                    "RN003",
                    "error",
                    f"`{file}` cannot be written: {(error.strerror or str(error)).lower()}",
                    fix=Fix("choose another file with `--output`"),
                )
            ],
            None,
        )
        exit_with(ExitCode.USAGE)
    print(f"Wrote {file}.", file=sys.stderr)


def _print_reasons(config: DSConfig) -> None:
    import json

    values = {key: json.dumps(_value_at(config, key)) for key in config.reasons}
    left = max(map(len, values), default=0)
    middle = max(map(len, values.values()), default=0)
    for key, reason in config.reasons.items():
        print(f"{key.ljust(left)}  {values[key].ljust(middle)}  {reason}")


def _value_at(config: DSConfig, key: str) -> object:
    """The value of a dotted key, whose names may have dots themselves."""
    value: object = config.config
    parts = key.split(".")
    while parts and isinstance(value, Mapping):
        ends = [end for end in range(len(parts), 0, -1) if ".".join(parts[:end]) in value]
        if not ends:
            return None
        value, parts = value[".".join(parts[: ends[0]])], parts[ends[0] :]
    return value
