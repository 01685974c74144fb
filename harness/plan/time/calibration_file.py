# SPDX-License-Identifier: Apache-2.0
"""The file of calibrations, one a machine: where it is, how it is read and written, and which one a plan may use."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from harness.errors import ExitCode, UserError
from harness.facts.devices import Device
from harness.file_io import parse_json, read_regular, write_atomically
from harness.findings import Finding, Fix
from harness.locks import Lock, LockHeld
from harness.plan.settings.plan_settings import PlanSettings
from harness.plan.time.calibration import CalibratedRun, Calibration, combine_runs
from harness.plan.time.machine_fingerprint import (
    Fingerprint,
    Machine,
    PlanTarget,
    machine_differences,
    plan_differences,
    target_of,
    this_machine,
    version_differences,
)
from harness.spec.sections.cluster_spec import ClusterSpec

FORMAT_VERSION = 1
_MAX_BYTES = 4 * 2**20
_MAX_RUNS = 50
"""Runs of one machine that are kept: the newest."""
_WAIT_SECONDS = 10.0
"""For another `harness calibrate`, which holds the file for less than a second."""


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    format_version: Literal[1]
    calibrations: tuple[Calibration, ...]


@dataclass(frozen=True, slots=True)
class Calibrations:
    """Those of a file. `explicit`: the user named the file, for a plan that may be for another host of the same kind.
    `here`: this machine. `finding`: why the file was left out.
    """

    path: Path
    calibrations: tuple[Calibration, ...] = ()
    explicit: bool = False
    here: Machine | None = None
    finding: Finding | None = None

    def choose_for(
        self, device: Device | None, settings: PlanSettings, cluster: ClusterSpec
    ) -> tuple[Calibration | None, str]:
        """`choose` for a plan; nothing for the CPU, which no calibration is of."""
        if device is None or device.is_cpu:
            return None, ""
        return self.choose(target_of(device.name, settings, cluster))

    def choose(self, target: PlanTarget) -> tuple[Calibration | None, str]:
        """The calibration of the machine that a plan is for, or None and, where there is one of such GPUs, or the file
        was named, what differs.
        """
        if not self.calibrations:
            return None, ""
        here = self.here or this_machine()
        reasons: list[tuple[int, str]] = []
        for each in self.calibrations:
            differences = [*plan_differences(each.fingerprint, target), *version_differences(each.fingerprint, here)]
            if not self.explicit:
                differences += machine_differences(each.fingerprint, here)
            if not differences:
                return each, ""
            if self.explicit or each.fingerprint.gpu_kind == target.gpu_kind:
                reasons.append((len(differences), "; ".join(differences)))
        return None, min(reasons, default=(0, ""))[1]


def calibration_path(environ: Mapping[str, str] | None = None) -> Path:
    """The user's file: below XDG_CONFIG_HOME, else ~/.config."""
    env = os.environ if environ is None else environ
    config = Path(env.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"))  # noqa: PTH111 - Path.home() raises without a home
    return config / "deepspeed-harness" / "calibration.json"


def load_calibrations(file: str | None = None) -> Calibrations:
    """The user's own file, which may be missing and is left out with a warning where it cannot be used; or `file`, for
    which either is a UserError.
    """
    path = calibration_path() if file is None else Path(file)
    try:
        return Calibrations(path, _read(path), explicit=file is not None)
    except FileNotFoundError:
        if file is None:
            return Calibrations(path)
        raise _usage_error(path, "does not exist") from None
    except (OSError, ValueError) as error:
        reason = _describe(error)
        if file is not None:
            raise _usage_error(path, f"cannot be used: {reason}") from None
        fix = Fix("delete it, and calibrate again with `harness calibrate RUN`")
        return Calibrations(path, finding=Finding("MM016", "warning", f"`{path}` is ignored: {reason}", fix=fix))


def add_runs(path: Path, measured: Sequence[tuple[Fingerprint, CalibratedRun]], date: str) -> tuple[Calibration, ...]:
    """Add runs to the calibrations of their machines, replace the file, and return those that have changed. A run that
    is already there is replaced. Raises UserError for a file that is something else, or that cannot be written.
    """
    with _locked(path):
        stored, changed = _with_runs(_stored(path), measured, date)
        body = _File(format_version=FORMAT_VERSION, calibrations=stored).model_dump(mode="json")
        try:
            write_atomically(path, json.dumps(body, indent=2) + "\n")
        except OSError as error:
            raise _unwritable_error(path, error) from None
    return changed


def _stored(path: Path) -> tuple[Calibration, ...]:
    try:
        return _read(path)
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:
        raise _usage_error(path, f"cannot be used: {_describe(error)}", "delete it, or name another file") from None


def _with_runs(
    stored: tuple[Calibration, ...], measured: Sequence[tuple[Fingerprint, CalibratedRun]], date: str
) -> tuple[tuple[Calibration, ...], tuple[Calibration, ...]]:
    """The calibrations with the runs, and those of them that have changed."""
    changed: list[Calibration] = []
    for fingerprint, run in measured:
        same = next((each for each in stored if each.fingerprint.is_same_machine(fingerprint)), None)
        others = [each for each in (same.runs if same else ()) if (each.name, each.started) != (run.name, run.started)]
        runs = sorted([*others, run], key=lambda each: each.started)[-_MAX_RUNS:]
        new = combine_runs(same.fingerprint if same else fingerprint, runs, date)
        stored = (*(each for each in stored if each is not same), new)
        changed = [*(each for each in changed if each is not same), new]
    return stored, tuple(changed)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """No other `harness calibrate` reads or replaces the file meanwhile. Raises UserError."""
    lock_path, until = Path(f"{path.resolve()}.lock"), time.monotonic() + _WAIT_SECONDS
    lock = None
    while lock is None:
        try:
            lock_path.parent.mkdir(parents=True, exist_ok=True)
            lock = Lock.acquire(lock_path, "harness calibrate ", private=True)
        except LockHeld as held:
            if time.monotonic() > until:
                fix = "calibrate again when that process has ended"
                raise _usage_error(path, f"is being changed by {held.holder or 'another process'}", fix) from None
        except OSError as error:
            raise _unwritable_error(path, error) from None
    try:
        yield
    finally:
        lock.release()


def _read(path: Path) -> tuple[Calibration, ...]:
    """Raises OSError, and ValueError with a reason for the user."""
    body = parse_json(read_regular(path, _MAX_BYTES).decode("utf-8"))
    version = body.get("format_version") if isinstance(body, dict) else None
    if isinstance(version, int) and version != FORMAT_VERSION:
        raise ValueError(f"it is of format version {version}, this release reads {FORMAT_VERSION}")
    return _File.model_validate(body).calibrations


def _describe(error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        return f"it is no file of calibrations (`{'.'.join(map(str, first['loc']))}`: {first['msg'].lower()})"
    return "it is not JSON" if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)) else str(error)


def _unwritable_error(path: Path, error: OSError) -> UserError:
    return _usage_error(path, f"cannot be written: {_describe(error)}", "name a file in a folder of yours")


def _usage_error(path: Path, reason: str, fix: str = "name a file that `harness calibrate RUN` wrote") -> UserError:
    return UserError([Finding("MM007", "error", f"`{path}` {reason}", fix=Fix(fix))], ExitCode.USAGE)
