# SPDX-License-Identifier: Apache-2.0
"""The one function that takes passwords out of a text before it is written: into a log, a file of a run, a checkpoint,
or to a terminal. Standard library only: `workers/output_tee.py` imports it, too.

It knows addresses: `scheme://user:password@host`, `https://token@host`, and signatures and keys in a query. The text of
an exception of any package may have one.
"""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "(withheld)"
"""Written in place of a secret."""
_USER_INFO = re.compile(r"://([^\s/?#'\"<>`\\:@]{0,256}:(?!\d+[/?#])[^\s/]{1,512}|[^\s/?#'\"<>`\\]{1,512})@")
"""A password may have any character but a blank and `/`; the name alone has none that ends an address."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,31}\Z")
_NAMES = ("abfs", "abfss", "git", "git+ssh", "hf", "sftp", "ssh", "wasb", "wasbs")
"""Schemes whose part before `@` is a container or the name of a user, unless it has a password after a colon."""
_QUERY = re.compile(
    r"([?&;](?:[\w-]{0,40}(?:signature|credential|token|api_?key|secret|password|passwd)|awsaccesskeyid|sig|key|pwd)=)"
    r"[^&;\s'\"<>`\\]+",
    re.IGNORECASE,
)


def hide_passwords(text: str) -> str:
    """The text with the passwords of its addresses withheld; the rest of each address stays."""
    if "://" not in text:
        return text
    if "@" in text:
        text = _USER_INFO.sub(_hide_user_info, text)
    return _QUERY.sub(rf"\1{HIDDEN}", text) if "=" in text else text


def remove_passwords(text: str) -> str:
    """The text with addresses that name no user; what it has in a query is withheld."""
    return hide_passwords(text).replace(f"://{HIDDEN}@", "://")


def has_password(text: str) -> bool:
    """Is there a password in an address of the text?"""
    return hide_passwords(text) != text


def hide_passwords_in(value: Any) -> Any:
    """The same for every text in dicts, lists and tuples; other values are returned as they are."""
    if isinstance(value, str):
        return hide_passwords(value)
    if isinstance(value, dict):
        return {key: hide_passwords_in(item) for key, item in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(map(hide_passwords_in, value))
    return value


def hide_passwords_in_bytes(text: bytes) -> bytes:
    """The same for the output of a program, in whole lines. Bytes that are no UTF-8 stay."""
    if b"://" not in text:
        return text
    return hide_passwords(text.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _hide_user_info(match: re.Match[str]) -> str:
    start = match.start()
    scheme = _SCHEME.search(match.string[max(0, start - 32) : start])
    if ":" not in match[1] and scheme is not None and scheme[0].lower() in _NAMES:
        return match[0]
    if match[1] == HIDDEN:
        return match[0]
    return f"://{HIDDEN}@"
