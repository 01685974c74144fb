# SPDX-License-Identifier: Apache-2.0
"""Questions about paths with a time limit, and the names next to a path that does not exist.

A stat on a network mount whose server is gone waits without a limit. Each question runs in a daemon thread, so that the
process can go on, and end, without the answer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from itertools import count, islice
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from time import monotonic
from typing import Any, Generic, TypeVar

T = TypeVar("T")

ANSWER_SECONDS = 1.0
"""Limit for all questions of one call together."""
_MAX_SIBLINGS = 10_000
_MIN_SIMILARITY = 0.85


class _NoAnswer(Exception):
    """A function did not return in time."""


class _Question(Generic[T]):
    """A function that a worker runs, and its result."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function, self._done = function, Event()
        self._value: T | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._value = self._function()
        except BaseException as error:  # raised again where the answer is read
            self._error = error
        self._done.set()

    def answer(self, deadline: float) -> T:
        if not self._done.wait(max(0.0, deadline - monotonic())):
            raise _NoAnswer
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # set, since there is no error


class _Worker:
    """A daemon thread that runs one question after the other. One that hangs is left alone."""

    def __init__(self) -> None:
        self._questions: SimpleQueue[_Question[Any]] = SimpleQueue()
        Thread(target=self._run, daemon=True).start()
        _WORKERS.append(self)

    def _run(self) -> None:
        while True:
            self._questions.get().run()
            _IDLE_WORKERS.append(self)

    def ask(self, function: Callable[[], T]) -> _Question[T]:
        question = _Question(function)
        self._questions.put(question)
        return question


_MAX_WORKERS = 64
_WORKERS: list[_Worker] = []
_IDLE_WORKERS: list[_Worker] = []
_TURNS = count()
"""Whose turn it is to get one more question, when all are busy."""
for _workers in (_WORKERS, _IDLE_WORKERS):
    os.register_at_fork(after_in_child=_workers.clear)  # threads do not survive a fork


def _ask_worker(function: Callable[[], T]) -> _Question[T]:
    try:
        worker = _IDLE_WORKERS.pop()
    except IndexError:
        worker = _Worker() if len(_WORKERS) < _MAX_WORKERS else _WORKERS[next(_TURNS) % _MAX_WORKERS]
    return worker.ask(function)


_SILENT_PATHS: set[str] = set()
"""Paths that did not answer: this process does not wait for them again."""


def answer_in_time(path: str | Path, function: Callable[[], T]) -> T:
    """The result of a function that looks at `path`. Raises TimeoutError after a second, and what it raises."""
    (answer,) = answer_all_in_time([(path, function)])
    if answer is None:
        raise TimeoutError(f"did not answer within {ANSWER_SECONDS:g} s")
    return answer[0]


def answer_all_in_time(looks: Sequence[tuple[str | Path, Callable[[], T]]]) -> list[tuple[T] | None]:
    """The results of functions that look at one path each, all at the same time, as tuples of one; None for those
    without an answer within a second. Raises what a function raises.
    """
    deadline = monotonic() + ANSWER_SECONDS
    names = [os.path.abspath(path) for path, _ in looks]  # noqa: PTH100
    questions = [
        None if name in _SILENT_PATHS else _ask_worker(function)
        for name, (_, function) in zip(names, looks, strict=True)
    ]
    answers: list[tuple[T] | None] = []
    for name, question in zip(names, questions, strict=True):
        try:
            answers.append(None if question is None else (question.answer(deadline),))
        except _NoAnswer:
            _SILENT_PATHS.add(name)
            answers.append(None)
    return answers


def find_similar_path(folder: str, text: str, is_there: Callable[[str], bool]) -> str | None:
    """The path that was probably meant by `text`, relative to `folder`: one of its names is replaced by a near name
    next to it, so that `is_there`. None where nothing similar is there.
    """
    parts = text.split("/")
    for index, name in enumerate(parts):
        parent = os.path.join(folder, "/".join(parts[:index]) + "/" if index else "")  # noqa: PTH118 - text may be `/...`
        if name in ("", ".", ".."):
            continue
        for sibling in _list_names(parent):
            if is_near_name(name, sibling):
                candidate = "/".join([*parts[:index], sibling, *parts[index + 1 :]])
                if is_there(candidate):
                    return candidate
        if not os.path.isdir(os.path.join(parent, name)):  # noqa: PTH112, PTH118
            return None
    return None


def find_longer_name(folder: str, text: str) -> str | None:
    """The only file next to `text`, relative to `folder`, whose name is the same with a longer stem: `en_demo.json` for
    `en.json`. None if there is none, or more than one.
    """
    head, slash, name = text.rpartition("/")
    stem, suffix = _split_suffix(name)
    if not suffix:
        return None
    siblings = [sibling for sibling in _list_names(os.path.join(folder, head + slash)) if sibling.endswith(suffix)]  # noqa: PTH118
    longer = [sibling for sibling in siblings if re.match(rf"{re.escape(stem)}[_.-]\w", sibling)]
    return f"{head}{slash}{longer[0]}" if len(longer) == 1 else None


def _list_names(folder: str) -> list[str]:
    """Names in a folder, sorted; of a huge folder the first ones that the system lists."""
    try:
        with os.scandir(folder or ".") as entries:
            return sorted(entry.name for entry in islice(entries, _MAX_SIBLINGS))
    except (OSError, ValueError):
        return []


def is_near_name(name: str, other: str) -> bool:
    """Is one a misspelling of the other? Names that differ in their digits alone, such as shards, are not."""
    longest = max(len(name), len(other))
    if abs(len(name) - len(other)) > 0.3 * longest + 1 or name == other:  # most names of a large folder end here
        return False
    if name.lower() == other.lower():
        return True
    (stem, suffix), (other_stem, other_suffix) = _split_suffix(name), _split_suffix(other)
    if suffix == other_suffix:
        is_near = _is_similar(stem, other_stem)
    else:
        is_near = stem == other_stem and _is_similar(suffix, other_suffix)
    return is_near and _without_digits(name) != _without_digits(other)


def _is_similar(text: str, other: str) -> bool:
    from difflib import SequenceMatcher

    if _differ_by_a_swap(text, other):
        return True
    shared = len(set(text) & set(other))
    if shared < 0.6 * max(len(set(text)), len(set(other))):
        return False
    return SequenceMatcher(None, text, other).ratio() >= _MIN_SIMILARITY


def _differ_by_a_swap(text: str, other: str) -> bool:
    """Are two neighbouring letters of a word swapped, as in `trian`? In a short one that is a large part of it."""
    if len(text) != len(other) or len(text) < 4:
        return False
    places = [index for index, (a, b) in enumerate(zip(text, other, strict=True)) if a != b]
    return len(places) == 2 and places[1] - places[0] == 1 and sorted(text) == sorted(other)


def _without_digits(name: str) -> str:
    return re.sub(r"\d+", "", name)


def _split_suffix(name: str) -> tuple[str, str]:
    stem, dot, suffix = name.rpartition(".")
    return (stem, dot + suffix) if stem else (name, "")
