# SPDX-License-Identifier: Apache-2.0
"""Conversion of records: format, tokens, loss mask."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from harness.errors import UserError
from harness.runtime.dataset.chat_templates import with_end_of_turn
from harness.runtime.dataset.unused_columns import describe_unused_columns
from harness.runtime.tokenizer import _CHATML, byte_tokenizer
from tests.support.training.data_helpers import TOKENIZER, chat, decoded, lines, only, prepared, sequences

END = "<|endoftext|>"


def seen(folder: Path, tokenizer: Any = TOKENIZER, **data: Any) -> list[tuple[str, str]]:
    """(text, what is trained on) of every row."""
    rows = sequences(folder, tokenizer, **data)
    return [decoded(ids, labels, tokenizer) for ids, labels in rows.iter_examples(np.arange(len(rows)))]


def with_template(template: str) -> Any:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def test_a_prompt_is_not_trained_on_and_its_completion_is_to_the_end(tmp_path: Path) -> None:
    file = lines(tmp_path / "a.jsonl", [{"prompt": "2+2=", "completion": "4 \u20ac"}])
    assert seen(tmp_path, train=file) == [("2+2=4 \u20ac" + END, "4 \u20ac" + END)]
    assert seen(tmp_path, train=file, completion_only_loss=False) == [("2+2=4 \u20ac" + END, "+2=4 \u20ac" + END)]


def test_only_what_the_assistant_says_is_trained_on(tmp_path: Path) -> None:
    file = lines(tmp_path / "a.jsonl", [chat("hi", "hello", "and?", "bye")])
    text = f"### user\nhi\n### assistant\nhello{END}\n### user\nand?\n### assistant\nbye{END}\n"
    assert seen(tmp_path, train=file) == [(text, f"hello{END}\nbye{END}\n")]
    assert seen(tmp_path, train=file, assistant_only_loss=False) == [(text, text[1:])]
    assert seen(tmp_path, train=file, assistant_only_loss="to-eos") == [(text, f"hello{END}bye{END}")]


def test_a_template_that_marks_the_assistant_is_taken_at_its_word(tmp_path: Path) -> None:
    marked = (
        "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}{% generation %}{{ m.content }}!"
        "{% endgeneration %}{% else %}{{ m.content }}{% endif %}\n{% endfor %}"
    )
    file = lines(tmp_path / "a.jsonl", [chat("a", "b \u20ac", "c", "d")])
    assert [t for _, t in seen(tmp_path, with_template(marked), train=file)] == ["b \u20ac!d!"]


def test_a_template_that_rewrites_the_past_is_refused_not_guessed(tmp_path: Path) -> None:
    forgets = (
        "{% for m in messages %}[{{ m.role }}]{% if loop.last or m.role == 'user' %}{{ m.content }}{% else %}...{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    file = lines(tmp_path / "a.jsonl", [chat("a", "bbb", "c", "d")])
    with pytest.raises(UserError) as refused:
        seen(tmp_path, with_template(forgets), train=file)
    assert only(refused).gate == "MD126"
    assert "generation" in only(refused).fix.title  # type: ignore[union-attr]
    assert seen(tmp_path, with_template(forgets), train=file, assistant_only_loss=False)


def test_a_prompt_for_an_answer_that_holds_more_than_answers_do_is_put_up_with(tmp_path: Path) -> None:
    thinks = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
        "{% if add_generation_prompt %}<assistant><think></think>{% endif %}"
    )
    file = lines(tmp_path / "a.jsonl", [chat("a", "b")])
    assert seen(tmp_path, with_template(thinks), train=file) == [("<user>a</><assistant>b</>", "<assistant>b</>")]


def test_turns_as_prompt_and_completion_train_on_the_completion_alone(tmp_path: Path) -> None:
    turns = chat("a", "first", "b", "second")["messages"]
    file = lines(tmp_path / "a.jsonl", [{"prompt": turns[:3], "completion": turns[3:]}])
    ((_, trained),) = seen(tmp_path, train=file)
    assert trained == f"second{END}\n"


def test_sharegpt_and_alpaca_are_seen_from_their_columns(tmp_path: Path) -> None:
    share = {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]}
    assert seen(tmp_path, train=lines(tmp_path / "s.jsonl", [share]))[0][1] == f"yo{END}\n"
    plain = {"instruction": "Add.", "input": "1 2", "output": "3"}
    ((text, trained),) = seen(tmp_path, train=lines(tmp_path / "p.jsonl", [plain]))
    assert trained == "3" + END
    assert "### Instruction:\nAdd.\n\n### Input:\n1 2\n\n### Response:\n3" in text
    ((text, _),) = seen(tmp_path, train=lines(tmp_path / "q.jsonl", [{**plain, "input": ""}]))
    assert "Input" not in text


TOOLS = "{% for t in tools or [] %}({{ t.function.name }}){% endfor %}"
TURNS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ (m.tool_calls or []) | map(attribute='function.name') | join }}</>"
NAMED = TOOLS + TURNS + "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
INSTRUCTION = {"instruction": "Add.", "input": "1 2", "output": "3", "system": "Be brief.", "history": [["hi", "yo"]]}
CALL = {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 1}}'}
CALLING = [{"from": "human", "value": "q"}, CALL, {"from": "observation", "value": "3"}, {"from": "gpt", "value": "a"}]
TOOL_TEXT = '[{"name": "add", "description": "", "parameters": {}}]'


@pytest.mark.parametrize(
    ("source", "record", "text", "trained"),
    [
        ({"format": "alpaca-chat"}, INSTRUCTION, "<system>Be brief.</><user>hi</><assistant>yo</><user>Add.\n1 2</><assistant>3</>", "yo</>3</>"),
        ({"format": "alpaca-chat", "columns": {"input": "input"}}, INSTRUCTION, "<user>Add.\n1 2</><assistant>3</>", "3</>"),
        ({"format": "alpaca-chat", "columns": {"prompt": "q", "completion": "a"}}, {"q": "x", "a": "y", "input": "z"}, "<user>x</><assistant>y</>", "y</>"),
        ({"format": "alpaca-chat"}, {"instruction": "", "input": "x", "output": "y"}, "<user>x</><assistant>y</>", "y</>"),
        ({"format": "sharegpt", "columns": {"tools": "tools", "system": "sys"}}, {"conversations": CALLING, "tools": TOOL_TEXT, "sys": "S"},
         "(add)<system>S</><user>q</><assistant>add</><tool>3</><assistant>a</>", "add</>a</>"),
        ({"format": "sharegpt", "roles": {"me": "user", "it": "assistant"}}, {"conversations": [{"from": "me", "value": "q"}, {"from": "it", "value": "a"}]},
         "<user>q</><assistant>a</>", "a</>"),
        ({"format": "messages", "columns": {"messages": "m", "role": "who", "content": "says"}, "roles": {"call": "function_call"}},
         {"m": [{"who": "human", "says": "q"}, {"who": "call", "says": CALL["value"]}, {"who": "tool", "says": "3"}, {"who": "gpt", "says": "a"}]},
         "<user>q</><assistant>add</><tool>3</><assistant>a</>", "add</>a</>"),
    ],
)  # fmt: skip
def test_records_of_llama_factory_are_turns_of_the_template(source, record, text, trained, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    file = lines(tmp_path / "a.jsonl", [record])
    assert seen(tmp_path, with_template(NAMED), train=[{"path": file, **source}]) == [(text, trained)]


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({**INSTRUCTION, "history": [["one"]]}, "`history` is no list of pairs"),
        ({**INSTRUCTION, "history": [["one", 2]]}, "has a turn that is no text"),
        ({**INSTRUCTION, "instruction": "", "input": ""}, "`instruction` is empty"),
        ({**INSTRUCTION, "system": ["S"]}, "`system` is a list"),
        ({**INSTRUCTION, "tools": "[add"}, "`tools` is a text that is no JSON list"),
        ({"instruction": "q", "output": None}, "`output` is null"),
    ],
)
def test_a_wrong_alpaca_chat_is_named(record, words, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    file = lines(tmp_path / "a.jsonl", [record])
    with pytest.raises(UserError) as refused:
        seen(tmp_path, with_template(NAMED), train=[{"path": file, "format": "alpaca-chat"}])
    assert words in only(refused).message


def test_a_call_that_is_no_json_is_named(tmp_path: Path) -> None:
    turns = [CALLING[0], {"from": "function_call", "value": "add(1)"}, *CALLING[2:]]
    with pytest.raises(UserError) as refused:
        seen(tmp_path, with_template(NAMED), train=lines(tmp_path / "a.jsonl", [{"conversations": turns}]))
    assert "a turn of `function_call` that is no JSON" in only(refused).message


def test_chats_come_from_every_kind_of_file(tmp_path: Path) -> None:
    records = [chat("a", "b"), chat("c", "d", "e", "f")]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    (tmp_path / "x.json").write_text(json.dumps(records, indent=1))
    cells = [json.dumps(r["messages"]).replace('"', '""') for r in records]
    (tmp_path / "x.csv").write_text("messages\n" + "".join(f'"{cell}"\n' for cell in cells))
    table = pa.Table.from_pylist(records)
    pq.write_table(table, tmp_path / "x.parquet")
    with pa.OSFile(str(tmp_path / "x.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    first = seen(tmp_path, train=str(tmp_path / "x.jsonl"))
    assert len(first) == 2
    for ending in ("json", "csv", "parquet", "arrow"):
        assert seen(tmp_path, train=str(tmp_path / f"x.{ending}")) == first, ending


def test_a_folder_like_one_of_the_hub_is_read_whole_or_streamed(tmp_path: Path) -> None:
    folder = tmp_path / "hub"
    (folder / "data").mkdir(parents=True)
    for i in range(2):
        lines(folder / "data" / f"train-{i}.jsonl", [chat(f"q{i}{j}", f"a{i}{j}") for j in range(3)])
    lines(folder / "data" / "test-0.jsonl", [chat("q", "held")])
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: data/train-*\n"
        "  - split: test\n    path: data/test-*\n---\n"
    )
    whole = seen(tmp_path, train=str(folder))
    assert [trained for _, trained in whole] == [f"a{i}{j}{END}\n" for i in range(2) for j in range(3)]
    other = tmp_path / "other"
    assert seen(other, train=str(folder), streaming=True) == whole
    assert len(seen(tmp_path, train=[{"path": str(folder), "split": "test"}])) == 1
    with pytest.raises(UserError) as refused:
        seen(tmp_path, train=[{"path": str(folder), "split": "nope"}])
    assert only(refused).gate == "MD116"


def test_a_chat_without_a_template_is_refused_and_one_can_be_named(tmp_path: Path) -> None:
    from harness.runtime.tokenizer import load_tokenizer
    from harness.spec.run_spec import ModelSpec

    file = lines(tmp_path / "a.jsonl", [chat("hi", "yo")])
    with pytest.raises(UserError) as refused:
        seen(tmp_path, with_template(None), train=file)  # type: ignore[arg-type]
    assert only(refused).gate == "MD127"
    named = load_tokenizer(ModelSpec(tokenizer="bytes"), "chatml")
    assert seen(tmp_path, named, train=file)[0][1] == "yo<|im_end|>\n"
    (tmp_path / "t.jinja").write_text("{% for m in messages %}{{ m.content }}/{% endfor %}")
    assert seen(tmp_path, load_tokenizer(ModelSpec(tokenizer="bytes"), str(tmp_path / "t.jinja")), train=file)
    with pytest.raises(UserError) as refused:
        load_tokenizer(ModelSpec(tokenizer="bytes"), str(tmp_path / "no.jinja"))
    assert only(refused).gate == "MD127"


def test_the_byte_tokenizer_keeps_its_template_when_it_is_saved(tmp_path: Path) -> None:
    TOKENIZER.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.chat_template == TOKENIZER.chat_template


@pytest.mark.parametrize(("strategy", "rows", "cut"), [(None, ["+2="], 1), ("split", ["+2=44444444", "4444" + END], 0)])
def test_what_is_too_long_is_cut_off_or_cut_in_pieces(tmp_path: Path, strategy: Any, rows: Any, cut: int) -> None:
    file = lines(tmp_path / "a.jsonl", [{"prompt": "2+2=", "completion": "4" * 13}])
    data = {"train": file, "max_length": 12, "completion_only_loss": False, "excess_length_strategy": strategy}
    found, _ = prepared(tmp_path, **data)
    assert found.truncated == cut
    trained = [t for _, t in seen(tmp_path, **data)]
    assert trained == ([rows[0] + "4" * 8] if strategy is None else ["+2=44444444", "4444" + END])


def test_the_histogram_counts_lengths_before_they_are_cut(tmp_path: Path) -> None:
    pairs = [{"prompt": "2+2=", "completion": "4" * count} for count in (2, 20, 50, 100)]
    file = lines(tmp_path / "a.jsonl", [*pairs, {"prompt": "x" * 200, "completion": "4"}])
    found, _ = prepared(tmp_path, train=file, max_length=16, on_bad_record="skip")
    assert (found.truncated, found.skipped) == (3, {"nothing-to-train-on": 1})
    assert found.lengths == (0, 0, 0, 1, 0, 1, 1, 1, 1)  # of 7, 25, 55, 105 and 202 tokens
    assert prepared(tmp_path, train=file, max_length=1024)[0].lengths == found.lengths


@pytest.mark.parametrize("num_proc", [1, 2])
def test_columns_with_text_that_nothing_reads_are_counted(tmp_path: Path, num_proc: int) -> None:
    alpaca = {"instruction": "a", "output": "b", "id": 7, "source": "x"}
    records = [alpaca | {"system": "S", "history": [["q", "a"]]}, alpaca | {"system": "S"}, alpaca | {"system": ""}]
    found, _ = prepared(tmp_path, train=lines(tmp_path / "a.jsonl", records), num_proc=num_proc)
    assert found.unused_columns == {"system": 2, "history": 1}
    (finding,) = describe_unused_columns(found.unused_columns)
    assert (finding.gate, finding.severity) == ("MD130", "warning")
    assert finding.message == "columns `system`, `history` are not used"
    assert finding.notes == ("`system` has text in 2 records", "`history` has text in 1 record")


def test_columns_that_a_format_reads_or_that_repeat_others_are_not_reported(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]
    sharegpt = lines(tmp_path / "a.jsonl", [{"conversations": turns, "system": "S"}])
    assert prepared(tmp_path, train=sharegpt)[0].unused_columns == {"system": 1}
    tools = [{"type": "function", "function": {"name": "f"}}]
    chats = lines(tmp_path / "b.jsonl", [{**chat("q", "a"), "prompt": "q", "prompt_id": "1", "tools": tools}])
    assert prepared(tmp_path, train=chats)[0].unused_columns == {}
    text = lines(tmp_path / "c.jsonl", [{"text": "whole", "instruction": "a", "output": "b"}])
    assert prepared(tmp_path, train=text)[0].unused_columns == {}


def test_a_record_that_is_cut_before_its_answer_counts_as_broken(tmp_path: Path) -> None:
    file = lines(tmp_path / "a.jsonl", [{"prompt": "x" * 30, "completion": "4"}, {"prompt": "a", "completion": "b"}])
    with pytest.raises(UserError) as refused:
        seen(tmp_path, train=file, max_length=20)
    assert only(refused).gate == "MD124"
    assert "line 1" in only(refused).message
    found, _ = prepared(tmp_path, train=file, max_length=20, on_bad_record="skip")
    assert found.skipped == {"nothing-to-train-on": 1}


def test_several_processes_give_what_one_gives(tmp_path: Path) -> None:
    file = lines(tmp_path / "a.jsonl", [chat(f"q{i}", "a" * (i % 50 + 1)) for i in range(3000)])
    one, _ = prepared(tmp_path / "one", train=file, max_length=64)
    two, _ = prepared(tmp_path / "two", train=file, max_length=64, num_proc=2)
    assert one == two


def test_a_generation_ends_with_the_turn_where_the_template_has_a_token_for_it() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = _CHATML
    assert with_end_of_turn(256, tokenizer) == 256, "the bytes of `<|im_end|>` are no token"
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert with_end_of_turn(256, tokenizer) == [256, end]
    assert with_end_of_turn(None, tokenizer) == [end]
    assert with_end_of_turn([end, 3], tokenizer) == [end, 3]
    tokenizer.chat_template = "{{ raise_exception('no user') }}"
    assert with_end_of_turn(256, tokenizer) == 256
    tokenizer.chat_template = None
    assert with_end_of_turn(256, tokenizer) == 256
