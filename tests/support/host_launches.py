# SPDX-License-Identifier: Apache-2.0
"""Launches on hosts in a box, for the tests of this folder. No tests."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from tests.support.boxes import TheBox

PORT = 29561
STEPS, SAVE, BATCH = 90, 15, 4
ODD = "it's a; touch marker-of-hosts & | > < * ~ # ! [x] {a,b}"
"""A value that a shell would make something of."""
SPEC = """\
name: {name}
model:
  config: {{model_type: llama, vocab_size: 320, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2,
           num_attention_heads: 4, num_key_value_heads: 2, max_position_embeddings: 128}}
  tokenizer: bytes
data: {{train: {text}, max_length: 64, eval_fraction: 0}}
train: {{max_steps: {steps}, global_batch_size: 4, per_device_train_batch_size: 2, seed: 1}}
optimizer: {{type: adamw, learning_rate: 0.001}}
scheduler: {{type: constant}}
precision: {{bf16: false}}
zero: {{stage: {stage}}}
parallel: {{{parallel}}}
checkpoint: {{save_steps: {save}, save_at_end: false}}
launch: {{output_dir: {output}, master_port: {port}, env: {{OMP_NUM_THREADS: "1", ODD: "{odd}"{env}}}{launch}}}
{more}
"""


def write_text(folder: Path) -> Path:
    """The data of all runs; returns the folder."""
    lines = (json.dumps({"text": " ".join(str(i * j % 97) for j in range(20))}) for i in range(400))
    (folder / "text.jsonl").write_text("\n".join(lines) + "\n")
    return folder


class Launch:
    """`harness launch` on host `on` of the box, over `hosts`; `spec` says what differs from the common spec."""

    def __init__(
        self, box: TheBox, folder: Path, name: str, hosts: tuple[int, ...], *options: str, on: int = 1, **spec: object
    ) -> None:
        self.box, self.name, self.output, self.on = box, name, folder / "runs", on
        values = {
            "steps": STEPS,
            "stage": 3,
            "parallel": "",
            "save": "null",
            "launch": "",
            "odd": ODD,
            "env": "",
            "more": "",
        } | spec
        file = folder / f"{name}.yaml"
        file.write_text(SPEC.format(name=name, output=self.output, text=folder / "text.jsonl", port=PORT, **values))
        command = [sys.executable, "-m", "harness", "launch", str(file), *options]
        hostfile = folder / f"{name}.hosts"
        hostfile.write_text("".join(f"{box.address(h)} slots=1\n" for h in hosts))
        command += ["--hostfile", str(hostfile)]
        self.seconds: list[float] = []
        self.environ: list[str] = []
        self.text = folder / f"{name}-{on}.txt"
        with self.text.open("w") as screen:
            self.process = box.start_on(on, *command, env=box.environ(), stdout=screen, stderr=subprocess.STDOUT)

    def end(self, seconds: float = 400) -> int:
        try:
            return self.process.wait(seconds)
        finally:
            self.process.kill()

    @property
    def run_dir(self) -> Path:
        return max(self.output.glob(f"{self.name}-*"), default=self.output)

    def rows(self, kind: str = "") -> list[dict[str, object]]:
        try:
            found = [json.loads(x) for x in (self.run_dir / "metrics.jsonl").read_text().splitlines()]
        except (OSError, ValueError):
            return []
        return [row for row in found if kind in ("", row["type"])]

    def losses(self) -> list[float]:
        """Of all its steps, once it has ended well."""
        assert self.end() == 0, self.text.read_text()[-3000:]
        return [row["loss"] for row in self.rows("step")]

    def until_restart(self, number: int, seconds: float) -> float:
        """Wait until the run is being started again for the `number`-th time; returns the seconds that it took."""
        began = time.monotonic()
        while len(self.rows("restart")) < number and time.monotonic() - began < seconds:
            assert self.process.poll() is None, self.text.read_text()[-3000:]
            time.sleep(0.1)
        return time.monotonic() - began

    def last_step(self) -> int:
        """Of those taken since the last restart; 0 while there is none."""
        rows = self.rows()
        since = max((i for i, row in enumerate(rows) if row["type"] == "restart"), default=-1)
        return max((row["step"] for row in rows[since + 1 :] if row["type"] == "step"), default=0)

    def until_step(self, step: int, seconds: float = 300) -> None:
        end = time.monotonic() + seconds
        while self.last_step() < step and time.monotonic() < end:
            assert self.process.poll() is None, self.text.read_text()[-3000:]
            time.sleep(0.05)

    def hold_between_saves(self, host: int, step: int, every: int) -> None:
        """Stop the ranks of `host` at a step from `step` on that is not saved, however quick steps are: what was trained
        since the last save is then lost with them. Lines are written in full before a save, so the last one tells.
        """
        while True:
            self.until_step(step)
            self.box.on(host, "pkill", "-STOP", "-f", "[t]rain_worker.py --local_rank")
            last, end = self.last_step(), time.monotonic() + 1.0
            while time.monotonic() < end:
                time.sleep(0.1)
                if self.last_step() != last:
                    last, end = self.last_step(), time.monotonic() + 1.0
            if last % every:
                return
            self.box.on(host, "pkill", "-CONT", "-f", "[t]rain_worker.py --local_rank")
            step = last + 1

    def left(self, host: int) -> str:
        """Processes of the run on a host, and its buffers in shared memory."""
        script = "pgrep -af '[t]rain_worker.py --local_rank'; ls /dev/shm | grep deepspeed"
        return self.box.on(host, "sh", "-c", script, check=False).stdout.strip()
