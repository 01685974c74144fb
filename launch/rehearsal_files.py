"""Makes the files that `harness rehearse` trains on: a model folder of random weights, made-up records. No launcher."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=Path, required=True, metavar="FILE", help="JSON: what to make, and where")
    arguments = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import torch

    from harness.runtime.synthetic_files import write_model, write_records

    orders = json.loads(arguments.orders.read_text(encoding="utf-8"))
    size = write_model(Path(orders["model"]), orders["config"], getattr(torch, orders["dtype"]))
    file, kind, columns = Path(orders["data"]), orders["format"], orders["columns"]
    records = write_records(file, kind, orders["tokens"], columns, max_length=orders["longest"])
    print(json.dumps({"weights_bytes": size, "records": records}))
