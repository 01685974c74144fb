# SPDX-License-Identifier: Apache-2.0
"""Errors of object stores, sorted by what a user can do about them.

The message of a store's package is never repeated: it can hold an endpoint with a password, or a signed URL. An error
code such as `AccessDenied` is.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, cast

from harness.entry_file import read_entries

StoreErrorKind = Literal[
    "no package",
    "no bucket",
    "no access",
    "no credentials",
    "expired credentials",
    "wrong region",
    "unreachable",
    "silent",
    "server error",
    "missing",
    "damaged",
    "disk",
    "interrupted",
    "other",
]

_KINDS = read_entries(Path(__file__).with_suffix(".txt"))


def _kinds_by_name(field: str) -> dict[str, StoreErrorKind]:
    pairs = ((name, kind) for kind, fields in _KINDS.items() for name in fields.get(field, "").split())
    return {name: cast("StoreErrorKind", kind) for name, kind in pairs}


_CODES, _CLASSES = _kinds_by_name("codes"), _kinds_by_name("classes")
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
_PLAIN_CODE = re.compile(r"[A-Za-z0-9]{1,60}")


class StoreError(Exception):
    """A request to a store that failed, after its retries. `code` is the store's own, such as `AccessDenied`."""

    def __init__(self, kind: StoreErrorKind, code: str = "", detail: str = "") -> None:
        self.kind: StoreErrorKind = kind
        self.code = code
        reason = detail or _KINDS[kind]["reason"]
        super().__init__(f"{reason} ({code})" if code else reason)

    @property
    def is_transient(self) -> bool:
        """May the same request succeed later?"""
        return "transient" in _KINDS[self.kind]


def to_store_error(error: BaseException) -> StoreError:
    """The error of a store's package, sorted."""
    chain = list(_causes(error))
    code = next(filter(None, map(_code_of, chain)), "")
    by_code = _CODES.get(code, "server error" if re.fullmatch(r"5\d\d", code) else None)
    if code == "400":
        return StoreError("expired credentials", code, "expired credentials, or a bucket in another region")
    if isinstance(error, StoreError) or by_code is not None:
        return error if isinstance(error, StoreError) else StoreError(by_code or "other", code)
    return next(filter(None, (_by_class(cause, code) for cause in chain)), None) or _by_meaning(chain, code)


def _by_class(cause: BaseException, code: str) -> StoreError | None:
    if isinstance(cause, ImportError):
        return StoreError("no package")
    if isinstance(cause, OSError) and cause.errno in _DISK_ERRORS:
        return StoreError("disk", detail=(cause.strerror or "the local disk fails").lower())
    kind = next((_CLASSES[one.__name__] for one in type(cause).__mro__ if one.__name__ in _CLASSES), None)
    return None if kind is None else StoreError(kind, code)


def _by_meaning(chain: list[BaseException], code: str) -> StoreError:
    if any(isinstance(cause, FileNotFoundError) for cause in chain):
        return StoreError("missing", code)
    if any(isinstance(cause, PermissionError) for cause in chain):
        return StoreError("no access", code)
    return StoreError("other", code or type(chain[0]).__name__)


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _code_of(error: BaseException) -> str:
    """The code in a botocore error's response, or the HTTP status of another package's error."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        code = response.get("Error", {}).get("Code")
    else:
        names = ("status", "code", "error_code")  # the last is Azure's
        code = next((value for name in names if (value := getattr(error, name, None))), None)
    text = str(code) if isinstance(code, str | int) else ""
    return text if _PLAIN_CODE.fullmatch(text) else ""
