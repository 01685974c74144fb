# SPDX-License-Identifier: Apache-2.0
"""Messages whose change names a key of DeepSpeed's JSON that no gate reads: what `validate-config` does not foresee.

python -m tests.support.unforeseen_messages        # the rows of tests/gates/unforeseen_messages.tsv, without reasons
"""

from __future__ import annotations

import re
from pathlib import Path

from harness.diagnosis.catalogue import MESSAGE_FILES, causes_by_id, rows_of
from harness.facts.deepspeed_keys import block_keys, block_paths
from harness.gates.registry import all_gates

ROOT = Path(__file__).parents[2]
LISTED = ROOT / "tests" / "gates" / "unforeseen_messages.tsv"
_CODE, _KEY = re.compile(r"`([^`]+)`"), re.compile(r"[a-z][a-z_0-9]*")


def find_unforeseen() -> dict[str, set[str]]:
    """Key -> the causes of the messages that name it. A message of a gate or of the loader is foreseen."""
    keys = {key for path in ("", *block_paths()) for key in (block_keys(path) or {}) if "_" in key}
    rules = "\n".join(path.read_text("utf-8") for path in (ROOT / "harness" / "gates" / "rules").glob("*.py"))
    read = set(_KEY.findall(rules))
    gates, causes = {gate.id for gate in all_gates()}, causes_by_id()
    unforeseen: dict[str, set[str]] = {}
    for name in MESSAGE_FILES:
        for row in rows_of(name):
            if row.cause in gates or row.cause.startswith("SP"):
                continue
            cause = causes.get(row.cause)
            change = row.signature.change or (cause.change if cause else "")
            named = {word for code in _CODE.findall(change) for word in _KEY.findall(code)}
            for key in named & keys - read:
                unforeseen.setdefault(key, set()).add(row.cause)
    return unforeseen


def read_listed() -> dict[str, tuple[str, str]]:
    """Key -> (its causes, the reason why no gate reads it)."""
    rows = [line.split("\t") for line in LISTED.read_text("utf-8").splitlines() if not line.startswith("#")]
    return {key: (causes, reason) for key, causes, reason in rows}


if __name__ == "__main__":
    for key, ids in sorted(find_unforeseen().items()):
        print(key, ",".join(sorted(ids)), "", sep="\t")
