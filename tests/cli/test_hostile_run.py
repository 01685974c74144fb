# SPDX-License-Identifier: Apache-2.0
"""Commands that read a run directory which somebody else made: each file of it as a pipe, a device, a link, and with
values that nobody would write. Never a hang, never a crash, and the other files are read. Needs nothing; seconds.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.checkpoints.evaluations import Evaluations
from harness.checkpoints.manifest import checksum
from harness.cli.app import build_app
from harness.errors import UserError
from tests.support.sample_checkpoints import make
from tests.support.sample_run import evaluation, head, ranks, save, step, tiny, write_run

PRIVATE = "what only the reader may know"
DEEP = "[" * 100_000 + "]" * 100_000
LOG = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB\n"
)
Mutation = Callable[[Path], None]


@pytest.fixture(autouse=True)
def bounds() -> Iterator[None]:
    """An alarm for a pipe that nobody writes to, and an end of memory for a device that has none."""

    def rang(*_: Any) -> None:
        raise AssertionError("it hangs")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**31, hard))
    before = signal.signal(signal.SIGALRM, rang)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with everything that commands read, nothing wrong with it."""
    folder = tmp_path_factory.mktemp("hostile")
    lines = [head(tiny()), step(1), step(2), ranks(2, 2), save(2), evaluation(2), {"type": "restart", "step": 1}]
    lines += [{"type": kind, "step": 2, "error": "e", "slower": 0.3, "ranks": [1], "state": "named"} for kind in _SAID]
    gpu = {"type": "gpu", "step": 2, "rank": 1, "host": "h", "state": "problem", "problems": ["thermal"]}
    lines.append(gpu | {"evidence": "is hot", "sm_clock": 750, "sm_clock_max": 1980})
    claim = {"id": "AT001", "question": "is it so?", "state": "differs", "text": "no"}
    attempt = {"number": 1, "began": 1.0, "ended": 2.0, "state": "failed", "cause": "c", "step": 2, "start_step": 0}
    finding = {"gate": "MM001", "severity": "warning", "message": "m", "fix": {"title": "t"}}
    files = {
        "sample.txt": "a sample",
        "findings.json": json.dumps({"findings": [finding], "ignored": [finding], "left_out": [finding]}),
        "engine_checks.json": json.dumps({"claims": [claim]}),
        "launch.json": json.dumps({"name": "tiny", "folder": str(folder), "port": 29500}),
    }
    run_dir = write_run(
        folder / "run", tiny(), lines, ("failed", "completed"), attempts=[attempt, attempt], files=files
    )
    (run_dir / "logs").mkdir()
    (run_dir / "logs" / "launcher.log").write_text(LOG)
    (run_dir / "lock").touch()
    for number in (2, 4):
        make(run_dir / "checkpoints", number)
    Evaluations({2: {"loss": 3.0}, 4: {"loss": 2.0}}).write(run_dir / "checkpoints")
    return run_dir


_SAID = ("straggler", "save_failed", "stop", "skip", "tracker_failed", "end")
OF_RUNS = ("metrics.jsonl", "plan.json", "findings.json", "restarts.json", "engine_checks.json", "launch.json",
           "spec.resolved.json", "status/rank-00000.json", "ds_config.json", "sample.txt", "lock",
           "logs/launcher.log")  # fmt: skip
"""Without `spec.yaml`, which then is all that still says that the folder is a run directory."""
OF_CHECKPOINTS = ("checkpoints/step-00000004/manifest.json", "checkpoints/evaluations.json", "checkpoints/latest")


def _pipe(file: Path) -> None:
    os.mkfifo(file)


def _device(file: Path) -> None:
    file.symlink_to("/dev/zero")


def _link(file: Path) -> None:
    secret = file.with_name(".secret")
    secret.write_text(json.dumps({"state": PRIVATE, "error": PRIVATE, "name": PRIVATE}))
    file.symlink_to(secret)


def _text(text: str) -> Mutation:
    def write(file: Path) -> None:
        file.write_text(text)

    return write


