# SPDX-License-Identifier: Apache-2.0
"""Records of preferences into rows: columns, prompts that are implicit, labels, lengths; and what `harness data` shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.errors import UserError
from harness.run.resolved_run import resolve_run
from harness.runtime.dataset.cache import prepare_or_reuse
from harness.runtime.dataset.preference_dataset import PreferenceDataset
from harness.runtime.dataset.preference_records import PreferenceTokenizer
from harness.runtime.dataset.preview import preview_dataset
from harness.runtime.dataset.record import BadRecord
from harness.runtime.dataset.token_dataset import open_token_dataset
from harness.runtime.tokenizer import byte_tokenizer
from harness.spec.run_spec import RunSpec
from harness.spec.sections.data_spec import DataSpec

TOKENIZER = byte_tokenizer()
CHATML = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def tokenizer_with_template() -> Any:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = CHATML
    return tokenizer


def texts(answer: Any) -> tuple[str, str]:
    """(prompt, answer) of an encoded sequence."""
    cut = len(answer.ids) - answer.num_answer
    return TOKENIZER.decode(answer.ids[:cut].tolist()), TOKENIZER.decode(
        answer.ids[cut:].tolist(), skip_special_tokens=True
    )


def encode(record: dict[str, Any], **data: Any) -> Any:
    return PreferenceTokenizer(tokenizer_with_template(), DataSpec(**data), has_labels=False).encode_pair(record)


USER, GOOD, BAD = ({"role": r, "content": c} for r, c in (("user", "hi"), ("assistant", "yes"), ("assistant", "no")))


@pytest.mark.parametrize(
    ("record", "prompt", "answers"),
    [
        ({"prompt": "2+2=", "chosen": "4", "rejected": "5"}, "2+2=", ("4", "5")),
        ({"chosen": "the sky is blue", "rejected": "the sky is green"}, "the sky is", (" blue", " green")),
        (
            {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
            "<user>hi\n<assistant>",
            ("yes\n", "no\n"),
        ),
        ({"chosen": [USER, GOOD], "rejected": [USER, BAD]}, "<user>hi\n<assistant>", ("yes\n", "no\n")),
        (
            {"prompt": "hi", "chosen": [USER, GOOD], "rejected": [USER, BAD]},
            "<user>hi\n<assistant>",
            ("yes\n", "no\n"),
        ),
        (
            {
                "conversations": [{"from": "human", "value": "hi"}],
                "chosen": GOOD,
                "rejected": {"from": "gpt", "value": "no"},
            },
            "<user>hi\n<assistant>",
            ("yes\n", "no\n"),
        ),
    ],
    ids=["texts", "implicit text", "chats", "implicit chats", "a prompt beside chats", "sharegpt"],
)
def test_a_pair_is_a_prompt_and_two_answers(record: dict[str, Any], prompt: str, answers: tuple[str, str]) -> None:
    pair = encode(record)
    assert texts(pair.chosen) == (prompt, answers[0])
    assert texts(pair.rejected) == (prompt, answers[1])


def test_columns_may_have_other_names() -> None:
    pair = encode(
        {"messages": [USER, GOOD], "rejected_response": "no"},
        chosen_column="messages",
        rejected_column="rejected_response",
    )
    assert (texts(pair.chosen)[1], texts(pair.rejected)[1]) == ("yes\n", "no\n")


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        ({"prompt": "a", "chosen": "b"}, "missing-key"),
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "same-answers"),
        ({"chosen": "ab", "rejected": "abc"}, "same-answers"),
        ({"prompt": "a", "chosen": "b", "rejected": [BAD]}, "wrong-type"),
        ({"prompt": "a", "chosen": "", "rejected": "b"}, "empty"),
        ({"prompt": "a", "chosen": 3, "rejected": "b"}, "wrong-type"),
    ],
)
def test_a_record_that_says_nothing_is_bad(record: dict[str, Any], kind: str) -> None:
    with pytest.raises(BadRecord) as error:
        encode(record)
    assert error.value.kind == kind


def test_too_long_a_pair_loses_the_begin_of_its_prompt_and_never_of_an_answer() -> None:
    record = {"prompt": "0123456789", "chosen": "abc", "rejected": "defgh"}
    pair = encode(record, max_length=10)
    assert texts(pair.chosen) == ("6789", "abc")  # both answers keep the same prompt
    assert texts(pair.rejected) == ("6789", "defgh")
    with pytest.raises(BadRecord, match="never cut") as error:
        encode(record, max_length=6)
    assert error.value.kind == "long-answer"
    with pytest.raises(BadRecord) as error:
        encode(record, max_length=10, excess_length_strategy="drop")
    assert error.value.kind == "too-long"


def test_labels_are_true_or_false_and_pairs_are_taken_apart() -> None:
    labelled = PreferenceTokenizer(tokenizer_with_template(), DataSpec(), has_labels=True)
    ((answer, is_desirable),) = labelled.encode_labelled({"prompt": "a", "completion": "b", "label": "False"})
    assert (texts(answer), is_desirable) == (("a", "b"), False)
    (good, first), (bad, second) = labelled.encode_labelled({"prompt": "a", "chosen": "b", "rejected": "c"})
    assert (texts(good)[1], first, texts(bad)[1], second) == ("b", True, "c", False)
    ((answer, _),) = PreferenceTokenizer(
        tokenizer_with_template(), DataSpec(completion_column="messages"), has_labels=True
    ).encode_labelled({"messages": [USER, GOOD], "label": True})
    assert texts(answer) == ("<user>hi\n<assistant>", "yes\n")
    with pytest.raises(BadRecord, match="true or false"):
        labelled.encode_labelled({"prompt": "a", "completion": "b", "label": "good"})


def run_of(folder: Path, objective: str, records: list[dict[str, Any]], **data: Any) -> Any:
    (folder / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    TOKENIZER.save_pretrained(folder / "tokenizer")
    spec = {
        "objective": objective,
        "model": {"config": {"model_type": "llama"}, "tokenizer": str(folder / "tokenizer")},
        "data": {
            "train": str(folder / "records.jsonl"),
            "max_length": 64,
            "eval_fraction": 0.0,
            "cache_dir": str(folder / "cache"),
            **data,
        },
        "train": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 1},
    }
    return resolve_run(RunSpec.model_validate_json(json.dumps(spec)), world_size=1)


PAIRS = [{"prompt": f"{i}: ", "chosen": f"yes {i}", "rejected": "no" * (i % 3 + 1)} for i in range(6)]


def open_rows(run: Any, kl_rows: int = 0) -> PreferenceDataset:
    folder, prepared, _ = prepare_or_reuse(run, TOKENIZER, show_progress=False)
    dataset = open_token_dataset(folder, prepared.train, 64, prepared.pad)
    return PreferenceDataset(dataset.sources, 64, prepared.pad, 1, kl_rows)


def decode(ids: Any, labels: Any) -> list[tuple[str, str]]:
    """(all text, the answer) of each sequence."""
    clean = [[int(t) for t in row if t < 256] for row in ids.tolist()]
    answers = [[int(t) for t in row if 0 <= t < 256] for row in labels.tolist()]
    return [(TOKENIZER.decode(a), TOKENIZER.decode(b)) for a, b in zip(clean, answers, strict=True)]


def test_a_batch_has_the_chosen_sequences_and_then_the_rejected_ones(tmp_path: Path) -> None:
    batch = open_rows(run_of(tmp_path, "dpo", PAIRS)).make_batch([1, 2])  # type: ignore[arg-type]
    assert decode(batch.input_ids, batch.labels) == [
        ("1: yes 1", "yes 1"),
        ("2: yes 2", "yes 2"),
        ("1: nono", "nono"),
        ("2: nonono", "nonono"),
    ]
    assert (batch.num_targets, batch.kl) == (2, None)


def test_the_kl_term_has_the_answer_of_another_prompt_whatever_the_order(tmp_path: Path) -> None:
    dataset = open_rows(run_of(tmp_path, "kto", PAIRS), kl_rows=2)
    assert len(dataset) == 12
    assert dataset.is_desirable.tolist() == [True] * 6 + [False] * 6
    batch = dataset.make_batch([7, 3])  # type: ignore[arg-type]
    assert batch.kl is not None
    assert decode(batch.input_ids, batch.labels) == [("1: nono", "nono"), ("3: yes 3", "yes 3")]
    assert decode(batch.kl.input_ids, batch.kl.labels) == [("1: no", "no"), ("3: yes 2", "yes 2")]


def test_harness_data_counts_and_shows_answers(tmp_path: Path) -> None:
    long = {"prompt": "x", "chosen": "y" * 80, "rejected": "z"}
    run = run_of(tmp_path, "dpo", [*PAIRS, long], excess_length_strategy="drop")
    preview = preview_dataset(run, 1)
    assert preview["sequences"]["train"] == 6
    assert preview["skipped"] == {"too-long": 1}
    assert preview["tokens"]["trained_on"] == sum(len(p["chosen"]) + len(p["rejected"]) + 2 for p in PAIRS)
    assert [trained for _, trained in preview["examples"][0]["parts"]] == [False, True, False, True]


def test_pairs_need_an_objective_and_an_objective_needs_pairs(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        prepare_or_reuse(run_of(tmp_path, "causal_lm", PAIRS), TOKENIZER)
    assert error.value.findings[0].gate == "MD112"
    assert "objective: dpo" in str(error.value.findings[0].fix)
    with pytest.raises(UserError, match="has no column `chosen`"):
        prepare_or_reuse(run_of(tmp_path, "dpo", [{"text": "a"}]), TOKENIZER)
    with pytest.raises(UserError, match="`text`"):
        prepare_or_reuse(run_of(tmp_path, "dpo", PAIRS, format="text"), TOKENIZER)
