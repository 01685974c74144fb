# SPDX-License-Identifier: Apache-2.0
"""Asks a tiny copy of a model whether it is a causal language model, and whether it keeps packed documents apart.

The copy has random weights, drawn so that every parameter has an effect. The questions are put to logits alone: no name
of a model decides anything.
"""

from __future__ import annotations

import contextlib
import copy
import signal
from collections.abc import Iterator
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from harness.hostinfo.model_answers import ModelAnswers
from harness.runtime.tiny_config import ATTEMPTS, VOCAB_SIZE, shrink_config

RANK_SECONDS = 60.0
"""Of a question that a rank puts to a small copy."""
MAX_PARAMETERS = 16_000_000
"""Of a copy on a rank: 64 MB in fp32."""
_LENGTHS = ((13, 19), (20, 12))
"""Tokens of the documents of each row."""
_LONG = ((70, 90),)
"""The same of one longer row: a leak may begin at a later token, or reach further."""
_FIRST_ID, _END_ID = 8, VOCAB_SIZE - 16
_NOISE = 1e-4
"""Of the change of logits that a token has where it may have one; rounding in fp32 gives less than 1e-5."""


@contextlib.contextmanager
def limit_seconds(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in what runs below it, in the main thread of a rank, which no other process limits; again
    after as long where that is caught.
    """

    def stop(*_: Any) -> None:
        raise TimeoutError(f"stopped after {seconds:.0f} s")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def ask_model(config: PreTrainedConfig, *, trust_remote_code: bool = False) -> ModelAnswers:
    """The answers of the model that `AutoModelForCausalLM` builds for this configuration. Leaves the random state."""
    if not is_causal_class(config, trust_remote_code=trust_remote_code):
        reason = "`AutoModelForCausalLM` has no class for it"
        return ModelAnswers(False, reason, False, reason)
    text = config.get_text_config(decoder=True)
    has_text_class = text is not config and type(text) in MODEL_FOR_CAUSAL_LM_MAPPING
    reason = ""
    for part in (text, config) if has_text_class else (config,):
        try:
            return ask_copy(build_small_copy(part, trust_remote_code=trust_remote_code))
        except TimeoutError:
            raise
        except Exception as error:  # the code of a model may raise anything
            reason = reason or first_line(error)
    return ModelAnswers(None, reason, None, reason)


def is_causal_class(config: PreTrainedConfig, *, trust_remote_code: bool = False) -> bool:
    """Has `AutoModelForCausalLM` a class for it, of `transformers` or of its own code?"""
    auto_map = getattr(config, "auto_map", None) or {}
    is_remote = trust_remote_code and "AutoModelForCausalLM" in auto_map
    return is_remote or type(config) in MODEL_FOR_CAUSAL_LM_MAPPING


def build_small_copy(
    config: PreTrainedConfig,
    *,
    trust_remote_code: bool = False,
    max_parameters: int = MAX_PARAMETERS,
    device: str = "cpu",
) -> Any:
    """The smallest copy that computes logits, in fp32, with random weights. Leaves the random state of the CPU.

    Raises ValueError with the reason of the first attempt.
    """
    reason = ""
    for attempt in ATTEMPTS:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            try:
                fields = shrink_config(config.to_dict(), attempt)
                model = _build_copy(config, fields, max_parameters, trust_remote_code=trust_remote_code).to(device)
                logits_of(model, draw_ids().to(device))
                return model
            except TimeoutError:  # of the caller, who has waited enough
                raise
            except Exception as error:  # the code of a model may raise anything for a shape that it does not take
                reason = reason or f"no small copy of it answers: {type(error).__name__}: {first_line(error)}"
    raise ValueError(reason)


def _build_copy(
    config: PreTrainedConfig, fields: dict[str, Any], max_parameters: int, *, trust_remote_code: bool
) -> Any:
    """Raises whatever the model's code raises, and ValueError for a copy that is not small."""
    left_out = ("quantization_config", "torch_dtype")
    fields = {name: value for name, value in fields.items() if not name.startswith("_") and name not in left_out}
    small = type(config).from_dict(copy.deepcopy(fields | {"dtype": "float32"}))
    small.use_cache, small.name_or_path = False, config.name_or_path  # where its own code is
    options = {"trust_remote_code": trust_remote_code} if trust_remote_code else {}
    with torch.device("meta"):
        size = sum(p.numel() for p in AutoModelForCausalLM.from_config(small, **options).parameters())
    if size > max_parameters:
        raise ValueError(f"the copy has {size:,} parameters")
    model = AutoModelForCausalLM.from_config(small, dtype=torch.float32, **options).eval()
    model.built_from = small  # of some composites `model.config` is a part that no class builds alone
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def draw_ids(lengths: Any = _LENGTHS) -> torch.Tensor:
    """(rows, length), token ids that are none of the special ones."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(_FIRST_ID, _END_ID, (len(lengths), sum(lengths[0])), generator=generator)


def packed_positions(lengths: Any = _LENGTHS) -> torch.Tensor:
    """(rows, length), positions that restart at each document of a row."""
    return torch.stack([torch.cat([torch.arange(n) for n in row]) for row in lengths])


def ask_copy(model: Any) -> ModelAnswers:
    """Is it causal, and does it keep packed documents apart? Raises whatever its forward raises."""
    ids = draw_ids()
    causal, why_causal = _ask_causal(model, ids)
    if causal is not True:
        return ModelAnswers(causal, why_causal, causal, why_causal)
    try:
        apart, why_apart = _ask_apart(model.eval(), _LENGTHS)
        if apart:
            apart, why_apart = _ask_apart(model, _LONG)
        if apart:
            apart, why_apart = _ask_apart(model.train(), _LONG)
    except TypeError as error:
        apart, why_apart = False, f"it takes no position ids: {first_line(error)}"
    finally:
        model.eval()
    return ModelAnswers(True, why_causal, apart, why_apart)


def _ask_causal(model: Any, ids: torch.Tensor) -> tuple[bool | None, str]:
    """Change every token from a position on, and look at the logits before it."""
    before = logits_of(model, ids)
    split = ids.shape[1] // 2
    other = ids.clone()
    other[:, split:] = _other_ids(ids[:, split:])
    change = (logits_of(model, other) - before).abs()
    legal = float(change[:, split:].max())
    if not legal > 0:
        return None, "its logits do not depend on its tokens"
    if float(change[:, :split].max()) > _NOISE * legal:
        return False, "its logits for a token change with the tokens after it"
    return True, "its logits for a token do not change with the tokens after it"


def _ask_apart(model: Any, lengths: Any) -> tuple[bool, str]:
    """Change the first document of each row, and look at the second; compare each document with itself alone, but for a
    model in training mode, whose dropout would differ.
    """
    ids, positions = draw_ids(lengths), packed_positions(lengths)
    packed = logits_of(model, ids, position_ids=positions)
    other = ids.clone()
    for row, (first, _) in enumerate(lengths):
        other[row, :first] = _other_ids(ids[row, :first])
    change = (logits_of(model, other, position_ids=positions) - packed).abs()
    second = torch.stack([torch.arange(ids.shape[1]) >= first for first, _ in lengths])
    legal = float(change[~second].max())
    leaked = float(change[second].max()) / legal if legal > 0 else float("inf")
    if leaked > _NOISE:
        return False, f"a document changes the logits of the next one by {leaked:.0e} of what it changes its own"
    differs = 0.0 if model.training else difference_from_alone(model, packed, lengths) / legal
    if differs > _NOISE and next(model.parameters()).dtype is torch.float32:  # rounding, where a norm enlarges it?
        try:
            with contextlib.suppress(Exception):  # the code of a model may raise anything for another format
                return _ask_apart(model.double(), lengths)
        finally:
            model.float()
    if differs > _NOISE:
        return False, f"the logits of a document differ from those that it has alone, by {differs:.0e}"
    return True, "documents of a packed row have the logits that each has alone"


def difference_from_alone(model: Any, packed: torch.Tensor, lengths: Any = _LENGTHS) -> float:
    """The largest between these logits of packed documents and those that the model gives each alone."""
    ids, largest = draw_ids(lengths), 0.0
    for row, parts in enumerate(lengths):
        for part, logits in zip(ids[row].split(parts), packed[row].split(parts), strict=True):
            largest = max(largest, float((logits_of(model, part[None])[0] - logits).abs().max()))
    return largest


def _other_ids(ids: torch.Tensor) -> torch.Tensor:
    """Another token at every place."""
    return _FIRST_ID + (ids - _FIRST_ID + 7) % (_END_ID - _FIRST_ID)


@torch.no_grad()
def logits_of(model: Any, ids: torch.Tensor, **arguments: torch.Tensor) -> torch.Tensor:
    """(rows, length, vocabulary), without a gradient; dropout draws the same each time. Raises ValueError for logits of
    another length, and for such as are not finite.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        logits: torch.Tensor = model(input_ids=ids, use_cache=False, **arguments).logits
    if logits.shape[:2] != ids.shape:
        raise ValueError(f"its logits are {list(logits.shape)} for tokens of {list(ids.shape)}")
    if not bool(logits.isfinite().all()):
        raise ValueError("its logits are not finite")
    return logits


def first_line(error: BaseException) -> str:
    """Of the text of an exception."""
    return (str(error).strip() or "no message").splitlines()[0][:160]
