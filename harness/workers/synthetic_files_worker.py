# SPDX-License-Identifier: Apache-2.0
"""Makes the files that `harness rehearse` trains on: a model folder of random weights, made-up records. No launcher."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path


def main() -> None:
    """Write the model folder and the records; print the bytes of weights and the number of records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=Path, required=True, metavar="FILE", help="JSON: what to make, and where")
    arguments = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from harness.interpreter import remove_repeated_root

    remove_repeated_root()
    import torch

    from harness.runtime.synthetic_files import write_model, write_records

    config = json.loads(arguments.orders.read_text(encoding="utf-8"))
    size = write_model(Path(config["model"]), config["config"], getattr(torch, config["dtype"]))
    file, kind, columns = Path(config["data"]), config["format"], config["columns"]
    records = write_records(file, kind, config["tokens"], columns, max_length=config["longest"])
    print(json.dumps({"weights_bytes": size, "records": records}))


if __name__ == "__main__":
    main()
