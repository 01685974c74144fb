# SPDX-License-Identifier: Apache-2.0
"""The archives of a package's releases, by pip from its index, and the text of their files.

    python -m tests.releases.archives deepspeed 0.17.6 0.18.0     # download into the cache folder, count files
    python -m tests.releases.archives accelerate 1.10.0

DeepSpeed is published as a source distribution alone; the other packages are read from their wheels, which hold the
same Python files and need nothing to be unpacked (the messages of safetensors' and tokenizers' Rust code are not in
them). An archive is downloaded once, without what it depends on. Nothing of it is imported; pip runs DeepSpeed's
`setup.py` for its metadata, with DS_BUILD_OPS=0.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
ARCHIVES = CACHE / "deepspeed-archives"
"""The cache folder, of all packages."""
_LAST_PATCH = {"0.14": 5, "0.15": 4, "0.16": 9, "0.17": 6, "0.18": 9, "0.19": 8}
DEEPSPEED_RELEASES = tuple(f"{minor}.{patch}" for minor, last in _LAST_PATCH.items() for patch in range(last + 1))
SUPPORTED_RELEASES = DEEPSPEED_RELEASES[DEEPSPEED_RELEASES.index("0.14.5") :]
"""The releases whose messages the diagnosis knows."""
_SOURCE_ONLY = ("deepspeed",)
_INSTALLED_PATHS = re.compile(r"^(op_builder/)")
"""Folders beside the package that are below `ops/` when DeepSpeed is installed."""


def get_archive(package: str, release: str, folder: Path = ARCHIVES) -> Path:
    """The archive of a release, downloaded where it is not there. Raises CalledProcessError where pip cannot."""
    pattern = re.compile(rf"{re.escape(package)}-{re.escape(release)}(?:\.tar\.gz|-.*\.whl)")
    kept = sorted(path for path in folder.glob(f"{package}-*") if pattern.fullmatch(path.name))
    if kept:
        return kept[0]
    kind = ["--no-binary", ":all:", "--no-build-isolation"] if package in _SOURCE_ONLY else ["--only-binary", ":all:"]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *kind, "--dest", str(folder)]
    subprocess.run([*pip, f"{package}=={release}"], check=True, env={**os.environ, "DS_BUILD_OPS": "0"})
    return next(path for path in folder.glob(f"{package}-*") if pattern.fullmatch(path.name))


def read_python_files(package: str, release: str, folder: Path = ARCHIVES) -> dict[str, str]:
    """The Python files of a release's package, by their path below it: `runtime/engine.py`."""
    files, prefix = {}, f"{package}/"
    for path, read in iterate_files(get_archive(package, release, folder)):
        inner = path.removeprefix(prefix) if path.startswith(prefix) else _INSTALLED_PATHS.sub(r"ops/\1", path)
        if path.endswith(".py") and inner != path:
            files[inner] = read().decode("utf-8", "replace")
    return files


def iterate_files(archive: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """(path, a function that reads it now) of each file; a source distribution's without the folder that holds all."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in wheel.namelist():
                yield name, partial(wheel.read, name)
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            stream = tar.extractfile(member) if member.isfile() else None
            if stream is not None:
                path = member.name.partition("/")[2]
                yield path.removeprefix("src/"), stream.read


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", help="such as deepspeed, accelerate, transformers")
    parser.add_argument("releases", nargs="+", help="such as 0.18.2")
    parser.add_argument("--archives", type=Path, default=ARCHIVES)
    arguments = parser.parse_args()
    for release in arguments.releases:
        files = read_python_files(arguments.package, release, arguments.archives)
        print(f"{arguments.package} {release}: {len(files)} Python files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
