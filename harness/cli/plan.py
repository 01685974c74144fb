"""`harness plan`: memory, time and alternatives of a run, before anything is started."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.check.check_file import CheckedFile, check_file
from harness.cli import auto_plan
from harness.cli import plan_options as options
from harness.cli.auto_plan import SearchResult
from harness.cli.console import exit_on_errors, print_findings
from harness.cli.options import HostfileOption, SetOption, WorldSizeOption
from harness.errors import ExitCode, UserError
from harness.facts.devices import find_device
from harness.findings import Finding, Fix, sort_findings
from harness.plan.plan_json import plan_json
from harness.plan.plan_request import PlanRequest, min_gpus_for_states, validate_count, validate_gpu
from harness.plan.plan_settings import BytesPerParameter
from harness.plan.planner import Plan, make_plan
from harness.plan.resolved_run import ResolvedRun
from harness.spec.parse.source import Source
from harness.units import parse_count
from harness.views import plan_search as searched
from harness.views.plan import render_plan
from harness.views.plan_plot import render_memory_svg
from harness.views.style import style_for

NO_ARGS_IS_HELP = True
_ADAM = BytesPerParameter(2, 2, 4, 8)
_EXAMPLE = "harness plan --model llama-3.1-70b --gpus 8 --gpu H100-80GB"


def plan(
    spec: options.OptionalSpec = None,
    hostfile: HostfileOption = None,
    world_size: WorldSizeOption = None,
    overrides: SetOption = None,
    format: options.FormatOption = options.OutputFormat.text,
    model: options.ModelOption = None,
    params: options.ParamsOption = None,
    gpus: options.GpusOption = None,
    gpu: options.GpuOption = None,
    gpus_per_node: options.GpusPerNodeOption = None,
    host_memory: options.HostMemoryOption = None,
    nvme: options.NvmeOption = None,
    zero_stage: options.ZeroStageOption = None,
    max_length: options.MaxLengthOption = 4096,
    batch_tokens: options.BatchTokensOption = "1048576",
    tokens: options.TokensOption = None,
    price: options.PriceOption = None,
    search: options.SearchOption = False,
    min_gpus: options.MinGpusOption = False,
    write: options.WriteOption = None,
    plot: options.PlotOption = None,
) -> None:
    """Count memory and time of a run and of its alternatives; starts nothing and asks no host.

    Without a spec: give `--model`, `--gpus` and `--gpu`, or a bare `--params`.

    Example: harness plan ds_configs/demo.yaml --world-size 2
    """
    _raise_usage_findings(_check_stage(zero_stage) + _check_price(price))
    if params is not None:
        _print_model_states(
            _parse_count_option("--params", params), 1 if gpus is None else gpus, zero_stage, gpu, format
        )
        return
    raw, ask = None, None
    if spec is None:
        known = model is not None and gpu is not None and (gpus is not None or min_gpus)
        if model is None or gpu is None or not known:
            raise _usage_error("a plan needs a spec, or `--model`, `--gpus` and `--gpu`", f"try `{_EXAMPLE}`")
        step = int(_parse_count_option("--batch-tokens", batch_tokens))
        ask = PlanRequest(
            model, 1 if gpus is None else gpus, gpu, gpus_per_node, host_memory, nvme, zero_stage, max_length, step
        )
        if min_gpus:
            _print_min_gpus(ask, format)
            return
        spec = auto_plan.name_of(ask)
        raw, checked = auto_plan.check_request(ask)
    elif model is not None or min_gpus:
        raise _usage_error(f"a spec and `{'--model' if model else '--min-gpus'}` are both given", "leave the spec out")
    else:
        checked = check_file(spec, overrides=overrides, hostfile=hostfile, world_size=world_size, allow_code=True)
    run = exit_on_errors(checked, "Nothing was planned")
    wanted = search or (ask is not None and ask.stage is None)
    chosen = auto_plan.find_best_plan(run, raw or _spec_dict(run), spec, hostfile) if wanted else None
    run = chosen.plan.run if chosen is not None and chosen.plan is not None else run
    total = None if tokens is None else _parse_count_option("--tokens", tokens)
    made = make_plan(run, Path.cwd(), tokens=total, price=price)  # where ranks look for a relative model folder too
    next_command = "" if ask or chosen else _format_next_command(run, spec, hostfile, overrides)
    _print_plan(made, chosen, checked, format, next_command)
    _write_files(made, chosen, write, plot)


def _print_plan(
    made: Plan, chosen: SearchResult | None, checked: CheckedFile, format: options.OutputFormat, command: str
) -> None:
    found = _with_places(made.findings, checked.source if chosen is None else None)
    if found:
        print_findings(found, checked.source)
    if format is options.OutputFormat.json:
        extra = (
            {}
            if chosen is None
            else searched.search_as_dict(chosen.alternatives, chosen.best, chosen.refused, chosen.raw)
        )
        print(json.dumps({**plan_json(made), **extra}, indent=2))
        return
    style, width = style_for(sys.stdout), shutil.get_terminal_size((110, 24)).columns
    if chosen is not None:
        print(searched.render_search(chosen.alternatives, chosen.best, chosen.refused, chosen.launchable, style, width))
        print()
    print(render_plan(made, [*checked.report.findings, *found], command, style, width))


def _write_files(made: Plan, chosen: SearchResult | None, write: str | None, plot: str | None) -> None:
    """The spec that was found and the picture, with a line on stderr for each."""
    if write is not None:
        if chosen is None or chosen.best is None:
            raise _usage_error("there is nothing to write: no settings were found", "add `--search`")
        head = f"# {chosen.best.title}: found by `harness plan --search`.\n"
        _write_text(write, auto_plan.as_yaml(chosen.raw, head))
        print(f"Wrote {write}. Next: harness validate-config {shlex.quote(write)}", file=sys.stderr)
    if plot is not None:
        if not made.alternatives:
            raise _usage_error(
                "there is nothing to draw: the plan has no memory", "tell it the model, the ranks and the batch"
            )
        _write_text(plot, render_memory_svg(plan_json(made)))
        print(f"Wrote {plot}", file=sys.stderr)


def _write_text(file: str, text: str) -> None:
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise _usage_error(f"`{file}` cannot be written: {reason}", "name a file in a folder that exists") from None


def _print_min_gpus(ask: PlanRequest, format: options.OutputFormat) -> None:
    few = auto_plan.find_min_gpus(ask)
    if format is options.OutputFormat.json:
        body = {
            "gpus": few.gpus if few.best else None,
            "raw_floor_gpus": few.raw_floor_gpus,
            "state_bytes": few.state_bytes,
        }
        print(json.dumps({"format_version": 1, **body, **searched.alternative_as_dict(few.best)}, indent=2))
        return
    print(searched.render_min_gpus(ask.model, ask.gpu, few.gpus, few.best, few.raw_floor_gpus, few.state_bytes))


def _print_model_states(
    parameters: float, gpus: int, stage: int | None, gpu: str | None, format: options.OutputFormat
) -> None:
    """A count of the states alone, as the ZeRO paper's table does it."""
    _raise_usage_findings([*validate_count("--gpus", gpus, 1_000_000), *(validate_gpu(gpu) if gpu else [])])
    device = find_device(gpu or "")
    floor = min_gpus_for_states(_ADAM.per_rank(parameters, 1, 0), device) if device and not device.is_cpu else None
    sizes = {each: _ADAM.per_rank(parameters, gpus, each) for each in range(4)}
    if format is options.OutputFormat.json:
        body: dict[str, Any] = {"format_version": 1, "parameters": parameters, "gpus": gpus, "zero_stage": stage}
        body |= {
            "bytes_per_parameter": asdict(_ADAM),
            "model_states_per_rank_bytes": sizes[3 if stage is None else stage],
        }
        print(json.dumps({**body, "by_stage_bytes": sizes, "raw_floor_gpus": floor}, indent=2))
        return
    print(searched.render_model_states(parameters, gpus, stage, _ADAM, sizes, gpu, floor))


