# SPDX-License-Identifier: Apache-2.0
"""`harness plan --cheapest`: the machine on which a run costs least, under the gates and as the plan has it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from harness.check.auto_plan import name_of
from harness.check.check_file import check_file
from harness.check.fit_of_spec import search_of_run
from harness.check.fit_table import FitSearch, FitTable, make_fit_table
from harness.errors import ExitCode, UserError
from harness.facts.devices import DEVICES, usual_gpus_per_host
from harness.facts.model_lookup import ModelFacts
from harness.findings import Finding, Fix
from harness.plan.counted_plan import CountedPlan
from harness.plan.plan_usage import usage_error
from harness.plan.planner import make_plan
from harness.plan.search.alternatives import Alternative
from harness.plan.search.machine_costs import Candidates, Machine, MachineCost, count_gpus, place_of
from harness.plan.search.pinned_keys import keep_pinned, key_of_override
from harness.plan.search.plan_request import PlanRequest, spec_from_request, validate_request
from harness.plan.search.price_list import PriceList
from harness.plan.search.spec_changes import merge_changes, spec_changes_for
from harness.plan.time.cost_range import CostRange, DeadlineAnswer, check_deadline, cost_range
from harness.plan.time.step_time import StepTime
from harness.run.resolved_run import ResolvedRun
from harness.spec.parse.source import KeyPath, join_key
from harness.spec.yaml_text import spec_as_yaml
from harness.units import parse_bytes

_MAX_GPUS = 2048
_MAX_CHECKED, _MAX_MACHINES = 12, 3
_SAME_MONEY = 0.01
_MISSED = 2
_GIB = 2**30
_MACHINE_KEYS = (
    *("cluster", "cluster.gpu", "cluster.num_nodes", "cluster.gpus_per_node", "cluster.host_memory", "cluster.nvme"),
    *("launch.hostfile", "launch.num_gpus"),
)
_NO_LAUNCH_KEYS: Mapping[str, Any] = {"hostfile": None, "num_gpus": None}


@dataclass(frozen=True)
class MachineRow:
    """The best settings on one machine: its plan and what the run costs; `spec` are the keys that make it."""

    machine: Machine
    counted: CountedPlan
    time: StepTime
    cost: CostRange
    deadline: DeadlineAnswer | None
    spec: Mapping[str, Any]


@dataclass(frozen=True)
class CheapestMachine:
    """One row a kind of GPU, cheapest first, those that meet the deadline before the others, and after all of these the
    kinds on which no launch starts; `table` has the ways of training on the first kind. `too_small`: kinds on which
    nothing fits or passes; `unfilled`: those whose hosts the number of GPUs does not fill.
    """

    tokens: float
    deadline: float | None
    prices: PriceList
    rows: tuple[MachineRow, ...]
    table: FitTable | None
    too_small: tuple[str, ...]
    unpriced: tuple[str, ...]
    model: str
    unfilled: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunToPlace:
    """A run that has no machine yet: the values of its spec, and the file name that findings carry.

    `request`: the options that the spec is made from, None where it comes from a file. `pinned`: the keys that the user
    gave on the command line.
    """

    name: str
    raw: Mapping[str, Any]
    request: PlanRequest | None
    sequences: int
    pinned: tuple[KeyPath, ...] = ()

    @staticmethod
    def from_request(request: PlanRequest) -> RunToPlace:
        """The run of `--model`. Raises UserError with everything that is wrong."""
        findings = validate_request(replace(request, gpus=1, gpus_per_node=None))
        if findings:
            raise UserError(findings, ExitCode.USAGE)
        sequences = max(1, round(request.tokens_per_step / request.max_length))
        return RunToPlace(name_of(request), spec_from_request(request), request, sequences, request.pinned)

    @staticmethod
    def from_spec(run: ResolvedRun, file: str, overrides: Sequence[str] = ()) -> RunToPlace:
        """The run of a spec, on other machines. Raises UserError for an override of what these decide."""
        raw = run.spec.model_dump(mode="json", exclude_unset=True)
        for path in map(key_of_override, overrides):
            key = join_key(path)
            if key in _MACHINE_KEYS:
                message = f"`{key}` has no effect with `--cheapest`, which compares machines"
                raise usage_error(message, f"leave `{key}` out, or give `--gpu`, `--gpus` or `--host-memory`")
        return RunToPlace(file, raw, None, run.batch.global_batch or 1, tuple(map(key_of_override, overrides)))

    def keep_pinned(
        self, kind: str, gpus: int, model: ModelFacts, found: Sequence[Alternative]
    ) -> tuple[Alternative, ...]:
        """Those with the values that the user gave. Raises UserError where there are none."""
        raw = self.spec_on(kind, gpus, 1 << 40)
        return keep_pinned(found, lambda each: each.settings, model, raw, self.pinned, self.raw)

    def spec_on(self, kind: str, gpus: int, host_memory: int) -> dict[str, Any]:
        """The spec on so many GPUs of this kind; `host_memory` in bytes a host."""
        size = f"{host_memory // _GIB}GiB"
        if self.request is not None:
            on_machine = replace(self.request, gpu=kind, gpus=gpus, gpus_per_node=None, host_memory=size, nvme=None)
            return spec_from_request(on_machine)
        per_host = min(gpus, usual_gpus_per_host(kind))
        cluster = {"gpu": kind, "num_nodes": gpus // per_host, "gpus_per_node": per_host, "host_memory": size}
        batch = {"per_device_train_batch_size": 1, "global_batch_size": self.sequences}
        changes = {
            "cluster": {**cluster, "nvme": None},
            "train": {**batch, "gradient_accumulation_steps": None},
            "launch": _NO_LAUNCH_KEYS,
        }
        return merge_changes(self.raw, changes)

    def allows(self, gpus: int) -> bool:
        """Does the batch divide over so many GPUs?"""
        return gpus <= self.sequences and (self.request is not None or self.sequences % gpus == 0)


def find_cheapest(
    placed: RunToPlace,
    prices: PriceList,
    tokens: float,
    deadline: float | None = None,
    host_memory: str | None = None,
    gpus: int | None = None,
) -> CheapestMachine:
    """Compare every kind with a price at parts of a host, then at 1, 2, 4, 8 hosts until money only rises.

    `host_memory` of a whole host, where it is given; `gpus` limits the numbers to one. Raises UserError where
    no setting can be counted.
    """
    memory = None if host_memory is None else parse_bytes(host_memory)
    open_kinds = {price.kind: price for price in prices.prices if gpus is None or fills_hosts(gpus, price.kind)}
    by_kind: dict[str, list[MachineCost]] = {kind: [] for kind in open_kinds}
    unfilled = tuple(price.kind for price in prices.prices if price.kind not in by_kind)
    name = ""
    tables: dict[tuple[int, int], Candidates] = {}
    for number in [gpus] if gpus is not None else count_gpus(_MAX_GPUS):
        if not open_kinds or not placed.allows(number):
            break
        for kind, price in list(open_kinds.items()):
            per_host = min(number, usual_gpus_per_host(kind))
            if (number, per_host) not in tables:
                base = _base_plan(placed, kind, number)
                name = base.plan.run.spec.model.name_or_path or base.plan.run.name
                keep = partial(placed.keep_pinned, kind, number, base.model)
                tables[number, per_host] = Candidates(base.plan.run, base.model, base.plan.rates, keep)
            a_gpu = price.host_memory if memory is None else memory // usual_gpus_per_host(kind)
            machine = Machine(DEVICES[kind], number, a_gpu * per_host, price)
            by_kind[kind] += tables[number, per_host].estimate_costs(machine, tokens)
            if _only_rises(by_kind[kind], number, deadline):
                del open_kinds[kind]
    rows, too_small = [], []
    for kind, choices in by_kind.items():
        row = None
        for machine in list(_in_order(choices, deadline))[:_MAX_MACHINES]:
            candidates = tables[machine.gpus, machine.gpus_per_host]
            ranked = candidates.rank_on_machine(machine)
            row = _first_that_passes(placed, candidates.model, ranked, machine, tokens, deadline)
            if row is not None:
                break
        if row is None:
            too_small.append(kind)
        else:
            rows.append(row)
    rows.sort(key=lambda row: (not row.machine.device.starts_ranks, *_order(row.cost, deadline)))
    table = _ways_on(rows[0], tokens, host_memory, gpus) if rows else None
    priced = (*by_kind, *unfilled, "cpu")
    unpriced = tuple(name for name in DEVICES if name not in priced and not prices.is_of_one_kind)
    return CheapestMachine(tokens, deadline, prices, tuple(rows), table, tuple(too_small), unpriced, name, unfilled)


def fills_hosts(gpus: int, kind: str) -> bool:
    """Are so many GPUs a part of a host of this kind, or whole hosts, as they are rented?"""
    per_host = usual_gpus_per_host(kind)
    return gpus <= per_host or gpus % per_host == 0


def _ways_on(row: MachineRow, tokens: float, host_memory: str | None, gpus: int | None) -> FitTable | None:
    """The ways of training the run on hosts of this kind; None for a model without a name."""
    search = search_of_run(row.counted.plan.run, tokens, row.machine.price.dollars, "")
    if search is None:
        return None
    request = replace(search.request, gpus_per_node=None, host_memory=host_memory, nvme=None)
    on_hosts = FitSearch(request, tokens, search.dollars, search.sections, host_price=row.machine.price)
    return make_fit_table(on_hosts, gpus or row.machine.gpus)


def _base_plan(placed: RunToPlace, kind: str, gpus: int) -> CountedPlan:
    """The run with the batch and the ranks of this number; any kind gives the same settings."""
    raw = placed.spec_on(kind, gpus, 1 << 40)
    checked = check_file(placed.name, text=spec_as_yaml(raw), world_size=gpus, allow_code=True)
    run = checked.run
    plan = make_plan(run, Path.cwd(), with_alternatives=False, by_name=True) if run is not None else None
    counted = CountedPlan.of(plan)
    if counted is not None:
        return counted
    errors = [finding for finding in checked.report.findings if finding.severity == "error"]
    unknown = Finding("MM001", "error", "the model's size is not known", fix=Fix("name a folder with a `config.json`"))
    raise UserError(errors or (plan.findings if plan is not None else ()) or [unknown], ExitCode.FINDINGS)


def _only_rises(costs: Sequence[MachineCost], gpus: int, deadline: float | None) -> bool:
    """Did the last two doublings cost more than before, with the deadline met?"""
    best = {cost.machine.gpus: cost for cost in _best_by_count(costs)}
    now, half, quarter = (best.get(gpus // share) for share in (1, 2, 4))
    if now is None or half is None or quarter is None or gpus < usual_gpus_per_host(costs[0].machine.device.name):
        return False
    is_met = deadline is None or any(check_deadline(each.cost.hours_range, deadline) == "met" for each in costs)
    return is_met and now.money > half.money > quarter.money


def _best_by_count(costs: Iterable[MachineCost]) -> tuple[MachineCost, ...]:
    best: dict[int, MachineCost] = {}
    for cost in costs:
        gpus = cost.machine.gpus
        if gpus not in best or cost.money < best[gpus].money:
            best[gpus] = cost
    return tuple(best[gpus] for gpus in sorted(best))


def _order(cost: CostRange, deadline: float | None) -> tuple[int, float, float]:
    """Those that meet the deadline first, then by money; of those that miss it the faster ones first."""
    if deadline is None:
        return 0, cost.money or 0.0, cost.hours
    answer = ("met", "at risk", "missed").index(check_deadline(cost.hours_range, deadline))
    return (answer, cost.hours, 0.0) if answer == _MISSED else (answer, cost.money or 0.0, cost.hours)


def _in_order(costs: Sequence[MachineCost], deadline: float | None) -> list[Machine]:
    """The machines of one kind, best first: those that meet the deadline, then by money. Of those that cost as much as
    the best but for a hundredth the fewest hosts come first, then the fastest.
    """
    ordered = sorted(costs, key=lambda each: _order(each.cost, deadline))
    answer = _order(ordered[0].cost, deadline)[0] if ordered else 0
    limit = ordered[0].money * (1 + _SAME_MONEY) if ordered and answer < _MISSED else 0.0
    same = [each for each in ordered if each.money <= limit and _order(each.cost, deadline)[0] == answer]
    same.sort(key=lambda each: (-(-each.machine.gpus // each.machine.gpus_per_host), each.cost.hours))
    return list(dict.fromkeys(each.machine for each in [*same, *ordered]))


def _first_that_passes(
    placed: RunToPlace,
    model: ModelFacts,
    ranked: Iterable[Alternative],
    machine: Machine,
    tokens: float,
    deadline: float | None,
) -> MachineRow | None:
    """The first in the order of the search that passes: a gate refuses places and degrees, seldom batches."""
    best: dict[tuple[object, ...], Alternative] = {}
    for choice in ranked:
        best.setdefault(place_of(choice.settings), choice)
    for choice in list(best.values())[:_MAX_CHECKED]:
        row = _row_of(placed, model, choice, machine, tokens, deadline)
        if row is not None:
            return row
    return None


def _row_of(
    placed: RunToPlace, model: ModelFacts, choice: Alternative, machine: Machine, tokens: float, deadline: float | None
) -> MachineRow | None:
    """The plan of a choice; None where a gate refuses it or its plan does not fit with certainty."""
    base = placed.spec_on(machine.device.name, machine.gpus, machine.host_memory)
    changed = merge_changes(base, spec_changes_for(choice.settings, model, base))
    checked = check_file(
        placed.name, text=spec_as_yaml(changed), world_size=machine.gpus, launching=True, allow_code=True
    )
    if checked.run is None or not checked.report.ok:
        return None
    counted = CountedPlan.of(make_plan(checked.run, Path.cwd(), with_alternatives=False, by_name=True))
    if counted is None or counted.time is None or counted.plan.fit.verdict is not True:
        return None
    lost = counted.plan.lost_share(counted.time)
    cost = cost_range(tokens, counted.time, counted.settings, lost, machine.price.dollars)
    answer = None if deadline is None else check_deadline(cost.hours_range, deadline)
    return MachineRow(machine, counted, counted.time, cost, answer, changed)
