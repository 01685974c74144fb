# SPDX-License-Identifier: Apache-2.0
"""The objective of a run, with the plug-in and the options that it goes with."""

from __future__ import annotations

from operator import attrgetter

from harness.gates.registry import Context, Findings, Fix, spec_gate
from harness.run.objective_facts import facts_of


@spec_gate("MD061 custom-without-plugin", upstream="raises")
def custom_without_plugin(ctx: Context) -> Findings:
    """A model and a loss of one's own that no file has.

    `objective: custom` comes with `plugins.file` or `plugins.script`.

    Why: The file has the model, the data and the loss. DeepSpeed gets these from a script.

    Example:
        objective: custom
        model.config: null
        data.train: null
    """
    if _lacks_code(ctx):
        yield ctx.finding(
            "`objective: custom` needs `plugins.file`, which has the model, the data and the loss",
            "objective",
            notes=("a script of your own, which builds them itself: `harness launch --script FILE SPEC`",),
            fix=Fix(
                "set `plugins.file` to a Python file with `build_model`, `build_dataset` and `compute_loss`",
                {"plugins.file": "my_model.py"},
                effect="decides what is trained",
            ),
        )


@spec_gate("MD060 not-with-this-objective", severity=("error", "warning"))
def not_with_this_objective(ctx: Context) -> Findings:
    """An option that the objective does not go with.

    Options for rows of text, for models of `transformers` and for their parallel degrees are not given with an
    objective that reads none of them. Each objective has its own columns in `data`: `chosen_column` is of pairs.

    Why: The run would ignore the option, or compute another loss than it names: packing, a loss in chunks and
    sequence, pipeline and tensor ranks are built for the next token of a text (`harness/run/objective_facts.py`).

    Example:
        objective: custom
        plugins.file: my_model.py
        model.config: null
        data.train: null
        data.packing: true
    """
    spec = ctx.run.spec
    if _lacks_code(ctx):  # MD061
        return
    for key in facts_of(spec.objective).unread:
        section, _, field = key.rpartition(".")
        is_column = field.endswith("_column")
        if is_column and (spec.plugins.file or spec.plugins.script):  # whose code may read it
            continue
        value = attrgetter(key)(spec)
        if (
            not attrgetter(section)(spec).is_written(field)
            or value in (None, False, ())
            or (key.startswith("parallel.") and value == 1)
        ):
            continue
        yield ctx.finding(
            f"`{key}` does not go with `objective: {spec.objective}`",
            key,
            severity="warning" if is_column else "error",
            related=[("objective", "does not read it")],
            fix=Fix(f"remove `{key}`", {key: None}, effect="trains the same: nothing read it"),
        )


@spec_gate("MD063 script-and-plugin")
def script_and_plugin(ctx: Context) -> Findings:
    """A plug-in, or arguments, that no script reads.

    `plugins.file` and `plugins.script` are not given together, and `plugins.script_args` come with a script.

    Why: A script runs in place of the loop, which alone calls the functions of a plug-in: they would be ignored.

    Example:
        plugins.file: my_model.py
        plugins.script: train.py
    """
    plugins = ctx.run.spec.plugins
    if plugins.script is not None and plugins.file is not None:
        yield ctx.finding(
            "`plugins.script` runs in place of the loop, which calls the functions of `plugins.file`",
            "plugins.file",
            related=[("plugins.script", "calls none of them")],
            fix=ctx.fix_to_remove("plugins.file", effect="trains what the script trains"),
        )
    if plugins.script_args and plugins.script is None:
        yield ctx.finding(
            "`plugins.script_args` are the arguments of a script, and the run has none",
            "plugins.script_args",
            fix=ctx.fix_to_remove("plugins.script_args", effect="trains the same: nothing reads them"),
        )


def _lacks_code(ctx: Context) -> bool:
    plugins = ctx.run.spec.plugins
    return ctx.run.spec.objective == "custom" and plugins.file is None and plugins.script is None
