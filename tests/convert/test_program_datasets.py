# SPDX-License-Identifier: Apache-2.0
"""Datasets of axolotl, LLaMA-Factory, ms-swift and ArcticTraining as sources of a run spec."""

from __future__ import annotations

import json

import pytest

from harness.convert.conversion import convert_file
from harness.facts.deepspeed_version import DeepSpeedTarget

CALLS = {"observation": "tool", "function_call": "function_call"}
"""LLaMA-Factory's roles of turns that are not the user's, the assistant's or the system's."""
TARGET = DeepSpeedTarget("0.19.8", "asked for")
AXOLOTL = "base_model: a/b\nmicro_batch_size: 1\n"
FACTORY = "model_name_or_path: a/b\nstage: {stage}\nfinetuning_type: full\nbf16: true\ndataset: {dataset}\n"
CHAT = """datasets:
  - path: chats.jsonl
    type: chat_template
    ds_type: json
    split: train
    chat_template: tokenizer_default
    field_messages: {column}
    message_property_mappings: {mapping}
    roles: {{user: [human, user], assistant: [gpt, assistant], system: [system]}}
    roles_to_train: [assistant]
    train_on_eos: turn
"""


def convert(write, text, name="t.yaml"):
    return convert_file(write(name, text), TARGET)


@pytest.mark.parametrize(
    ("column", "mapping"),
    [("messages", "{role: role, content: content}"), ("conversations", "{role: from, content: value}")],
)
def test_axolotls_chats(column, mapping, write):
    result = convert(write, AXOLOTL + CHAT.format(column=column, mapping=mapping))
    assert result.draft.get("data.train") == [{"path": "chats.jsonl", "format": "messages"}]
    assert result.draft.get("data.messages_column") == column
    assert not [note for note in result.notes if note.key == "datasets"]


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (
            "{path: d, type: chat_template, message_property_mappings: {role: who, content: what}}",
            "has other names for the keys of a turn",
        ),
        ("{path: d, type: chat_template, roles: {user: [stranger]}}", "a role `stranger`"),
        ("{path: d, type: {field_instruction: q}}", "`type` with custom fields"),
        ("{path: d, type: my.own.strategy}", "is of type"),
        ("{path: d, type: input_output}", "is of type"),
        ("{path: d, type: chat_template, secret: 1}", "has `secret`"),
    ],
)
def test_what_is_no_source_says_why(entry, reason, write):
    result = convert(write, AXOLOTL + f"datasets: [{entry}]\n")
    (note,) = [note for note in result.notes_of("manual") if note.key == "datasets"]
    assert reason in note.message
    assert note.message.endswith("set `data.train`")
    assert "path/to/texts.jsonl" in result.text


@pytest.mark.parametrize(
    ("entry", "kind", "word"),
    [
        ("{path: d, type: chat_template, train_on_eos: all}", "lossy", "train_on_eos"),
        ("{path: d, type: chat_template, roles_to_train: [user]}", "lossy", "roles_to_train"),
        ("{path: d, type: chat_template, chat_template: llama3}", "manual", "chat template `llama3`"),
        ("{path: d, type: completion, shards: 8}", "lossy", "shards"),
    ],
)
def test_what_a_source_trains_otherwise(entry, kind, word, write):
    result = convert(write, AXOLOTL + f"datasets: [{entry}]\n")
    assert any(word in note.message for note in result.notes_of(kind))
    assert result.draft.get("data.train")


INFO = {
    "mychat": {"file_name": "chat.json", "formatting": "sharegpt", "columns": {"messages": "conversations"}},
    "openai": {"hf_hub_url": "o/chats", "subset": "en", "split": "train_sft", "formatting": "sharegpt", "columns": {"messages": "messages"},
               "tags": {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}},
    "alpaca": {"file_name": "alpaca.json"},
    "pairs": {"file_name": "pairs.json", "columns": {"prompt": "q", "response": "a"}},
    "texts": {"file_name": "texts.json", "columns": {"prompt": "body"}},
    "pictures": {"file_name": "p.json", "formatting": "sharegpt", "columns": {"messages": "m", "images": "i"}},
    "calls": {"file_name": "t.json", "formatting": "sharegpt", "columns": {"messages": "conversations", "tools": "tools"}},
    "system": {"file_name": "s.json", "columns": {"prompt": "instruction", "query": "input", "response": "output", "system": "sys", "tools": "t"}},
    "past": {"file_name": "h.json", "columns": {"prompt": "instruction", "query": "input", "response": "output", "history": "past"}},
    "talk": {"file_name": "talk.json", "formatting": "sharegpt", "columns": {"messages": "m", "system": "s"},
             "tags": {"role_tag": "who", "content_tag": "says", "user_tag": "pupil", "assistant_tag": "teacher"}},
    "choices": {"file_name": "c.json", "ranking": True},
}  # fmt: skip


