"""`--select` and `--ignore`: which findings count. Ids, whole families (`ZR`), or names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from harness.errors import Exit, Refused
from harness.findings import Finding, Fix, Report


class Selection(NamedTuple):
    """Ids and families that count (empty: all of them), and those that do not."""

    select: frozenset[str] = frozenset()
    ignore: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.select or self.ignore)

    def has(self, id_: str) -> bool:
        """Does the finding count? The more exact word wins: `--select ZR --ignore ZR001` leaves all of ZR but one."""
        if id_ in self.ignore:
            return False
        if id_ in self.select:
            return True
        return id_[:2] not in self.ignore and (not self.select or id_[:2] in self.select)

    def apply(self, report: Report, *, readable: bool, is_spec: bool) -> Report:
        """The report without what does not count.

        Errors of a file that could not be read as far as the gates are kept: without them it would be called good.
        """
        if not self:
            return report
        kept = tuple(f for f in report.findings if self.has(f.gate) or (f.is_error and not readable))
        left_out = tuple(f for f in report.findings if f not in kept)
        skipped = tuple(s for s in report.skipped if self.has(s.gate))
        checked = self._checked(report, is_spec=is_spec) if report.checked else 0
        return report._replace(findings=kept, left_out=left_out, skipped=skipped, checked=checked)

    def _checked(self, report: Report, *, is_spec: bool) -> int:
        from harness.gates.registry import gates

        skipped = {s.gate for s in report.skipped}
        asked = [g for g in gates() if g.id not in skipped and (is_spec or "a run spec" not in g.needs)]
        return sum(self.has(gate.id) for gate in asked)


def selection(select: Sequence[str], ignore: Sequence[str]) -> Selection:
    """From the words of the command line, separated by commas or given again. Raises Refused for unknown ones."""
    if not select and not ignore:
        return Selection()
    return Selection(frozenset(_known("--select", select)), frozenset(_known("--ignore", ignore)))


def _known(option: str, words: Sequence[str]) -> list[str]:
    from harness.views.gate_pages import nearest_id, rows

    names = {row.name.upper(): row.id for row in rows()}
    ids = set(names.values())
    families = {id_[:2] for id_ in ids}
    found, wrong = [], []
    for word in [part.strip() for text in words for part in text.split(",")]:
        plain = word.upper()
        if plain in ids or plain in families or plain in names:
            found.append(names.get(plain, plain))
        else:
            better = nearest_id(word) if word else None
            fix = (
                f"did you mean `{better}`?"
                if better
                else "`harness explain` lists ids; a family is their first two letters"
            )
            message = f"`{option} {word}` names no finding and no family of findings"
            wrong.append(Finding("SP011", "error", message, fix=Fix(fix)))
    if wrong:
        raise Refused(wrong, Exit.USAGE)
    return found
