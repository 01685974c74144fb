# SPDX-License-Identifier: Apache-2.0
"""Makes the run directory on a host that has only its own disk, before ranks start there: what they read, on stdin.

`harness launch` starts it over ssh for each attempt. What an earlier attempt said of its ranks here goes.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

FOLDERS = ("logs", "status", "checkpoints")


def main() -> int:
    """Write `files` of the request below its `run_dir`; the exit code is 1 where the disk does not let it."""
    request = json.loads(base64.urlsafe_b64decode(sys.argv[1]))
    sys.path[:0] = request["path"]
    from harness.file_io import replace_file

    run_dir = Path(request["run_dir"])
    try:
        for name in FOLDERS:
            (run_dir / name).mkdir(parents=True, exist_ok=True)
        for old in [*(run_dir / "status").glob("rank-*.json"), run_dir / "stop"]:
            old.unlink(missing_ok=True)
        for name, text in json.load(sys.stdin).items():
            if "/" not in name:
                replace_file(run_dir / name, text)
    except OSError as error:
        print((error.strerror or str(error)).lower(), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
