# SPDX-License-Identifier: Apache-2.0
"""Trust in code that a spec chooses: a launch runs it only if the user allows it, and says what it allowed.

Gate SE008 refuses variables of `launch.env`; here are the files of a plug-in and of a model.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from harness import input_limits
from harness.errors import ExitCode, UserError, user_error
from harness.facts.environment_variables import code_loading_reason
from harness.file_io import read_regular
from harness.hostinfo.path_probe import answer_in_time
from harness.spec.run_spec import RunSpec

_MAX_NAMED = 200
"""Python files of a model folder that are named."""


class AllowedCode(NamedTuple):
    """Code that runs because of `--allow-local-code`: a sentence for each, and the sha256 of the file of
    `plugins`."""

    sentences: tuple[str, ...] = ()
    plugin_sha256: str | None = None


def verify_code_allowed(
    spec: RunSpec, folder: Path, *, allow_local_code: bool, allow_script: bool = False
) -> AllowedCode:
    """The code that the spec chooses to run; relative paths start at `folder`. `allow_script`: the command names the
    script.

    Raises UserError (MD157 not allowed, MD158 a plug-in that cannot be read).
    """
    sentences = []
    digest = None
    for key, file in (("plugins.file", spec.plugins.file), ("plugins.script", spec.plugins.script)):
        if file is None:
            continue
        digest = _hash_code(file, folder, key)
        if not (allow_local_code or (allow_script and key == "plugins.script")):
            raise _not_allowed_error(key, f"`{file}` is code, and running it was not allowed")
        sentences.append(f"`{key}`: `{file}`, sha256 {digest}")
    names = [n for n in dict.fromkeys((spec.model.name_or_path, spec.model.tokenizer)) if n not in (None, "bytes")]
    for name in names if spec.model.trust_remote_code else ():
        if not allow_local_code:
            message = f"`model.trust_remote_code` lets Python files of `{name}` run, and running them was not allowed"
            raise _not_allowed_error("model.trust_remote_code", message)
        sentences += _describe_model_code(str(name), spec.model.revision, folder)
    for variable, value in spec.launch.env.items():
        reason = code_loading_reason(variable, value)
        if reason is not None and allow_local_code:
            sentences.append(f"`launch.env.{variable}`: {reason}")
    return AllowedCode(tuple(sentences), digest)


def _hash_code(file: str, folder: Path, key: str) -> str:
    try:
        return _hash_file(folder / file)
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        message = f"`{file}` cannot be read: {reason}"
        raise user_error("MD158", message, key=key, fix="name a Python file") from None


def _describe_model_code(name: str, revision: str | None, folder: Path) -> list[str]:
    """The Python files of a model folder; of a repository on the Hub its revision."""
    place = folder / Path(name).expanduser()
    try:
        files = answer_in_time(place, lambda: sorted(place.glob("*.py")) if place.is_dir() else None)
    except (OSError, ValueError):
        files = None
    if files is None:
        return [f"`model.trust_remote_code`: Python files of `{name}` at {revision or 'its newest revision'}"]
    named = [
        f"`model.trust_remote_code`: `{name}/{file.name}`, {_describe_digest(file)}" for file in files[:_MAX_NAMED]
    ]
    more = len(files) - _MAX_NAMED
    return [*named, *([f"`model.trust_remote_code`: {more} more Python files of `{name}`"] if more > 0 else [])]


def _describe_digest(file: Path) -> str:
    try:
        return f"sha256 {_hash_file(file)}"
    except (OSError, ValueError):
        return "which cannot be read"


def _hash_file(file: Path) -> str:
    return hashlib.sha256(answer_in_time(file, lambda: read_regular(file, input_limits.CONFIGURATION))).hexdigest()


def _not_allowed_error(key: str, message: str) -> UserError:
    return user_error(
        "MD157",
        message,
        key=key,
        notes=("it would run with all your rights, on every host",),
        fix="read the code, then start with `--allow-local-code`",
        code=ExitCode.FINDINGS,
    )