def _spec_dict(run: ResolvedRun) -> dict[str, Any]:
    return run.spec.model_dump(mode="json", exclude_unset=True)


def _parse_count_option(option: str, text: str) -> float:
    try:
        return parse_count(text)
    except ValueError as error:
        fix = Fix(f"give `{option}` a number such as `70e9` or `15T`")
        raise UserError([Finding("MM007", "error", f"`{option}`: {error}", fix=fix)], ExitCode.USAGE) from None


def _check_price(price: float | None) -> list[Finding]:
    if price is None or 0 <= price < 1e9:
        return []
    message = f"`--price {price:g}` is no price"
    return [Finding("MM007", "error", message, fix=Fix("give money a GPU and hour, such as `2.5`"))]


def _check_stage(stage: int | None) -> list[Finding]:
    if stage is None or 0 <= stage <= 3:
        return []
    return [Finding("MM007", "error", f"`--zero-stage {stage}` is not a stage", fix=Fix("choose 0, 1, 2 or 3"))]


def _raise_usage_findings(found: Sequence[Finding]) -> None:
    if found:
        raise UserError(list(found), ExitCode.USAGE)


def _usage_error(message: str, fix: str) -> UserError:
    return UserError([Finding("MM007", "error", message, fix=Fix(fix))], ExitCode.USAGE)


def _with_places(findings: Sequence[Finding], source: Source | None) -> tuple[Finding, ...]:
    """The plan's findings with the place of their key, so that they point at what the user can edit."""
    if source is None:
        return tuple(findings)
    return sort_findings(f._replace(place=source.place(f.key)) if f.key else f for f in findings)


def _format_next_command(run: ResolvedRun, spec: str, hostfile: str | None, overrides: Sequence[str] | None) -> str:
    if run.kind != "spec":
        return ""
    words = ["harness", "launch", spec]
    for override in overrides or ():
        words += ["--set", override]
    if hostfile:
        words += ["--hostfile", hostfile]
    elif run.cluster is None and (run.spec.cluster.num_nodes or 1) > 1:
        words += ["--hostfile", "HOSTFILE"]
    elif run.cluster is None and run.parallel_dims.world_size != run.spec.launch.num_gpus:
        words += ["--set", f"launch.num_gpus={run.parallel_dims.world_size}"]
    return shlex.join([*words, "--dry-run"])
