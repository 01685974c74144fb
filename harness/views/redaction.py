# SPDX-License-Identifier: Apache-2.0
"""A diagnosis without what is private, so that it can be posted: tokens, addresses, hosts, users, folders.

Equal values get equal replacements: `host-1` is the same host everywhere. Ranks, error texts, and the frames of
packages stay as they are.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from typing import Any

from harness.check.log_opinion import LogOpinion
from harness.diagnosis.diagnosis_types import Diagnosis

_TOKEN = re.compile(
    r"\b(?:hf|api_org)_[A-Za-z0-9]{6,}|\bsk-[\w-]{6,}|\b(?:gh[opusr]|github_pat|glpat)[_-][\w-]{10,}|"
    r"\bxox[abeoprs]-[\w-]{6,}|"
    r"\b(?:AKIA|ASIA|AGPA|AIDA|AROA)[A-Z0-9]{8,}|\bAIza[\w-]{20,}|\beyJ[\w-]{8,}(?:\.[\w-]*){0,2}|\bnvapi-[\w-]{8,}|"
    r"\blocal-[0-9a-f]{40}\b|(?<![\w/])[0-9a-f]{40,64}(?!\w)|\bpypi-[\w-]{16,}|\bdop_v1_\w{16,}|\bya29\.[\w-]{10,}|"
    r"\b(?:sk|rk|pk)_(?:live|test)_\w{8,}|\bnpm_\w{16,}|\b(?:SK|AC)[0-9a-f]{32}\b|\bdapi[0-9a-f]{16,}|\br8_\w{16,}|"
    r"\bSG\.[\w-]{8,}\.[\w-]{8,}|\b\d{8,10}:[A-Za-z0-9_-]{32,}|\bAAAA[A-Za-z0-9+/]{12,}={0,2}|"
    r"(?<=PRIVATE KEY----- )[A-Za-z0-9+/=\s]{8,}|"
    r"(?<![\w/+.-])(?=[A-Za-z0-9+/]*[A-Z])(?=[A-Za-z0-9+/]*[a-z])(?=[A-Za-z0-9+/]*\d)[A-Za-z0-9+/]{40}(?![\w/+=.-])"
)
_SECRET_PATH = re.compile(r"(?<=hooks\.slack\.com/services/)\S+|(?<=/api/webhooks/)[\w/-]+")
_PASSWORD_OPTION = re.compile(r"\b(sshpass -p ?|mysql(?:dump)? (?:\S+ )*?-p)([^\s'\"]+)")
_REPOSITORY = re.compile(r"(?<=git@)([\w.-]+:)[\w./-]+|\b((?:s3|gs|az|abfss?|wasbs?|oss)://)[^\s'\",;)]+")
_BEARER = re.compile(r"\b(Bearer|Basic|Digest)\s+[^\s'\",]{4,}", re.IGNORECASE)
_AUTHORIZATION = re.compile(r"\b(Authorization|X-Api-Key|Cookie)(['\"]?\s*[:=]\s*['\"]?)(?!<)[^'\"\n]+", re.IGNORECASE)
_WORDS = (
    r"(?:token|secret|passw(?:or)?d|passphrase|credentials?|api[_-]?key|access[_-]?key(?:[_-]id)?|private[_-]?key|"
    r"account[_-]?key|auth|amz-signature|[?&]sig)"
)
_NAMED_SECRET = re.compile(
    rf"(?<![\w-])((?:--?)?(?!(?:pad|eos|bos|unk|mask|cls|sep|image|special|num|start|end|decoder_start)_token)"
    rf"[\w.-]*{_WORDS})(['\"]?\s*[:=]\s*['\"]?|\s+)(?!<)(?P<value>[^\s'\",;)&]+)",
    re.IGNORECASE,
)
_URL_USER = re.compile(r"(?<=://)[^\s/@'\"]+@")
_EMAIL = re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b")
_USER_AT_HOST = re.compile(r"(?<![\w.-])(?P<user>[a-z_][\w.-]{0,31})@(?P<host>[A-Za-z0-9][\w.-]*)")
_IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w]|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?:%\w+)?(?![\w:])")
_MAC = re.compile(r"(?<![\w:])(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}(?![\w:])")
_UUID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE)
_DOMAIN = re.compile(
    r"\b(?:[A-Za-z0-9][\w-]*\.)+(?:com|net|org|internal|local|cluster|corp|lan|edu|gov|io|ai|cn|de|fr|uk|jp|svc|"
    r"home)\b(?!\()"
)
_PUBLIC = re.compile(
    r"(?:^|\.)(?:github\.com|githubusercontent\.com|pytorch\.org|huggingface\.co|deepspeed\.ai|nvidia\.com|python\.org|"
    r"readthedocs\.io|microsoft\.com|wandb\.ai)$"
)
_HOST_WORD = re.compile(
    r"\b(?:ip|node|gpu|worker|host|compute|dgx|hgx|slurm|srv|server|pod|login|hpc|cluster|"
    r"[ah]\d00)[a-z]*-[\w-]*\d[\w-]*\b|"
    r"\b(?:node|host|compute|dgx|gpunode|worker)\d{1,5}\b"
)
_NAMED_HOST = re.compile(
    r"\b((?:host(?:name)?|node|nodename|master_addr|MASTER_ADDR|addr(?:ess)?)['\"]?\s?[=:]\s?['\"]?|on (?:node|host) |"
    r"host=)(?P<host>[A-Za-z0-9][\w.-]*[A-Za-z0-9])"
)
_HOME = re.compile(r"(?P<root>/(?:home|Users|users)/|[A-Za-z]:\\Users\\)(?P<user>[^/\\\s'\":,;)]+)")
_NAMED_USER = re.compile(r"\b(user(?:name)?|USER|LOGNAME|owner)(['\"]?\s?[=:]\s?['\"]?)(?P<user>[A-Za-z_][\w.-]{1,31})")
_PATH = re.compile(
    r"(?<![\w/.<>:-])~?(?:/[^\s'\"`/:,;()<>|\\]+){2,}/?|(?<![\w])[A-Za-z]:(?:\\[^\s'\"`:,;()<>|\\]+){2,}"
)
_PACKAGES = re.compile(r"^.*?(/(?:site|dist)-packages/.*|/lib/python\d[\d.]*/.*)$")
_SYSTEM = re.compile(r"^/(?:usr|etc|dev|proc|sys|lib|lib64|bin|sbin|run/nvidia|dev/shm)/")
_KNOWN_FILE = re.compile(
    r"\.(?:py|so|pt|bin|safetensors|cu|cpp|h)$|^(?:global_step\d+|checkpoint-\d+|latest|config\.json)$"
)
_NOT_NAMES = frozenset(
    """user users root ubuntu admin test data work runs train model models deepspeed torch python rank host node
    error localhost none null true false name names home shared public scratch job jobs the and for with not was out
    err log logs memory cuda nccl gpu cpu step loss file line code path value key type class self main run world size
    state""".split()
)


def hide_tokens(text: str) -> str:
    """The text without tokens, passwords and keys; hosts, users and paths stay."""
    text = _AUTHORIZATION.sub(r"\1\2<secret>", text)
    text = _BEARER.sub(r"\1 <secret>", text)
    text = _URL_USER.sub("<user>@", text)
    text = _SECRET_PATH.sub("<secret>", text)
    text = _PASSWORD_OPTION.sub(r"\1<secret>", text)
    text = _TOKEN.sub("<token>", text)
    return _NAMED_SECRET.sub(_hide_value, text)


def _hide_value(match: re.Match[str]) -> str:
    is_option = match[1].startswith("-")
    if not match[2].strip() and not is_option:  # `secret sauce` is no assignment
        return match[0]
    return f"{match[1]}{match[2]}<secret>"


class Redactor:
    """Replaces what is private. One for all texts that are printed together."""

    def __init__(self, hosts: Iterable[str] = (), users: Iterable[str] = ()) -> None:
        self._names: dict[str, dict[str, str]] = {}
        self._hosts: list[str] = []
        self._users: list[str] = []
        for host in hosts:
            self._learn_host(host)
        for user in users:
            self._learn_user(user)

    def learn(self, text: str) -> None:
        """Take up the hosts and users that a text names; then they are replaced in all texts, also without a sign."""
        for match in _HOME.finditer(text):
            self._learn_user(match["user"])
        for match in _NAMED_USER.finditer(text):
            self._learn_user(match["user"])
        for match in _USER_AT_HOST.finditer(text):
            self._learn_user(match["user"])
            self._learn_host(match["host"])
        for match in _NAMED_HOST.finditer(text):
            self._learn_host(match["host"])

    def redact(self, text: str, *, has_paths: bool = True) -> str:
        """The text without what is private. A text that was cut loses its last word: it may be half a token. Without
        `has_paths` its paths are ours.
        """
        if text.endswith("..."):
            text = re.sub(r"[^\s'\"]+\.\.\.$", "...", text)
        text = _AUTHORIZATION.sub(r"\1\2<secret>", text)
        text = _BEARER.sub(r"\1 <secret>", text)
        text = _URL_USER.sub("<user>@", text)
        text = _SECRET_PATH.sub("<secret>", text)
        text = _PASSWORD_OPTION.sub(r"\1<secret>", text)
        text = _REPOSITORY.sub(
            lambda m: f"{m[1] or m[2]}<{self._name('bucket' if m[2] else 'repository', m[0])}>", text
        )
        text = _TOKEN.sub("<token>", text)
        text = _NAMED_SECRET.sub(_hide_value, text)
        text = _EMAIL.sub(self._numbered("email"), text)
        text = _MAC.sub(self._numbered("mac"), text)
        text = _UUID.sub(self._numbered("uuid"), text)
        text = _PATH.sub(self._replace_path, text) if has_paths else text
        text = _HOME.sub(lambda m: f"{m['root']}{self._name('user', m['user'])}", text)
        text = _IPV4.sub(self._replace_address, text)
        text = _IPV6.sub(self._replace_address, text)
        text = _DOMAIN.sub(lambda m: m[0] if _PUBLIC.search(m[0].lower()) else self._name("host", m[0]), text)
        for kind, names in (("host", self._hosts), ("user", self._users)):
            for name in sorted(names, key=len, reverse=True):
                text = re.sub(rf"(?<![\w<-]){re.escape(name)}(?![\w>])", self._name(kind, name), text)
        return _HOST_WORD.sub(lambda m: m[0] if m[0] in self._replacements("host") else self._name("host", m[0]), text)

    def _replacements(self, kind: str) -> frozenset[str]:
        return frozenset(self._names.get(kind, {}).values())

    def _learn_host(self, host: str) -> None:
        host = host.strip(".-")
        is_name = len(host) > 1 and host.lower() not in _NOT_NAMES and host not in self._hosts
        if is_name and not re.fullmatch(r"\d+(?:\.\d+)*|<.*", host) and not _PUBLIC.search(host.lower()):
            self._hosts.append(host)

    def _learn_user(self, user: str) -> None:
        user = user.strip(".-")
        if len(user) > 1 and user.lower() not in _NOT_NAMES and not user.isdigit() and user not in self._users:
            self._users.append(user)

    def _name(self, kind: str, value: str) -> str:
        names = self._names.setdefault(kind, {})
        return names.setdefault(value, f"{kind}-{len(names) + 1}")

    def _numbered(self, kind: str) -> Callable[[re.Match[str]], str]:
        return lambda match: f"<{self._name(kind, match[0].lower())}>"

    def _replace_address(self, match: re.Match[str]) -> str:
        try:
            address = ipaddress.ip_address(match[0].partition("%")[0])
        except ValueError:
            return match[0]
        if (address.version == 4 or len(match[0]) <= 3) and (address.is_loopback or address.is_unspecified):
            return match[0]
        return self._name("address", str(address))

    def _replace_path(self, match: re.Match[str]) -> str:
        """A path without its folders; those of packages, of the system and the name of a known file stay."""
        path = match[0]
        if packages := _PACKAGES.match(path):
            return f"<env>{packages[1]}" if not path.startswith("/usr/") else path
        if _SYSTEM.match(path):
            return path
        separator = "\\" if "\\" in path else "/"
        folder, _, name = path.rstrip(separator).rpartition(separator)
        if not _KNOWN_FILE.search(name):
            stem, dot, suffix = name.rpartition(".")
            short = dot and stem and len(suffix) <= 8
            name = f"{self._name('file', name)}.{suffix}" if short else self._name("file", name)
        return f"<{self._name('folder', folder)}>/{name}"


def redact_answer(
    diagnosis: Diagnosis, opinion: LogOpinion | None, users: Iterable[str] = ()
) -> tuple[Diagnosis, LogOpinion | None]:
    """The answer with all its texts redacted. `users` are further names that may not appear."""
    redactor = Redactor([*diagnosis.hosts, diagnosis.host], users)
    for text in _iter_texts(diagnosis):
        redactor.learn(text)
    if opinion is not None:
        findings = tuple(
            f._replace(message=redactor.redact(f.message), key=redactor.redact(f.key)) for f in opinion.findings
        )
        opinion = opinion._replace(source=redactor.redact(opinion.source), findings=findings)
    redacted: Diagnosis = _redact_value(diagnosis, redactor)
    return redacted, opinion


def _iter_texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _iter_texts(item)
    elif hasattr(value, "__dataclass_fields__"):
        for field in fields(value):
            if not field.name.startswith("_") and field.name not in _PLAIN_FIELDS:
                yield from _iter_texts(getattr(value, field.name))


_PLAIN_FIELDS = frozenset(("cause", "state", "confidence", "source", "name", "facts", "signal"))
"""Fields that are our own words."""


def _redact_value(value: Any, redactor: Redactor) -> Any:
    if isinstance(value, str):
        return redactor.redact(value)
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(_redact_value(item, redactor) for item in value)
    if isinstance(value, list):
        return [_redact_value(item, redactor) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        names = [f.name for f in fields(value) if f.init and f.name not in _PLAIN_FIELDS and not f.name.startswith("_")]
        changes = {name: _redact_value(getattr(value, name), redactor) for name in names if name != "change"}
        if "change" in names:
            changes["change"] = redactor.redact(value.change, has_paths=False)
        return replace(value, **changes)
    return value
