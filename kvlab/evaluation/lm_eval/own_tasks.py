"""Export kvlab's own prompts as lm-eval tasks: a folder of JSON lines and YAML that works without a network.

`kvlab_few_shot` and `kvlab_needle` are multiple choice. In `kvlab_few_shot_text` the model generates the labels of the
same prompts, which with `--set hold_back=1` equals `kvlab eval --tasks few_shot`. Run as
`python -m kvlab.evaluation.lm_eval.own_tasks FOLDER --model mini --length 256 --samples 40`.
"""

import argparse
import json
import re
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from kvlab.tasks.registry import get_task
from kvlab.tasks.sample import sample_random

NEEDLE_CHOICES = 4  # numbers to choose from, one of which is in the story

_HEAD = """\
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
doc_to_text: text
num_fewshot: 0
"""
_CHOOSE = """\
output_type: multiple_choice
doc_to_choice: choices
doc_to_target: label
metric_list:
  - metric: acc
"""
_WRITE = """\
output_type: generate_until
doc_to_target: answer
generation_kwargs:
  until: ["\\n"]
  max_gen_toks: 16
  do_sample: false
filter_list:
  - name: stripped
    filter:
      - function: remove_whitespace
      - function: take_first
metric_list:
  - metric: exact_match
    ignore_case: true
    ignore_punctuation: true
"""


def write_tasks(folder: Path, tokenizer: PreTrainedTokenizerBase, length: int, samples: int, seed: int = 0) -> None:
    """Write the tasks with the prompts that `kvlab eval` uses for this length (in tokens) and seed.

    Raises UserError for a length that is too short for a task.
    """
    folder.mkdir(parents=True, exist_ok=True)
    yaml = {"few_shot": _CHOOSE, "few_shot_text": _WRITE, "needle": _CHOOSE}
    for name in ("few_shot", "needle"):
        lines = []
        for index in range(samples):
            sample = get_task(name).generate(tokenizer, length, seed, index)
            answer = sample.answers[0]
            if name == "few_shot":
                choices = sorted(set(re.findall(r"-> (\S+)", str(sample.meta["block"]))))
            else:
                # The right number among others with as many digits.
                random = sample_random("needle", sample.length, sample.seed, sample.index)
                numbers = {answer}
                while len(numbers) < NEEDLE_CHOICES:
                    numbers.add(str(random.randrange(10 ** (len(answer) - 1), 10 ** len(answer))))
                choices = sorted(numbers)
            # lm-eval puts a space before each choice; a second one would be a token of its own.
            text = sample.context + sample.question
            document = {"text": text, "choices": choices, "label": choices.index(answer), "answer": answer}
            lines.append(json.dumps(document) + "\n")
        data = folder / f"kvlab_{name}.jsonl"
        data.write_text("".join(lines), encoding="utf-8")
        for task in [task for task in yaml if task.startswith(name)]:
            head = _HEAD.format(name=f"kvlab_{task}", data=data.resolve())
            (folder / f"kvlab_{task}.yaml").write_text(head + yaml[task], encoding="utf-8")


def main() -> None:
    """Run the command line."""
    from kvlab.models.load import load_model

    parser = argparse.ArgumentParser(description="Export kvlab's own prompts as lm-eval tasks.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="mini", help="model whose tokenizer measures the length")
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--samples", type=int, default=40)
    options = parser.parse_args()
    write_tasks(options.folder, load_model(options.model, device="cpu").tokenizer, options.length, options.samples)


if __name__ == "__main__":
    main()
