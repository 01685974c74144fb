# SPDX-License-Identifier: Apache-2.0
"""Tokens and labels of LLaMA-Factory's demo records, by itself and by the harness.

Both read the records by the same entry of `dataset_info.json`, with a byte tokenizer that has the chat template of a
file, or the one that LLaMA-Factory makes of its `template`. Needs the package `llamafactory` (0.9.5).

    python benchmarks/llama_factory_tokens.py LLaMA-Factory --template qwen --jinja qwen2.5.jinja
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from adopt_examples import make_tokenizer

from harness.convert.dataset_info import _to_source
from harness.runtime.dataset.record_formats import detect_columns, parse_example
from harness.runtime.dataset.tokenization import RecordTokenizer
from harness.spec.sections.data_spec import DataSource, DataSpec

DATASETS = ("identity", "alpaca_en_demo", "glaive_toolcall_en_demo")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--template", default="qwen", help="LLaMA-Factory's name of the template")
    parser.add_argument("--jinja", type=Path, help="the chat template of the model's tokenizer")
    parser.add_argument("--records", type=int, default=300)
    options = parser.parse_args()
    info = json.loads((options.checkout / "data/dataset_info.json").read_text(encoding="utf-8"))
    for name in DATASETS:
        equal, count = compare(options, name, info[name])
        print(f"{name}: tokens and labels of {equal} of {count} records are equal")


def compare(options: argparse.Namespace, name: str, entry: dict[str, Any]) -> tuple[int, int]:
    """(records whose ids and labels are equal, all)."""
    from llamafactory.data.converter import AlpacaDatasetConverter, SharegptDatasetConverter
    from llamafactory.data.parser import DatasetAttr
    from llamafactory.data.processor.supervised import SupervisedDatasetProcessor
    from llamafactory.data.template import get_template_and_fix_tokenizer
    from llamafactory.hparams.data_args import DataArguments
    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory() as folder:
        make_tokenizer(Path(folder))
        tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = None
    arguments = DataArguments(template=options.template, cutoff_len=100_000, dataset=name)
    template = get_template_and_fix_tokenizer(tokenizer, arguments)
    if options.jinja is not None:
        tokenizer.chat_template = options.jinja.read_text(encoding="utf-8")
    attributes = DatasetAttr("file", entry["file_name"])
    attributes.join(entry)
    kind = AlpacaDatasetConverter if attributes.formatting == "alpaca" else SharegptDatasetConverter
    convert = kind(attributes, arguments)
    processor = SupervisedDatasetProcessor(template, tokenizer, None, arguments)
    records = json.loads((options.checkout / "data" / entry["file_name"]).read_text(encoding="utf-8"))
    records = records[: options.records]
    source, _ = _to_source(entry, options.checkout / "data", "sft")
    data = DataSpec(train=[source])
    columns = detect_columns(DataSource(**source), data, list(records[0]), name)
    ours = RecordTokenizer(tokenizer, data, columns, rows=True)
    equal = 0
    for record in records:
        theirs = convert(record)
        parts = {key: theirs[f"_{key}"] for key in ("prompt", "response", "system", "tools")}
        expected = processor._encode_data_example(**parts, images=[], videos=[], audios=[])
        ids, trained = ours.encode(parse_example(record, columns))
        labels = [int(i) if is_trained else -100 for i, is_trained in zip(ids, trained, strict=True)]
        equal += (list(map(int, ids)), labels) == (list(expected[0]), list(expected[1]))
    return equal, len(records)


if __name__ == "__main__":
    main()
