# SPDX-License-Identifier: Apache-2.0
"""One rank of a run with a script of the user's own: `run_user_script.py RUN SHA256 [CHECKPOINT | blocked]`. It ends with 0, however
the script ends: its status says how.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from harness.runtime import user_script, worker
from harness.runtime.plugin_loader import ALLOWED_CODE_VARIABLE


def main() -> None:
    def end(_: Any) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    worker.exit_immediately = user_script.exit_immediately = end  # type: ignore[assignment]
    run, allowed, *resume = sys.argv[1:]
    if resume == ["blocked"]:  # as the supervisor starts ranks
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        resume = []
    os.environ[ALLOWED_CODE_VARIABLE] = allowed
    args = worker.WorkerArgs(Path(run), Path(resume[0]) if resume else None)
    user_script.run_script(args, int(os.environ["RANK"]))


if __name__ == "__main__":
    main()
