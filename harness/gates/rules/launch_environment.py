# SPDX-License-Identifier: Apache-2.0
"""Environment variables that belong to the launcher or to DeepSpeed."""

from __future__ import annotations

from harness.gates.registry import Cite, Context, Findings, Fix, gate, spec_gate

_LAUNCHER_VARIABLES = frozenset(
    """RANK LOCAL_RANK WORLD_SIZE LOCAL_SIZE CROSS_RANK CROSS_SIZE MASTER_ADDR MASTER_PORT
    HARNESS_RUN_DIR HARNESS_SUPERVISOR HARNESS_LEADER""".split()
)


@spec_gate(
    "SE002 environment-that-the-launcher-sets",
    severity="warning",
    unread="the launcher sets the variable for each rank",
    cites=Cite("launcher/launch.py", 'current_env["MASTER_PORT"] = str(args.master_port)'),
)
def launcher_variables(ctx: Context) -> Findings:
    """A variable that the launcher sets itself.

    `launch.env` contains none of `RANK`, `LOCAL_RANK`, `WORLD_SIZE`, `LOCAL_SIZE`, `CROSS_RANK`, `CROSS_SIZE`,
    `MASTER_ADDR`, `MASTER_PORT`, nor `HARNESS_RUN_DIR`, `HARNESS_SUPERVISOR` and `HARNESS_LEADER`.

    Why: The `deepspeed` launcher sets these for each rank from the hostfile and its own options, over whatever was
    there (read in 0.19.8). The value would be lost; the port has a field, `launch.master_port`. `harness launch` itself
    sets the last three, which name the run of a rank and its supervisor, and does not pass on other values.

    Example:
        launch.env.MASTER_PORT: 29501

    Use instead:
        launch.master_port: 29501
    """
    for name in ctx.run.spec.launch.env:
        if name in _LAUNCHER_VARIABLES:
            key = f"launch.env.{name}"
            yield ctx.unread(
                f"{ctx.key(key)} is set by the launcher for each rank, so this value is lost",
                key,
                notes=[
                    "set `launch.master_port` instead"
                    if name == "MASTER_PORT"
                    else "it follows from the hosts and their slots"
                ],
            )


@gate(
    "HO010 assertions-off-in-launch-env",
    cites=Cite("runtime/config.py", 'assert (train_batch > 0), f"Train batch size: {train_batch}'),
    when=lambda ctx: "PYTHONOPTIMIZE" in ctx.run.spec.launch.env,
)
def switched_off_assertions(ctx: Context) -> Findings:
    """Assertions switched off for the ranks.

    `launch.env` does not set PYTHONOPTIMIZE.

    Why: Most of DeepSpeed's refusals are `assert` statements, which PYTHONOPTIMIZE removes. Run on 0.19.8 without them:
    an inconsistent batch size trains with another one, a micro-batch of 0 trains on nothing and reports NaN, a pipeline
    at stage 3 hangs, tensor ranks train on different samples, and untested optimizers pass. PYTHON variables are among
    those that DeepSpeed sends to all hosts.

    Example:
        launch.env.PYTHONOPTIMIZE: "1"

    Use instead:
        launch.env.PYTHONOPTIMIZE: ""
    """
    value = ctx.run.spec.launch.env["PYTHONOPTIMIZE"]
    if value.strip() not in ("", "0"):
        key = "launch.env.PYTHONOPTIMIZE"
        yield ctx.finding(
            f"PYTHONOPTIMIZE is `{value[:20]}`: the ranks run without DeepSpeed's assertions",
            key,
            label="removes most refusals",
            notes=["a run that DeepSpeed would refuse trains something else, or hangs"],
            fix=ctx.fix_to_remove(key, effect="assertions are checked, nothing is slower"),
        )


_DEVICES = "CUDA_VISIBLE_DEVICES"


@gate(
    "HO011 devices-chosen-in-launch-env",
    severity="warning",
    unread="the launcher sets the variable for each rank",
    cites=Cite("launcher/runner.py", "CUDA_VISIBLE_DEVICES"),
    when=lambda ctx: _DEVICES in ctx.run.spec.launch.env,
    unseen="needs CUDA",
)
def devices_in_environment(ctx: Context) -> Findings:
    """Devices chosen in the environment of the ranks.

    `launch.env` does not set CUDA_VISIBLE_DEVICES.

    Why: DeepSpeed's launcher writes CUDA_VISIBLE_DEVICES for each rank from the slots, over whatever is there, and
    drops it where `--num_gpus` is given (run on 0.19.8): the ranks train on other devices than the variable names. Set
    it in the shell that launches, where it takes effect.

    Example:
        launch.num_gpus: 2
        launch.env.CUDA_VISIBLE_DEVICES: "2,3"
    """
    key = f"launch.env.{_DEVICES}"
    devices = ctx.run.spec.launch.env[_DEVICES]
    yield ctx.unread(
        f"the launcher chooses devices by slots, {ctx.key(key)} `{devices[:40]}` is lost",
        key,
        notes=["the ranks would train on other devices than these"],
        fix=Fix(
            f"remove it here, and export {_DEVICES} in the shell that launches", {key: None}, safe=True, effect="as now"
        ),
    )
