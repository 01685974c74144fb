# SPDX-License-Identifier: Apache-2.0
"""Asks a model of the installed `transformers` what it does, in a process of its own, and keeps the answer.

`harness/workers/model_behavior_worker.py` builds a tiny copy of the configuration and looks at its logits. It loads no
weights, runs no code of a repository and connects to nothing. An answer holds for the configuration, the installed
packages (kernels among them) and the sources that were read for it: those of the model's class, and all of ours that
the child imported. It is kept below XDG_CACHE_HOME, else `~/.cache`; an accident of this machine is not.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from harness.file_io import read_regular, write_atomically
from harness.hostinfo.machine import package_version
from harness.hostinfo.model_probe import is_endless, without_choices
from harness.interpreter import python_command
from harness.planted_files import find_foreign_owner

_PACKAGE = Path(__file__).resolve().parents[1]
_TIMEOUT_SECONDS = 120
_MAX_BYTES = 1 << 20
_PACKAGES = ("torch", "transformers", "deepspeed")
_NO_CHILD = "no child process could be started"
QUESTIONS = tuple(
    """causal apart borders kernels sequence tensor pipeline checkpointing loss lora qlora export zero3 size""".split()
)
"""In the order in which they are put; `harness.runtime.model_questions.question_list` has a function for each."""
_NO_MATTER = ("_name_or_path", "transformers_version", "torch_dtype", "dtype", "architectures")
"""Fields of a configuration that change nothing of what a model does."""


class Answer(NamedTuple):
    """`holds`: None where it is not known. `reason`: a sentence without its full stop. `names`: of what it is about."""

    holds: bool | None
    reason: str
    names: tuple[str, ...] = ()


class ModelAnswers(NamedTuple):
    """`causal`: does no logit of a position depend on a later token? `apart`: do the documents of a packed row have the
    logits that each has alone? None: not known. Each has its reason, a sentence without its full stop. `others`: by
    question.
    """

    causal: bool | None
    why_causal: str
    apart: bool | None
    why_apart: str
    others: Mapping[str, Answer] = {}

    def answer_to(self, question: str) -> Answer:
        """Of any question; not known where it was not asked."""
        own = {"causal": Answer(self.causal, self.why_causal), "apart": Answer(self.apart, self.why_apart)}
        return own.get(question) or self.others.get(question) or Answer(None, self.why_causal or "it was not asked")

    @staticmethod
    def from_fields(fields: Mapping[str, Any]) -> ModelAnswers:
        """From [holds, reason, names] by question."""
        answers = {name: Answer(value[0], str(value[1]), tuple(value[2])) for name, value in fields.items()}
        causal, apart = (answers.pop(name, Answer(None, "it was not asked")) for name in ("causal", "apart"))
        return ModelAnswers(causal.holds, causal.reason, apart.holds, apart.reason, answers)


def unknown_answers(reason: str) -> ModelAnswers:
    """Nothing is known, for this reason."""
    return ModelAnswers(None, reason, None, reason)


def ask_installed_model(config: Mapping[str, Any]) -> ModelAnswers:
    """The answers of the model that the installed `transformers` makes of a configuration (seconds, or at once where
    they were asked before).
    """
    missing = [name for name in _PACKAGES if package_version(name) is None]
    if missing:
        return unknown_answers(f"it can be asked only with {', '.join(missing)}, not installed here")
    if is_endless(config):
        return unknown_answers("it has more layers or experts than any model")
    fields = {name: value for name, value in without_choices(config).items() if name not in _NO_MATTER}
    try:
        text = json.dumps(fields, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return unknown_answers("its configuration is not JSON")
    return _ask(text)


@cache
def _ask(text: str) -> ModelAnswers:
    file = cache_dir() / f"{_digest(text)}.json"
    kept = _read_kept(file)
    if kept is not None:
        return kept
    body = _run_worker(text)
    answers = ModelAnswers.from_fields(body["answers"])
    if body["accident"]:  # which says nothing about the model
        return answers
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(body))
    return answers


def cache_dir() -> Path:
    """The folder of kept answers."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))  # noqa: PTH111 - Path.home() raises without a home
    return home / "deepspeed-harness" / "model-answers"


def _read_kept(file: Path) -> ModelAnswers | None:
    """The kept answer, where the source of the model's class is still the one that gave it."""
    if find_foreign_owner(file.parent) is not None or find_foreign_owner(file) is not None:
        return None
    try:
        body = json.loads(read_regular(file, _MAX_BYTES))
        sources = {path: hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in body["sources"]}
        return ModelAnswers.from_fields(body["answers"]) if sources == body["sources"] else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        return None


def _run_worker(text: str) -> dict[str, Any]:
    """`answers` by question, the `sources` that they hold for, and whether some were lost by `accident`: a child that
    was killed or could not start, or ranks that did not reach each other. One that ends early leaves those that it had.
    The end of a child that used up its own processor time is no accident.
    """
    script = _PACKAGE / "workers" / "model_behavior_worker.py"
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "USE_HUB_KERNELS": "0", "CUDA_VISIBLE_DEVICES": ""}
    environ |= {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    body: dict[str, Any] = {"answers": {}, "sources": {}, "accident": {}}
    began = time.monotonic()
    end = ""
    with tempfile.TemporaryDirectory(prefix="harness-model-") as folder:
        output = Path(folder) / "answers"
        try:
            process = subprocess.Popen(  # noqa: S603
                python_command(str(script), folder),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environ,
                text=True,
                start_new_session=True,
            )
            try:
                process.communicate(text, timeout=_TIMEOUT_SECONDS)
            finally:
                with contextlib.suppress(ProcessLookupError):  # its ranks too
                    os.killpg(process.pid, signal.SIGKILL)
            if process.wait():
                is_accident = process.returncode < 0 and process.returncode != -signal.SIGXCPU
                body["accident"] |= {"its child process": True} if is_accident else {}
                end = f"its child process ended with {process.returncode} after {time.monotonic() - began:.0f} s"
        except subprocess.TimeoutExpired:
            body["accident"], end = {"time": True}, f"killed after {_TIMEOUT_SECONDS} s"
        except OSError as error:
            body["accident"], end = {"start": True}, f"{_NO_CHILD}: {error.strerror}"
        with contextlib.suppress(OSError, ValueError):
            for line in read_regular(output, _MAX_BYTES).decode().splitlines():
                for name, value in json.loads(line).items():
                    body[name] |= value
    for name in QUESTIONS:
        body["answers"].setdefault(name, [None, end or "no small copy of it could be built and asked here", []])
    return body


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for part in (*_installed_packages(), _PACKAGE):
        digest.update(f"\0{part}".encode())
    return digest.hexdigest()[:32]


def _installed_packages() -> list[str]:
    """Name and release of every package that can be imported, as the folders of their metadata are called: whichever
    kernels a model finds change what it does.
    """
    found: set[str] = set()
    for folder in sys.path:
        with contextlib.suppress(OSError):
            found |= {name for name in os.listdir(folder or ".") if name.endswith((".dist-info", ".egg-info"))}  # noqa: PTH208 - 300 names, by each command
    return sorted(found)
