# SPDX-License-Identifier: Apache-2.0
"""Model, data, optimizer and schedule, as the ranks see them. Pages of findings, read by `harness.finding_pages`."""

TEXT = """
## MD101 vocabulary-too-small
The tokenizer gives ids that the model has no embedding for.

## MD102 model-not-loaded
`transformers` could not build the model or load its weights.

## MD103 tokenizer-not-loaded
No tokenizer is named, or it could not be loaded.

## MD111 no-such-data
No file matches, or a file cannot be read.

## MD112 no-such-column
The data has no column of that name, or a row holds something else than text there.

## MD113 data-not-utf-8
A text file is not UTF-8.

## MD114 empty-data
The data holds no text.

## MD115 too-little-data
The text does not fill one global batch, or the held-out part not one sequence.

## MD116 data-set-not-read
The `datasets` library could not read the file, or the Hub could not be reached.

## MD117 data-not-named
`data.train` is not set.

## MD118 unknown-kind-of-data
The ending of a file does not say how to read it, or a built-in text has another name.

## MD119 hosts-read-different-text
The hosts found different training text under the same name.

## MD120 bad-json
A line of JSON Lines, an element of a JSON list or a row of a CSV file cannot be read.

The place is named by file and line. A JSON list that breaks off leaves no way to find the next element, so it ends the
preparation whatever `data.on_bad_record` says.

## MD121 empty-record
A text, a completion or what the assistant says is empty.

## MD122 record-too-long
A record has more tokens than `data.max_length`, and `data.excess_length_strategy` is `raise`.

## MD123 turns-not-usable
A chat has no turns, none of the assistant, or turns in an order that the tokenizer's chat template refuses.

## MD124 nothing-to-train-on
No token of the record would be trained on: the prompt alone fills `data.max_length`, so that the answer is cut off.

## MD125 too-many-bad-records
More records than `data.max_bad_records` cannot be used.

With `data.on_bad_record: skip`, records that cannot be used are left out, counted by kind, and listed in
`skipped.jsonl` beside the tokens. So many of them mean that something else is wrong, such as the name of a column.

## MD126 answers-not-found
It cannot be told which tokens of a chat the assistant says.

A chat template with `{% generation %}` marks them. From any other they are found by writing the beginnings of the chat,
each up to one turn, and seeing what the turn adds. That fails where the template writes earlier turns in another way
once more follow, such as without their thoughts; a guess would train on the wrong tokens in silence.

## MD127 no-chat-template
The data holds chats, and neither the tokenizer nor `data.chat_template` says how to write them.

## MD128 packed-rows-see-each-other
The model would see, in a packed row, the documents before the one that it predicts. Gate MD020 says why.

## MD129 cache-not-usable
The folder in which prepared data is kept cannot be made or written.

## MD150 weights-missing
The folder of `model.name_or_path` lacks weights of the model. `transformers` would draw them at random with a warning,
and training would start from a model that is partly noise.

## MD151 weights-of-another-shape
Tensors of the weights have not the shape that `config.json` gives them: the two do not belong together.

## MD152 pattern-that-fits-nothing
A pattern of `model.freeze` or `model.train_only` fits no parameter of the model, so that something else would be
trained than was meant. Patterns are globs over whole names; `*` stands for any text, dots included.

## MD153 nothing-to-train
Every parameter is frozen.

## MD154 peft-missing
`model.lora` needs the package `peft`, which is not installed where the ranks run.

## MD155 adapters-not-possible
`peft` refuses `model.lora` for this model: most often `target_modules` names none of its modules, or is left out for a
type of model whose usual targets `peft` does not know.

## MD156 no-recomputation
The model's class has no layers that `transformers` can compute anew in the backward pass.

## MD157 code-not-allowed
`plugins.file` names code, and code runs only if whoever starts the run allows it: `harness launch --allow-local-code`
tells the ranks the sha256 of the file. A file that was changed since, or differs on another host, is refused too.

## MD158 plug-in-not-usable
The file of `plugins.file` cannot be read, fails when it is run, has none of the functions that are looked for, or one
of them returns something else than it should.

## MD159 compiler-backend
torch has no compiler backend of that name, or DeepCompile cannot be used on this kind of device.
## OP101 no-optimizer
The rendered DeepSpeed JSON has no optimizer.

## OP110 decay-that-does-not-fit
Warm-up and decay of `warmup_stable_decay` take more steps than the run has.

## OP111 step-that-is-not-a-number
The loss or the gradient of a step has a NaN or an infinity, and `train.on_nonfinite` is `stop`. The step changed no
weight. The rows are counted in the order in which `train.seed` draws them; with `checkpoint.save_at_end` the run is
saved, and a resume goes on behind them.

## OP112 too-many-skipped-steps
As many steps had a NaN or an infinity as `train.max_skipped_steps` or `train.max_consecutive_skipped_steps` allows.

## OP113 weights-that-are-not-numbers
A step was taken with a loss that is NaN or infinite, which only happens where DeepSpeed's own check is off.

## OP120 disk-not-measured
`harness doctor --tune-nvme` could not measure the disk: no room, no DeepSpeed, or its `async_io` does not build.
"""
