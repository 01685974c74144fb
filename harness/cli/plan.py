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

from harness.cli import choosing
from harness.cli import plan_options as options
from harness.cli.choosing import Chosen
from harness.cli.common import Checked, check_file, print_findings, stop_on_errors
from harness.cli.options import HostfileOption, SetOption, WorldSizeOption
from harness.errors import Exit, Refused
from harness.facts.devices import find_device
from harness.findings import Finding, Fix, in_reading_order
from harness.plan.ask import Ask, raw_floor, wrong_gpu, wrong_number
from harness.plan.plan import Plan, make_plan
from harness.plan.run import Run
from harness.plan.settings import Recipe
from harness.spec.source import Source
from harness.units import parse_count
from harness.views import plan_search as searched
from harness.views.plan import as_text
from harness.views.plan_plot import memory_svg
from harness.views.style import style_for

NO_ARGS_IS_HELP = True
_ADAM = Recipe(2, 2, 4, 8)
_EXAMPLE = "harness plan --model llama-3.1-70b --gpus 8 --gpu H100-80GB"


def plan(
    spec: options.OptionalSpec = None,
    hostfile: HostfileOption = None,
    world_size: WorldSizeOption = None,
    overrides: SetOption = None,
    format: options.FormatOption = options.Format.text,
    model: options.ModelOption = None,
    params: options.ParamsOption = None,
    gpus: options.GpusOption = None,
    gpu: options.GpuOption = None,
    gpus_per_node: options.PerNodeOption = None,
    host_memory: options.HostMemoryOption = None,
    nvme: options.NvmeOption = None,
    zero_stage: options.StageOption = None,
    max_length: options.LengthOption = 4096,
    batch_tokens: options.BatchOption = "1048576",
    tokens: options.TokensOption = None,
    price: options.PriceOption = None,
    search: options.SearchOption = False,
    min_gpus: options.FewestOption = False,
    write: options.WriteOption = None,
    plot: options.PlotOption = None,
) -> None:
    """Count memory and time of a run and of its alternatives; starts nothing and asks no host.

    Without a spec: give `--model`, `--gpus` and `--gpu`, or a bare `--params`.

    Example: harness plan ds_configs/demo.yaml --world-size 2
    """
    _reject(_wrong_stage(zero_stage) + _wrong_price(price))
    if params is not None:
        _bare(_count("--params", params), 1 if gpus is None else gpus, zero_stage, gpu, format)
        return
    raw, ask = None, None
    if spec is None:
        known = model is not None and gpu is not None and (gpus is not None or min_gpus)
        if model is None or gpu is None or not known:
            raise _usage("a plan needs a spec, or `--model`, `--gpus` and `--gpu`", f"try `{_EXAMPLE}`")
        step = int(_count("--batch-tokens", batch_tokens))
        ask = Ask(
            model, 1 if gpus is None else gpus, gpu, gpus_per_node, host_memory, nvme, zero_stage, max_length, step
        )
        if min_gpus:
            _print_fewest(ask, format)
            return
        spec = choosing.name_of(ask)
        raw, checked = choosing.checked_ask(ask)
    elif model is not None or min_gpus:
        raise _usage(f"a spec and `{'--model' if model else '--min-gpus'}` are both given", "leave the spec out")
    else:
        checked = check_file(spec, overrides=overrides, hostfile=hostfile, world_size=world_size, allow_code=True)
    run = stop_on_errors(checked, "Nothing was planned")
    wanted = search or (ask is not None and ask.stage is None)
    chosen = choosing.choose(run, raw or _raw(run), spec, hostfile) if wanted else None
    run = chosen.plan.run if chosen is not None and chosen.plan is not None else run
    total = None if tokens is None else _count("--tokens", tokens)
    made = make_plan(run, Path.cwd(), tokens=total, price=price)  # where ranks look for a relative model folder too
    next_command = "" if ask or chosen else _next_command(run, spec, hostfile, overrides)
    _print_plan(made, chosen, checked, format, next_command)
    _write_files(made, chosen, write, plot)


def _print_plan(made: Plan, chosen: Chosen | None, checked: Checked, format: options.Format, command: str) -> None:
    found = _placed(made.findings, checked.source if chosen is None else None)
    if found:
        print_findings(found, checked.source)
    if format is options.Format.json:
        extra = {} if chosen is None else searched.search_json(chosen.rungs, chosen.rung, chosen.refused, chosen.raw)
        print(json.dumps({**made.to_json(), **extra}, indent=2))
        return
    style, width = style_for(sys.stdout), shutil.get_terminal_size((110, 24)).columns
    if chosen is not None:
        print(searched.search_text(chosen.rungs, chosen.rung, chosen.refused, chosen.launchable, style, width))
        print()
    print(as_text(made, [*checked.report.findings, *found], command, style, width))


