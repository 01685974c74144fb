# SPDX-License-Identifier: Apache-2.0
"""A script of the user's own (`plugins.script`): a rank runs it in place of the loop, and it may call `harness.train`.

The script is `__main__`, exactly the bytes that the launch allowed, with torch seeded by `train.seed`. It finds the run
in variables of its environment (`_environment`); accelerate's own make `Accelerator()` use the rendered JSON. Its
heartbeat is each step of an optimizer of torch. Restarts, logs, hangs and the diagnosis are those of every run.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, cast

import torch
from accelerate.utils import set_seed
from deepspeed.comm import comm
from torch.optim.optimizer import register_optimizer_step_post_hook

from harness.errors import ExitCode, UserError, user_error
from harness.hostinfo.torch_extensions import set_compile_cache_dir
from harness.runtime.plugin_loader import Plugin, hand_over, read_allowed_code
from harness.runtime.rank_status import RankStatusWriter
from harness.runtime.run_config import RunConfig, RunDir, load_run_config
from harness.runtime.run_lock import check_unlocked
from harness.runtime.shutdown import exit_with_parent, handlers_given_back, unblock_stop_signal
from harness.runtime.user_errors import print_findings
from harness.runtime.watchdog import Watchdog
from harness.runtime.worker import WorkerArgs, exit_immediately, run_rank

KEY = "plugins.script"


@dataclass(slots=True)
class ScriptRun:
    """The script that this rank runs."""

    args: WorkerArgs
    rank: int
    run_config: RunConfig
    path: Path
    sha256: str
    status: RankStatusWriter
    watchdog: Watchdog
    remove_hook: Callable[[], None]
    has_trained: bool = False


_current: list[ScriptRun] = []
"""At most one: the script of this process."""


def run_script(args: WorkerArgs, rank: int) -> int:
    """Run the script of the run as `__main__`; returns the exit code. Never raises: errors are in the status file."""
    exit_with_parent()
    set_compile_cache_dir(os.environ)
    run_dir = RunDir(args.run_dir.resolve())
    watchdog = Watchdog(run_dir.root / "logs", rank, args.attempt)
    status = RankStatusWriter(run_dir, rank, on_progress=watchdog.heartbeat)
    try:
        check_unlocked(run_dir)
        run_config = load_run_config(run_dir)
        path = Path(cast("str", run_config.run.spec.plugins.script))
        code, digest = read_allowed_code(path, KEY)
        os.environ |= _environment(args, run_dir, run_config)
        watchdog.set_timeout(run_config.run.spec.launch.hang_timeout_seconds)
        status.set_activity("running the script")
        hook = register_optimizer_step_post_hook(lambda *_: status.update("running"))
        _current[:] = [ScriptRun(args, rank, run_config, path, digest, status, watchdog, hook.remove)]
        set_seed(run_config.run.spec.train.seed)
        unblock_stop_signal()
        _execute(path, code, [os.path.expandvars(text) for text in run_config.run.spec.plugins.script_args])
        _finish()
    except UserError as error:
        _fail(status, rank, error)
    except SystemExit as end:
        if end.code not in (None, 0):
            status.update("failed", error=f"the script ended with `sys.exit({end.code!r})`", is_user_error=False)
            if not isinstance(end.code, int):
                sys.stderr.write(f"{end.code}\n")
            exit_immediately(end.code if isinstance(end.code, int) else ExitCode.FINDINGS)
        _finish()
    except KeyboardInterrupt:
        status.update("stopped")
        exit_immediately(ExitCode.INTERRUPTED)
    except Exception as error:
        traceback.print_exc()
        status.update("failed", error=f"the script fails{_find_line(error, path)}: {type(error).__name__}: {error}")
        exit_immediately(ExitCode.FINDINGS)
    return int(ExitCode.OK)


def train(
    module: torch.nn.Module,
    dataset: Iterable[Any],
    *,
    loss: Callable[[Any, Any], object],
    eval_dataset: Iterable[Any] | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    weigh: Callable[[Any], float] | None = None,
    metrics: Callable[..., Mapping[str, float]] | None = None,
    spec: str | Path | None = None,
) -> None:
    """Train `module` on the rows of `dataset`, as a run with `objective: custom` does, in a script that `harness launch
    --script FILE SPEC` starts. All ranks call it, once. It returns when training has ended; an error ends the process,
    and a stop the script (`SystemExit`).

    `loss(model, batch)` is the mean loss of a micro-batch, a scalar, or (loss, weight); `collate`, `weigh` and
    `metrics` are as in a plug-in (docs/own-models.md), and `eval_dataset` is held out. `spec` is for `python FILE`,
    which starts the launch by itself.
    """
    if not _current:
        _launch_this_file(spec)
    (run,) = _current
    values = {"loss": loss, "collate": collate, "weigh": weigh, "metrics": metrics}
    try:
        _check_call(run, module, {name: value for name, value in values.items() if name == "loss" or value is not None})
    except UserError as error:
        _fail(run.status, run.rank, error)
    splits = {"train": dataset, "eval": eval_dataset}
    hand_over(
        Plugin(
            run.path,
            run.sha256,
            lambda _: module,
            None,
            metrics,
            build_dataset=lambda _, split: splits[split],
            compute_loss=loss,
            collate=collate,
            weigh=weigh,
            is_script=True,
        )
    )
    run.has_trained = True
    run.remove_hook()
    run.watchdog.close()
    with handlers_given_back() as received:
        code = run_rank(run.args, run.rank, run.status)
    if code:
        exit_immediately(code)
    if run.status.outcome != "completed":
        raise SystemExit  # what follows in the script is for a trained model
    for signum in received:  # at the last step: the training is complete, and what follows is to end
        os.kill(os.getpid(), signum)


def _environment(args: WorkerArgs, run_dir: RunDir, run_config: RunConfig) -> dict[str, str]:
    """Variables that the script finds the run by. Those of accelerate are as `accelerate launch` sets them."""
    root, config = run_dir.root, run_dir.root / "ds_config.json"
    precision = next((name for name in ("bf16", "fp16") if run_config.ds_config.get(name, {}).get("enabled")), "no")
    return {
        "HARNESS_DS_CONFIG": str(config),
        "HARNESS_SPEC": str(root / "spec.resolved.json"),
        "HARNESS_RUN_DIR": str(root),
        "HARNESS_ATTEMPT": str(args.attempt),
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_DEEPSPEED_CONFIG_FILE": str(config),
        "ACCELERATE_DEEPSPEED_ZERO3_INIT": str(run_config.run.spec.zero.stage == 3).lower(),
        "ACCELERATE_MIXED_PRECISION": precision,
    }


def _execute(path: Path, code: bytes, arguments: list[str]) -> None:
    """Run exactly these bytes as the main program."""
    module = ModuleType("__main__")
    module.__file__ = str(path)
    sys.modules["__main__"] = module  # pickle looks a class's module up there
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.resolve().parent))
    program = compile(code, str(path), "exec", dont_inherit=True)  # without `annotations` of this file's own
    exec(program, module.__dict__)  # noqa: S102 - allowed by the user, `plugin_loader.py`


def _finish() -> None:
    """The script has ended: refuse one that trained nothing. What trained by itself is complete, or was to stop."""
    (run,) = _current
    run.remove_hook()
    if run.has_trained:
        run.status.update(run.status.outcome or "stopped")
        return
    if comm.cdb is None:  # the process group of DeepSpeed, which stays where the script ended it
        error = user_error(
            "MD158",
            f"`{run.path}` has ended, and trained nothing",
            key=KEY,
            notes=("it called neither `harness.train`, `deepspeed.initialize` nor accelerate's `Accelerator`",),
            fix="call one of them in the script; code under `if __name__ == '__main__'` runs",
        )
        _fail(run.status, run.rank, error)
    run.status.update("stopped" if RunDir(run.args.run_dir).stop.exists() else "completed")
    run.watchdog.close()


def _check_call(run: ScriptRun, module: object, functions: Mapping[str, object]) -> None:
    """Raises UserError (MD158) for a call that cannot train."""
    spec = run.run_config.run.spec
    if run.has_trained:
        _refuse("`harness.train` is called a second time", "a launch trains one run: start another for the other one")
    if spec.objective != "custom":
        _refuse(f"`harness.train` trains `objective: custom`, the spec has `{spec.objective}`", "set it in the spec")
    if not isinstance(module, torch.nn.Module):
        _refuse(f"the module of `harness.train` is a `{type(module).__name__}`", "hand over a `torch.nn.Module`")
    for name, function in functions.items():
        if not callable(function):
            _refuse(f"`{name}` of `harness.train` is a `{type(function).__name__}`", "hand over a function")


def _refuse(message: str, fix: str) -> NoReturn:
    raise user_error("MD158", message, key=KEY, fix=fix)


def _fail(status: RankStatusWriter, rank: int, error: UserError) -> NoReturn:
    """Rank 0 prints it alone: all ranks run the same script and find the same."""
    if rank == 0:
        print_findings(error.findings)
    status.update("failed", error=str(error), is_user_error=True)
    exit_immediately(error.code)


def _find_line(error: Exception, path: Path) -> str:
    """` in line N` of the script, where the error passed it last."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f" in line {lines[-1]}" if lines else ""


def _launch_this_file(spec: str | Path | None) -> NoReturn:
    """Replace this process, which no launch started, by a launch of its file."""
    file = sys.argv[0]
    if spec is None or not Path(file).is_file():
        example = Path(file).name if Path(file).is_file() else "FILE"
        raise SystemExit(
            f"harness.train: no launch started this program; start it with `harness launch --script {example} SPEC`, or"
            f' give `spec="SPEC"` and run it with `python {example}`'
        )
    command = [sys.executable, "-m", "harness", "launch", "--script", file, str(spec)]
    if sys.argv[1:]:
        command += ["--set", f"plugins.script_args={json.dumps(sys.argv[1:])}"]
    sys.stdout.flush()
    os.execv(command[0], command)  # noqa: S606 - the user's own file, by this interpreter
