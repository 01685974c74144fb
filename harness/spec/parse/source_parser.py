# SPDX-License-Identifier: Apache-2.0
"""A file or a text as a Source: by the YAML parser, by strict JSON, or by hjson where strict JSON fails."""

from __future__ import annotations

from harness.errors import UserError
from harness.findings import Place
from harness.spec.parse import json_parser
from harness.spec.parse.source import Source, input_error, is_json


def parse(text: str, file: str) -> Source:
    """The text as values with their places. Raises UserError where the syntax is wrong."""
    if is_json(file, text):
        return json_parser.parse(text, file)
    if file.endswith(".py"):
        title = "name the JSON that it gives to DeepSpeed, or save its dict as one"
        raise input_error("SP016", "this is a Python program, not a configuration", Place(file, 1, 1), title)
    if file.endswith((".sh", ".bash")) or (text.startswith("#!") and "sh" in text.split("\n", 1)[0]):
        raise input_error(
            "SP016",
            "this is a shell script, not a configuration",
            Place(file, 1, 1),
            f"name the file that it passes on, or make a run spec of its command: `harness adopt {file} > spec.yaml`",
        )
    from harness.spec.parse import yaml_parser

    return yaml_parser.parse(text, file)


def parse_lenient(text: str, file: str) -> json_parser.JsonDocument:
    """The file as strict JSON, or else as hjson reads it. Raises UserError where both fail."""
    reader = json_parser.JsonReader(text, file)
    try:
        return json_parser.JsonDocument(reader.to_source(), tuple(reader.findings))
    except UserError as error:
        from harness.spec.parse import hjson_parser

        if error.findings[0].gate != "SP002":
            raise
        return hjson_parser.parse(text, file, error)
