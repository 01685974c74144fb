# SPDX-License-Identifier: Apache-2.0
"""`--select` and `--ignore`: which findings count. Ids, whole families (`ZR`), or names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from harness.errors import ExitCode, UserError
from harness.findings import Finding, Fix, Report
from harness.gates.registry import all_gates


class RuleSelection(NamedTuple):
    """Ids and families that count (empty: all of them), and those that do not."""

    select: frozenset[str] = frozenset()
    ignore: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.select or self.ignore)

    def includes(self, id_: str) -> bool:
        """Does the finding count? The more exact word wins: `--select ZR --ignore ZR001` leaves all of ZR but one."""
        if id_ in self.ignore:
            return False
        if id_ in self.select:
            return True
        return id_[:2] not in self.ignore and (not self.select or id_[:2] in self.select)

    def filter_report(self, report: Report, *, readable: bool, is_spec: bool) -> Report:
        """The report without what does not count.

        Errors in reading a file are kept where the gates did not see all of it: without them it would be called good.
        """
        if not self:
            return report
        gates = {gate.id for gate in all_gates()} if not readable else set()
        kept = [f for f in report.findings if f.is_error and not readable and f.gate not in gates]
        selected = tuple(f for f in report.findings if self.includes(f.gate) or f in kept)
        left_out = tuple(f for f in report.findings if f not in selected)
        skipped = tuple(s for s in report.skipped if self.includes(s.gate))
        checked = self._count_checked(report, is_spec=is_spec) if report.checked else 0
        return report._replace(findings=selected, left_out=left_out, skipped=skipped, checked=checked)

    def _count_checked(self, report: Report, *, is_spec: bool) -> int:
        skipped = {s.gate for s in report.skipped}
        gates = [g for g in all_gates() if g.id not in skipped and (is_spec or "a run spec" not in g.needs)]
        return sum(self.includes(gate.id) for gate in gates)


def parse_rule_selection(select: Sequence[str], ignore: Sequence[str]) -> RuleSelection:
    """From the words of the command line, separated by commas or given again. Raises UserError for unknown ones."""
    if not select and not ignore:
        return RuleSelection()
    return RuleSelection(frozenset(_resolve_ids("--select", select)), frozenset(_resolve_ids("--ignore", ignore)))


def _resolve_ids(option: str, words: Sequence[str]) -> list[str]:
    from harness.check.finding_index import find_nearest_id, list_rows

    names = {row.name.upper(): row.id for row in list_rows()}
    ids = set(names.values())
    families = {id_[:2] for id_ in ids}
    selected_ids, unknown = [], []
    for word in [part.strip() for text in words for part in text.split(",")]:
        plain = word.upper()
        if plain in ids or plain in families or plain in names:
            selected_ids.append(names.get(plain, plain))
        else:
            nearest = find_nearest_id(word) if word else None
            fix = (
                f"did you mean `{nearest}`?"
                if nearest
                else "`harness explain` lists ids; a family is their first two letters"
            )
            message = f"`{option} {word}` names no finding and no family of findings"
            unknown.append(Finding("SP011", "error", message, fix=Fix(fix)))
    if unknown:
        raise UserError(unknown, ExitCode.USAGE)
    return selected_ids