def _write_files(made: Plan, chosen: Chosen | None, write: str | None, plot: str | None) -> None:
    """The spec that was found and the picture, with a line on stderr for each."""
    if write is not None:
        if chosen is None or chosen.rung is None:
            raise _usage("there is nothing to write: no settings were found", "add `--search`")
        head = f"# {chosen.rung.title}: found by `harness plan --search`.\n"
        _save(write, choosing.as_yaml(chosen.raw, head))
        print(f"Wrote {write}. Next: harness validate-config {shlex.quote(write)}", file=sys.stderr)
    if plot is not None:
        if not made.rungs:
            raise _usage(
                "there is nothing to draw: the plan has no memory", "tell it the model, the ranks and the batch"
            )
        _save(plot, memory_svg(made.to_json()))
        print(f"Wrote {plot}", file=sys.stderr)


def _save(file: str, text: str) -> None:
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise _usage(f"`{file}` cannot be written: {reason}", "name a file in a folder that exists") from None


def _print_fewest(ask: Ask, format: options.Format) -> None:
    few = choosing.fewest(ask)
    if format is options.Format.json:
        body = {"gpus": few.gpus if few.rung else None, "raw_floor_gpus": few.floor, "state_bytes": few.states}
        print(json.dumps({"format_version": 1, **body, **searched.rung_json(few.rung)}, indent=2))
        return
    print(searched.fewest_text(ask.model, ask.gpu, few.gpus, few.rung, few.floor, few.states))


def _bare(parameters: float, gpus: int, stage: int | None, gpu: str | None, format: options.Format) -> None:
    """A count of the states alone, as the ZeRO paper's table does it."""
    _reject([*wrong_number("--gpus", gpus, 1_000_000), *(wrong_gpu(gpu) if gpu else [])])
    device = find_device(gpu or "")
    floor = raw_floor(_ADAM.per_rank(parameters, 1, 0), device) if device and not device.is_cpu else None
    sizes = {each: _ADAM.per_rank(parameters, gpus, each) for each in range(4)}
    if format is options.Format.json:
        body: dict[str, Any] = {"format_version": 1, "parameters": parameters, "gpus": gpus, "zero_stage": stage}
        body |= {
            "bytes_per_parameter": asdict(_ADAM),
            "model_states_per_rank_bytes": sizes[3 if stage is None else stage],
        }
        print(json.dumps({**body, "by_stage_bytes": sizes, "raw_floor_gpus": floor}, indent=2))
        return
    print(searched.bare_text(parameters, gpus, stage, _ADAM, sizes, gpu, floor))


def _raw(run: Run) -> dict[str, Any]:
    return run.spec.model_dump(mode="json", exclude_unset=True)


def _count(option: str, text: str) -> float:
    try:
        return parse_count(text)
    except ValueError as error:
        fix = Fix(f"give `{option}` a number such as `70e9` or `15T`")
        raise Refused([Finding("MM007", "error", f"`{option}`: {error}", fix=fix)], Exit.USAGE) from None


def _wrong_price(price: float | None) -> list[Finding]:
    if price is None or 0 <= price < 1e9:
        return []
    message = f"`--price {price:g}` is no price"
    return [Finding("MM007", "error", message, fix=Fix("give money a GPU and hour, such as `2.5`"))]


def _wrong_stage(stage: int | None) -> list[Finding]:
    if stage is None or 0 <= stage <= 3:
        return []
    return [Finding("MM007", "error", f"`--zero-stage {stage}` is not a stage", fix=Fix("choose 0, 1, 2 or 3"))]


def _reject(found: Sequence[Finding]) -> None:
    if found:
        raise Refused(list(found), Exit.USAGE)


def _usage(message: str, fix: str) -> Refused:
    return Refused([Finding("MM007", "error", message, fix=Fix(fix))], Exit.USAGE)


def _placed(findings: Sequence[Finding], source: Source | None) -> tuple[Finding, ...]:
    """The plan's findings with the place of their key, so that they point at what the user can edit."""
    if source is None:
        return tuple(findings)
    return in_reading_order(f._replace(place=source.place(f.key)) if f.key else f for f in findings)


def _next_command(run: Run, spec: str, hostfile: str | None, overrides: Sequence[str] | None) -> str:
    if run.kind != "spec":
        return ""
    words = ["harness", "launch", spec]
    for override in overrides or ():
        words += ["--set", override]
    if hostfile:
        words += ["--hostfile", hostfile]
    elif run.cluster is None and (run.spec.cluster.num_nodes or 1) > 1:
        words += ["--hostfile", "HOSTFILE"]
    elif run.cluster is None and run.degrees.world != run.spec.launch.num_gpus:
        words += ["--set", f"launch.num_gpus={run.degrees.world}"]
    return shlex.join([*words, "--dry-run"])
