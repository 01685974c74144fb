# SPDX-License-Identifier: Apache-2.0
"""All trials of `harness tune`, one after the other, until the last or a signal."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple, NoReturn

from harness.check.check_file import CheckedFile
from harness.check.machine_findings import with_launch_findings, with_misspelt_paths
from harness.errors import ExitCode
from harness.launching.hosts.local_host import inspect_local_host
from harness.launching.programs.trial_runner import TrialSettings, run_trial
from harness.tuning.candidate_search import TuneRequest, TuneSearch
from harness.tuning.candidates import Candidate
from harness.tuning.trials import Trial, fastest_trial, rank_trials


class TrialObserver(NamedTuple):
    """Called with a candidate before its trial, or the trial after it, its number from 1, and the number of trials."""

    on_start: Callable[[Candidate, int, int], None]
    on_end: Callable[[Trial, int, int], None]


class TrialSeries(NamedTuple):
    """The trials in order, untried ones among them where a signal ended the series with `exit_code`."""

    trials: list[Trial]
    exit_code: int | None = None


def check_request(request: TuneRequest, *, dry_run: bool) -> tuple[CheckedFile, int]:
    """The checked spec, with as many ranks as this machine has accelerators where nothing says how many; and that
    number of accelerators. Trials on this machine need every path of the spec, a dry run none.
    """
    checked = request.check()
    local_host = inspect_local_host(variables=checked.run.spec.launch.env if checked.run else None)
    if checked.run is not None and checked.run.parallel_dims.world_size is None:
        checked = request.check(world_size=local_host.num_accelerators or 1)
    if dry_run or (checked.run is not None and checked.run.cluster is not None):
        return with_misspelt_paths(checked), local_host.num_accelerators
    return with_launch_findings(checked, here=True), local_host.num_accelerators


def run_trials(settings: TrialSettings, search: TuneSearch, observer: TrialObserver) -> TrialSeries:
    """Run each candidate; where one is faster than the unchanged spec, run the spec once more at the end."""
    trials = [Trial(candidate) for candidate in search.candidates]
    try:
        with _sigterm_as_interrupt():
            for number, trial in enumerate(trials):
                observer.on_start(trial.candidate, number + 1, len(trials))
                trials[number] = run_trial(settings, search.run, trial.candidate, number, fastest_trial(trials))
                observer.on_end(trials[number], number + 1, len(trials))
            if rank_trials(trials).is_faster and trials[0].state == "measured":
                _rerun_baseline(settings, search, trials, observer)
    except KeyboardInterrupt as interrupt:
        code = int(interrupt.args[0]) if interrupt.args else int(ExitCode.INTERRUPTED)
        return TrialSeries(trials, code)
    return TrialSeries(trials)


def _rerun_baseline(settings: TrialSettings, search: TuneSearch, trials: list[Trial], observer: TrialObserver) -> None:
    """Run the unchanged spec once more: the speed of a shared machine may have changed during the trials."""
    candidate = replace(search.candidates[0], title="the unchanged spec, again")
    trials.append(Trial(candidate))
    observer.on_start(candidate, len(trials), len(trials))
    trials[-1] = run_trial(settings, search.run, candidate, len(trials) - 1, None)
    observer.on_end(trials[-1], len(trials), len(trials))


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Turn a scheduler's SIGTERM into Ctrl-C: the ranks of trials are in sessions of their own."""

    def interrupt(signum: int, _: object) -> NoReturn:
        raise KeyboardInterrupt(128 + signum)

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