KINDS: dict[str, Mutation] = {
    "pipe": _pipe,
    "device": _device,
    "link": _link,
    "folder": Path.mkdir,
    "empty": _text(""),
    "a list": _text("[]"),
    "deep": _text(DEEP),
    "deep below a key": _text('{"type": "step", "findings": ' + DEEP + "}"),
    "deep enough to be read": _text('{"type": "step", "a": ' + "[" * 400 + "]" * 400 + "}"),
}


def call(*words: object) -> str:
    """What a command prints; a refusal is one of the ways in which it may end, an exception is not."""
    arguments = [str(word) for word in words]
    result = CliRunner().invoke(build_app(arguments), arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit | UserError):
        raise result.exception
    return result.output + (str(result.exception) if isinstance(result.exception, UserError) else "")


def call_all(run_dir: Path, of: str) -> str:
    """Everything that reads such a file. Gives all that was printed, and the report."""
    if of == "runs":
        said = [call("runs", run_dir.parent), call("runs", run_dir.parent, "--format", "json")]
        said += [call("explain", "--log", run_dir), call("report", run_dir)]
        assert "run " in said[0], said[0]
        return "\n".join([*said, (run_dir / "report.html").read_text()])
    first = run_dir / "checkpoints" / "step-00000002"
    said = [call("checkpoint", action, run_dir, *more) for action in ("ls", "verify", "show") for more in _FORMATS]
    said += [call("checkpoint", "diff", first, run_dir / "checkpoints" / "step-00000004", *more) for more in _FORMATS]
    assert all("step-00000002" in text for text in said[:4]), said
    return "\n".join(said)


_FORMATS: tuple[tuple[str, ...], ...] = ((), ("--format", "json"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("of", ["runs", "checkpoints"])
def test_a_file_that_is_none(sound: Path, tmp_path: Path, kind: str, of: str) -> None:
    """Each of them so, and then all but one, since one that stops a reader would hide the next."""
    run_dir = Path(shutil.copytree(sound, tmp_path / "runs" / "run"))
    first, *others = OF_RUNS if of == "runs" else OF_CHECKPOINTS
    _replace(run_dir / first, kind)
    said = call_all(run_dir, of)
    assert PRIVATE not in said
    if of == "runs" and kind in ("pipe", "device", "link", "folder"):
        assert f"`{first}` was left out: " in said
    for name in others:
        _replace(run_dir / name, kind)
    assert PRIVATE not in call_all(run_dir, of)


def _replace(file: Path, kind: str) -> None:
    file.unlink()
    KINDS[kind](file)


VALUES = [
    "words",
    "\x1b[2J",
    -1,
    0,
    10**400,
    2**70,
    1e308,
    float("inf"),
    float("nan"),
    True,
    None,
    [],
    {},
    [{}],
    {"a": 1},
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_that_nobody_writes(sound: Path, tmp_path: Path, value: object) -> None:
    """In the place of every number, then of every text, of all files."""
    for kind in (int | float, str):
        run_dir = Path(shutil.copytree(sound, tmp_path / kind.__class__.__name__ / "run"))
        for name in (*OF_RUNS, *OF_CHECKPOINTS):
            file = run_dir / name
            if file.suffix == ".json":
                file.write_text(_signed(_put(json.loads(file.read_text()), kind, value)))
            elif file.suffix == ".jsonl":
                lines = [json.loads(line) for line in file.read_text().splitlines()]
                file.write_text("".join(json.dumps(_put(line, kind, value)) + "\n" for line in lines))
        for of in ("runs", "checkpoints"):
            assert "\x1b" not in call_all(run_dir, of)


def _put(body: Any, kind: Any, value: object) -> Any:
    if isinstance(body, dict):
        return {k: v if k in ("type", "format_version") else _put(v, kind, value) for k, v in body.items()}
    if isinstance(body, list):
        return [_put(v, kind, value) for v in body]
    return value if isinstance(body, kind) and not isinstance(body, bool) else body


def _signed(body: Any) -> str:
    """A manifest's checksum has no key: whoever writes one can make it right."""
    return json.dumps(body | {"checksum": checksum(body)} if "checksum" in body else body)
