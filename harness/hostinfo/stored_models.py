# SPDX-License-Identifier: Apache-2.0
"""Models on this machine: configuration and code in a folder or in the local Hugging Face cache. Asks no network."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from harness import input_limits
from harness.file_io import read_regular
from harness.hostinfo.hub_access import hub_cache
from harness.hostinfo.path_probe import answer_in_time

_MAX_REF_BYTES = 4096
"""Of a file that names a commit."""
_CODE_CONFIGS = ("config.json", "tokenizer_config.json")
"""Files whose `auto_map` names classes that `transformers` imports."""


def find_model_folder(name: str, revision: str | None = None) -> Path | None:
    """The folder of a model or a tokenizer: the one of this name, else that in the local Hugging Face cache."""
    stored = find_stored_config(name, None, revision)
    return None if stored is None else stored.file.parent


def find_own_code(name: str, base_dir: Path | None = None) -> tuple[str, ...] | None:
    """The Python files of a model's folder, and the classes of other repositories that its `auto_map` names; None where
    the name is no folder here, or does not answer.
    """

    def read() -> tuple[str, ...] | None:
        folder = _find_folder(name, base_dir)
        if folder is None:
            return None
        files = [path.name for path in sorted(folder.glob("*.py"))]
        return (*files, *(each for file in _CODE_CONFIGS for each in _foreign_classes(folder / file)))

    try:
        return answer_in_time((base_dir or Path()) / name, read)
    except (OSError, ValueError):
        return None


def _foreign_classes(file: Path) -> list[str]:
    """The classes of an `auto_map` that are in another repository: `owner/name--module.Class`."""
    config = _read_config(file) if file.is_file() else {}
    classes = config.get("auto_map") if isinstance(config, dict) else None
    names = [*classes.values()] if isinstance(classes, dict) else []
    flat = [each for name in names for each in (name if isinstance(name, list) else [name])]
    return [each for each in flat if isinstance(each, str) and "--" in each]


class StoredConfig(NamedTuple):
    """A `config.json` of this machine and its content, or the reason why it cannot be read."""

    file: Path
    config: dict[str, Any] | str


def find_stored_config(name: str, base_dir: Path | None, revision: str | None) -> StoredConfig | None:
    """The configuration of a folder or of the local Hugging Face cache; None where there is neither."""

    def read() -> StoredConfig | None:
        folder = _find_folder(name, base_dir)
        file = folder / "config.json" if folder is not None else _cached_config(name, revision or "main")
        return None if file is None else StoredConfig(file, _read_config(file))

    path = (base_dir or Path()) / name
    try:
        return answer_in_time(path, read)
    except TimeoutError as error:
        return StoredConfig(path, f"`{name}` {error}")


def _find_folder(name: str, base_dir: Path | None) -> Path | None:
    try:
        folder = (base_dir or Path()) / Path(name).expanduser()
        return folder if folder.is_dir() else None
    except (OSError, ValueError, RuntimeError):  # a name that no file system takes, or `~nobody`
        return None


def _read_config(path: Path) -> dict[str, Any] | str:
    """The object in a `config.json`, which may be a link into the cache's blobs; or why it cannot be used."""
    try:
        config = json.loads(read_regular(path, input_limits.MODEL_CONFIG).decode())
    except OSError as error:
        return f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}"
    except RecursionError:
        return f"`{path}` is nested too deeply"
    except ValueError:
        return f"`{path}` is not JSON"
    return config if isinstance(config, dict) else f"`{path}` is not a JSON object"


def is_repository_cached(name: str, revision: str | None) -> bool:
    """Is a snapshot of this Hub repository with more than its configuration in the local cache? A plan fetches that
    file alone.
    """
    config = _cached_config(name, revision or "main")
    return config is not None and any(path.name != config.name for path in config.parent.iterdir())


def _cached_config(name: str, revision: str) -> Path | None:
    """`config.json` of a Hub repository in the local cache, laid out as by `huggingface_hub`: refs name snapshots."""
    repository = hub_cache(os.environ) / ("models--" + name.replace("/", "--"))
    try:
        commit = read_regular(repository / "refs" / revision, _MAX_REF_BYTES).decode("ascii").strip()
    except (OSError, ValueError):
        commit = revision
    path = repository / "snapshots" / commit / "config.json"
    try:
        return path if path.is_file() else None
    except (OSError, ValueError):  # a name that no file system takes
        return None
