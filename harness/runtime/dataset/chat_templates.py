# SPDX-License-Identifier: Apache-2.0
"""Chats as text, by the tokenizer's template, and the character spans of the assistant's turns.

A template with `{% generation %}` marks the spans itself. Any other renders the prefixes of the chat: the text that an
assistant's turn adds is that turn, provided that each rendered prefix is a prefix of the whole.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from harness.runtime.dataset.record import BadRecord
from harness.runtime.dataset.record_formats import ChatRecord, find_unknown_role, standard_role
from harness.runtime.user_errors import first_error_line, user_error

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Spans = list[tuple[int, int]]
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


_RENDER_ERRORS = (
    TemplateError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    MemoryError,
)
"""The errors of a template. The sandbox refuses a `range` of more than 100,000 with an OverflowError."""


def require_template(tokenizer: PreTrainedTokenizerBase, where: str) -> None:
    """Refuse (MD127) chats for a tokenizer without a template."""
    if tokenizer.chat_template is None:
        raise user_error(
            "MD127",
            f"`{where}` has chats, and the tokenizer has no chat template",
            key="data.chat_template",
            notes=("the tokenizer of a base model often lacks one",),
            fix="set `data.chat_template: chatml`, or name a file with a Jinja template",
        )


def render_chat(tokenizer: PreTrainedTokenizerBase, chat: ChatRecord, *, assistant_only: bool) -> tuple[str, Spans]:
    """The chat as text, and the character spans to train on. Raises BadRecord and UserError (MD126)."""
    roles = [message["role"] for message in chat.messages]
    _check_roles(tokenizer, roles)
    _check_parts(tokenizer, chat)
    trained_turns = [i for i, role in enumerate(roles) if role == "assistant" and i >= chat.prompt_turns]
    if assistant_only and not trained_turns:
        raise BadRecord("missing-turn", "has no assistant turn")
    if chat.prompt_turns and not assistant_only:
        text = _apply_template(tokenizer, chat, len(roles))
        return text, [
            (len(_render_prefix(tokenizer, chat, chat.prompt_turns, text, generation_prompt=True)), len(text))
        ]
    if not assistant_only:
        text = _apply_template(tokenizer, chat, len(roles))
        return text, [(0, len(text))]
    if _GENERATION.search(_get_template(tokenizer)):
        text, spans = _spans_by_generation_tag(tokenizer, chat)
        return text, spans[-len(trained_turns) :] if chat.prompt_turns else spans
    return _spans_by_prefix(tokenizer, chat, trained_turns)


def end_at_eos(text: str, spans: Spans, eos: str) -> Spans:
    """The spans without what follows the last end-of-sequence token in each."""
    ends = [text.rfind(eos, first, last) for first, last in spans]
    return [(first, end + len(eos) if end >= 0 else last) for (first, last), end in zip(spans, ends, strict=True)]


def _spans_by_prefix(
    tokenizer: PreTrainedTokenizerBase, chat: ChatRecord, trained_turns: list[int]
) -> tuple[str, Spans]:
    text = _apply_template(tokenizer, chat, len(chat.messages))
    spans: Spans = []
    for i in trained_turns:
        start = len(_render_prefix(tokenizer, chat, i, text, generation_prompt=True))
        is_last = i + 1 == len(chat.messages)
        prefix = text if is_last else _render_prefix(tokenizer, chat, i + 1, text, generation_prompt=False)
        spans.append((start, len(prefix)))
    return text, spans


def _render_prefix(
    tokenizer: PreTrainedTokenizerBase, chat: ChatRecord, count: int, whole: str, *, generation_prompt: bool
) -> str:
    """The first `count` turns as text, a prefix of `whole`; `generation_prompt`: with the beginning of an answer."""
    if not count and not generation_prompt:
        return ""
    text = _apply_template(tokenizer, chat, count, generation_prompt=generation_prompt)
    if whole.startswith(text):
        return text
    if generation_prompt:  # the template's prompt may hold more than its answers do, such as an empty thought
        text = _apply_template(tokenizer, chat, count)
        if whole.startswith(text):
            return text
    raise user_error(
        "MD126",
        "the chat template renders the first turns of a chat differently alone and in the whole chat, so the "
        "assistant's text cannot be located",
        key="data.assistant_only_loss",
        notes=(
            f"after turn {count}, the whole continues with {whole[: len(text)][-40:]!r}, the beginning with "
            f"{text[-40:]!r}",
        ),
        fix="set `data.chat_template` to one with `{% generation %}` around the assistant's text, or "
        "`data.assistant_only_loss: false`",
    )


def _apply_template(
    tokenizer: PreTrainedTokenizerBase, chat: ChatRecord, count: int, *, generation_prompt: bool = False
) -> str:
    options: dict[str, Any] = {"tools": chat.tools} if chat.tools else {}
    try:
        text = tokenizer.apply_chat_template(
            chat.messages[:count], tokenize=False, add_generation_prompt=generation_prompt, **options
        )
    except _RENDER_ERRORS as error:
        raise _describe_refusal(tokenizer, chat, error) from None
    return cast("str", text)  # of one chat, without `tokenize`


def _spans_by_generation_tag(tokenizer: PreTrainedTokenizerBase, chat: ChatRecord) -> tuple[str, Spans]:
    try:
        rendered = render_jinja_template(
            [chat.messages],
            tools=chat.tools,
            chat_template=_get_template(tokenizer),
            return_assistant_tokens_mask=True,
            **cast("dict[str, Any]", tokenizer.special_tokens_map),
        )
    except _RENDER_ERRORS as error:
        raise _describe_refusal(tokenizer, chat, error) from None
    # Its annotation says `str`.
    texts, indices = cast("tuple[list[str], list[Spans]]", rendered)
    return texts[0], [(start, end) for start, end in indices[0]]


def with_end_of_turn(eos_ids: int | list[int] | None, tokenizer: PreTrainedTokenizerBase) -> int | list[int] | None:
    """The ids that end a generation, with the token that ends an assistant's turn in the chat template.

    A base model's end-of-text token is another one, so that a model that was trained on chats would go on after its
    answer.
    """
    answer = "an answer"
    turns = [{"role": "user", "content": "a question"}, {"role": "assistant", "content": answer}]
    if tokenizer.chat_template is None:
        return eos_ids
    try:
        _, found, rest = _apply_template(tokenizer, ChatRecord(turns), 2).rpartition(answer)
    except BadRecord:  # a template for other roles
        return eos_ids
    ids = tokenizer(rest.lstrip(), add_special_tokens=False)["input_ids"] if found else []
    known = [] if eos_ids is None else eos_ids if isinstance(eos_ids, list) else [eos_ids]
    is_new_special = bool(ids) and ids[0] in tokenizer.added_tokens_decoder and ids[0] not in known
    return [*known, ids[0]] if is_new_special else eos_ids


def _check_roles(tokenizer: PreTrainedTokenizerBase, roles: list[str]) -> None:
    """Refuse ShareGPT's roles for a template that does not name them: a generic one would print them, and none of their
    turns would be trained on.
    """
    template = _get_template(tokenizer)
    known = {role: standard_role(role) for role in roles if standard_role(role) != role and role not in template}
    if known:
        here, there = (" and ".join(f"`{name}`" for name in names) for names in (known, dict.fromkeys(known.values())))
        raise BadRecord("sharegpt-roles", f"has ShareGPT's roles {here}, where the chat template expects {there}")


def _check_parts(tokenizer: PreTrainedTokenizerBase, chat: ChatRecord) -> None:
    """Refuse contents that are lists of parts for a template that prints such a list as Python does, or cannot."""
    i = next((i for i, message in enumerate(chat.messages) if isinstance(message["content"], list)), None)
    if i is None:
        return
    try:
        text = _apply_template(tokenizer, chat, len(chat.messages))
    except BadRecord as bad:
        if "list" not in bad.reason:
            raise
        text = ""
    parts = chat.messages[i]["content"]
    if not text or str(parts) in text:
        reason = f"`{chat.column}[{i}].content` is a list of parts; the chat template expects a text"
        raise BadRecord("parts-not-usable", reason)


def _describe_refusal(tokenizer: PreTrainedTokenizerBase, chat: ChatRecord, error: Exception) -> BadRecord:
    """The reason for which a template fails: a role that it does not have, or else its own words."""
    role = find_unknown_role(chat, _get_template(tokenizer))
    if role:
        return BadRecord("unknown-role", role)
    return BadRecord("bad-roles", f"the chat template refuses it: {first_error_line(error)}")


def _get_template(tokenizer: PreTrainedTokenizerBase) -> str:
    return tokenizer.get_chat_template()
