# SPDX-License-Identifier: Apache-2.0
"""Adds models to `harness/facts/model_catalogue.json`: `python benchmarks/model_catalogue.py OWNER/NAME`.

It fetches `config.json` alone from the Hub, and keeps the fields that decide about sizes.
"""

from __future__ import annotations

import datetime
import json
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.hostinfo.hub_config import fetch_config

FILE = Path(__file__).resolve().parents[1] / "harness" / "facts" / "model_catalogue.json"
_DROPPED = re.compile(r"^_|token_id|dtype|version|^architectures$|^auto_map$|dropout|use_cache|initializer|rope|_act")


def keep_sizes(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration without the fields that change no size."""
    kept = {key: value for key, value in config.items() if not _DROPPED.search(key) and not key.startswith("vision")}
    return {key: keep_sizes(value) if isinstance(value, dict) else value for key, value in kept.items()}


def main(names: list[str]) -> None:
    """Write the file with these models. Raises FetchError."""
    data = json.loads(FILE.read_text(encoding="utf-8"))
    for name in names:
        row = keep_sizes(json.loads(fetch_config(name).read_text(encoding="utf-8")))
        known = data["models"].get(name, {})
        data["models"][name] = row | {key: known[key] for key in ("same", "short") if key in known}
    data["date"] = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    text = "".join(f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in data.items() if key != "models")
    rows = ",\n".join(f"    {json.dumps(name)}: {json.dumps(row)}" for name, row in data["models"].items())
    FILE.write_text(f'{{\n{text}  "models": {{\n{rows}\n  }}\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