@pytest.mark.parametrize(
    ("dataset", "stage", "sources"),
    [
        ("mychat", "sft", [("chat.json", {"format": "sharegpt"})]),
        ("openai", "sft", [("o/chats", {"format": "messages", "roles": CALLS})]),
        ("alpaca", "sft", [("alpaca.json", {"format": "alpaca-chat", "columns": {"input": "input"}})]),
        ("pairs", "sft", [("pairs.json", {"format": "alpaca-chat", "columns": {"prompt": "q", "completion": "a"}})]),
        ("texts", "pt", [("texts.json", {"format": "text", "columns": {"text": "body"}})]),
        ("calls", "sft", [("t.json", {"format": "sharegpt", "columns": {"tools": "tools"}})]),
        ("talk", "sft", [("talk.json", {"format": "sharegpt", "columns": {"messages": "m", "system": "s", "role": "who", "content": "says"},
                                        "roles": {"pupil": "user", "teacher": "assistant"}})]),
        ("system", "sft", [("s.json", {"format": "alpaca-chat", "columns": {"input": "input", "system": "sys", "tools": "t"}})]),
        ("past", "sft", [("h.json", {"format": "alpaca-chat", "columns": {"input": "input", "history": "past"}})]),
        ("'mychat, alpaca'", "sft", [("chat.json", {"format": "sharegpt"}),
                                     ("alpaca.json", {"format": "alpaca-chat", "columns": {"input": "input"}})]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("key", ["train", "eval"])
def test_dataset_info_is_looked_up(key, dataset, stage, sources, write):
    write("data/dataset_info.json", json.dumps(INFO))
    result = convert(
        write, FACTORY.format(stage=stage, dataset=f"mychat\neval_dataset: {dataset}" if key == "eval" else dataset)
    )
    found = result.draft.get(f"data.{key}")
    names = ("path", "name", "split")
    assert [
        (source["path"].split("/data/")[-1], {k: v for k, v in source.items() if k not in names}) for source in found
    ] == sources
    assert not [note for note in result.notes if note.key in ("dataset", "eval_dataset")]


def test_the_subset_and_split_of_a_hub_dataset(write):
    write("sets/dataset_info.json", json.dumps(INFO))
    result = convert(write, FACTORY.format(stage="sft", dataset="openai") + "dataset_dir: sets\n")
    assert result.draft.get("data.train") == [
        {"path": "o/chats", "name": "en", "split": "train_sft", "format": "messages", "roles": CALLS}
    ]


@pytest.mark.parametrize(
    ("dataset", "reason"),
    [("pictures", "has images"), ("choices", "has preferences"), ("nothing", "is not in"), ("", "is not in")],
)
def test_what_dataset_info_cannot_say(dataset, reason, write):
    write("data/dataset_info.json", json.dumps(INFO))
    result = convert(write, FACTORY.format(stage="sft", dataset=dataset or "'a,b'"))
    assert any(reason in note.message and "set `data.train`" in note.message for note in result.notes_of("manual"))


def test_a_dataset_of_modelscope_and_a_file(write):
    text = "model: a/b\ntuner_type: full\ndataset: ['swift/self:zh#500', 'x/d.jsonl']\nmax_length: 9\n"
    result = convert(write, text)
    assert result.draft.get("data.train") == [{"path": "swift/self", "name": "zh"}, "x/d.jsonl"]
    assert any("takes 500 records" in note.message for note in result.notes_of("lossy"))
    assert any("name of ModelScope" in note.message for note in result.notes_of("manual"))
    assert not convert(write, text.replace("#500", "") + "use_hf: true\n", "hf.yaml").notes_of("manual")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a/c", {"path": "a/c", "format": "messages"}),
        ("HuggingFaceH4/ultrachat_200k", {"path": "HuggingFaceH4/ultrachat_200k", "format": "messages", "split": "train_sft"}),
        ("{type: huggingface_instruct, name_or_path: 'a/c:train[10:20]'}", {"path": "a/c", "format": "messages", "split": "train[10:20]"}),
        ("'HuggingFaceH4/ultrachat_200k:train[:5]'", {"path": "HuggingFaceH4/ultrachat_200k", "format": "messages", "split": "train_sft[:5]"}),
        ("{type: huggingface, name_or_path: a/c, role_mapping: {user: q, assistant: a}}", None),
        ("{type: snowflake, table_name: t}", None),
    ],
)  # fmt: skip
def test_sources_of_arctic_training(source, expected, write):
    result = convert(write, f"model: {{name_or_path: a/b}}\ndata: {{max_length: 4k, sources: [{source}]}}\n")
    assert result.draft.get("data.max_length") == 4000
    notes = [note.message for note in result.notes_of("manual") if "set `data.train`" in note.message]
    assert bool(notes) == (expected is None)
    if expected is not None:
        assert result.draft.get("data.train") == [expected]


def test_names_of_the_hub_need_no_dataset_info(write):
    result = convert(write, FACTORY.format(stage="sft", dataset="a/b,c/d") + "dataset_dir: ONLINE\n")
    assert [source["path"] for source in result.draft.get("data.train")] == ["a/b", "c/d"]
    assert not [note for note in result.notes_of("manual") if "dataset" in note.message]


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("chatml.ultra", {"objective": "dpo", "data.chat_template": "chatml", "data.prompt_column": None}),
        ("bradley_terry.chat_template", {"objective": "reward", "data.prompt_column": "input"}),
    ],
)
def test_axolotls_types_of_pairs(kind, settings, write):
    method = "reward_model: true\nnum_labels: 1\n" if settings["objective"] == "reward" else "rl: dpo\n"
    result = convert(write, f"{AXOLOTL}{method}datasets:\n  - {{path: p.jsonl, type: {kind}}}\n")
    assert result.draft.get("data.train") == ["p.jsonl"]
    settings = {**settings, "data.excess_length_strategy": "drop"}  # both programs cut answers
    assert {key: result.draft.get(key) for key in settings} == settings
