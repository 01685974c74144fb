# SPDX-License-Identifier: Apache-2.0
"""Every operation of `harness.object_stores` and the checks of a launch, on a store that is there: `gs://`, `az://` or
what else fsspec has. Prints a line each; ends with 1 where an answer is not the expected one. Removes what it wrote.

    STORAGE_EMULATOR_HOST=http://127.0.0.1:9023 python benchmarks/store_operations.py gs://bucket/tried
    AZURE_STORAGE_CONNECTION_STRING=... python benchmarks/store_operations.py az://bucket/tried

The first is a `gcp-storage-emulator start --port=9023 --in-memory --default-bucket=bucket`, the second an `azurite-blob
--skipApiVersionCheck` with a container `bucket`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from harness.checkpoints.stored_run import OWNER, StoredRun  # noqa: E402
from harness.launching.setup.store_checks import check_stores  # noqa: E402
from harness.object_stores.object_store import ObjectStore  # noqa: E402
from harness.object_stores.store_errors import StoreError  # noqa: E402
from harness.object_stores.store_url import parse_store_url  # noqa: E402

LARGE = 9 * 2**20
"""Bytes of a file that some packages upload in parts."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="an empty prefix of a bucket that exists")
    url = str(parse_store_url(parser.parse_args().url))
    store, wrong = ObjectStore(parse_store_url(url)), 0

    def try_it(name: str, action: Callable[[], object], expected: object) -> None:
        nonlocal wrong
        try:
            answer = action()
        except StoreError as error:
            answer = error.kind
        is_right = answer == expected
        wrong += not is_right
        print(f"{name}: {answer if is_right else f'{answer!r}, expected {expected!r}'}", flush=True)

    def gates(key: str, checked: str) -> list[str]:
        return [str(finding.gate) for finding in check_stores([(key, checked)], {})]

    with tempfile.TemporaryDirectory() as made:
        file, copy = Path(made) / "file", Path(made) / "copy"
        file.write_bytes(b"z" * LARGE)
        try_it("an empty prefix has", store.find_entry, None)
        try_it("write", lambda: store.write("small", b"hello"), None)
        try_it("read", lambda: store.read("small", 100), b"hello")
        try_it("read what is not there", lambda: store.read("nothing", 100), "missing")
        try_it("upload 9 MiB", lambda: store.upload("folder/file", file), None)
        try_it(
            "sizes", lambda: (store.size("folder/file"), store.size("folder"), store.size("none")), (LARGE, None, None)
        )
        try_it("listing", store.list_sizes, {"folder/file": LARGE, "small": 5})
        try_it("glob", lambda: store.match("folder/*"), {"folder/file": LARGE})
        try_it("download", lambda: store.download("folder/file", copy), None)
        try_it("the same bytes", lambda: copy.read_bytes() == file.read_bytes(), expected=True)
        try_it("remove", lambda: store.remove(["small", "folder/file", "nothing"]), None)
        try_it("listing after it", store.list_sizes, {})
        try_it("a run takes the prefix", lambda: StoredRun(store).claim("one-1", "one", ()), None)
        try_it("another run there", lambda: gates("checkpoint.upload_to", url), ["ST106"])
        store.remove([OWNER])
        try_it("an empty prefix again", lambda: gates("checkpoint.upload_to", url), [])
        bucket = url.split("/")[2]
        absent = url.replace(f"//{bucket}/", f"//{bucket}-that-is-not-there/")
        try_it("a bucket that is not there", lambda: gates("checkpoint.upload_to", absent), ["ST101"])
        try_it("data that is not there", lambda: gates("data.train", f"{url}/*.jsonl"), ["ST109"])
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
