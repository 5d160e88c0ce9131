"""`kvlab eval`: evaluate methods and budgets on tasks; one Parquet row per sample, a table with intervals."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from kvlab.cli.options.model import ModelOptions
from kvlab.cli.options.plan_check import Force, check_fits
from kvlab.cli.options.signature import Setting, group_parameters
from kvlab.cli.options.tables import SUMMARY_WIDTH, as_table, frame_of, print_summary
from kvlab.common.terminal import print_wide, standard_error
from kvlab.core import MethodChoice, UserError, parse_spec, split_list
from kvlab.evaluation.request import EvalJob

QUESTIONS = "questions.jsonl"  # in the folder of results: the questions with the prefix's text


@dataclass(frozen=True)
class PrefixOptions:
    """Whether contexts are kept, and which kept ones are asked what."""

    keep_prefixes: Annotated[
        bool, Setting("yes to keep compressed contexts and open them next time (--question-aware no)")
    ] = False
    prefix: Annotated[
        str | None, typer.Option(help="names from `kvlab prefix ls`, of one text, to ask --questions")
    ] = None
    questions: Annotated[
        Path | None, typer.Option(help="a table of questions and answers: JSON lines, JSON, CSV or Parquet")
    ] = None
    runs: Annotated[Path, typer.Option(help="the folder of runs, next to which prefixes are stored")] = Path("runs")

    def asked(self, out: Path) -> dict[str, Any]:
        """Fields of the request that asks the named prefixes: model, methods and the questions, as a file in `out`.

        Empty without `prefix`. Raises UserError for prefixes of several texts or models, one that holds more than its
        text, and a file without questions.
        """
        if (self.prefix is None) != (self.questions is None):
            raise UserError("--prefix NAME and --questions FILE belong together: give both.")
        if self.prefix is None or self.questions is None:
            return {}
        from kvlab.evaluation.request import FileChoice
        from kvlab.library.prefixes import find_prefix, loaded_as, read_texts

        files = [find_prefix(self.runs, name) for name in split_list(self.prefix)]
        heads = [file.header for file in files]
        same = {(one.text_sha256, one.model.digest, one.chat, one.system, one.thinking) for one in heads}
        if len(same) != 1 or any(one.tokens != one.context_tokens for one in heads):
            raise UserError("--prefix takes prefixes of one text, model and chat template that hold nothing else.")
        (text,) = read_texts(files[0])
        out.mkdir(parents=True, exist_ok=True)
        written = out / QUESTIONS
        # The rows of a file as JSON lines with the context.
        questions = self.questions
        from kvlab.core.validation import read_file
        from kvlab.tasks.rows import read_rows

        lines = []
        for row in read_rows(str(questions), read_file(questions, "The file of questions", 2**28)):
            value = {"question": row.value} if isinstance(row.value, str) else row.value
            if row.problem or not isinstance(value, dict) or not str(value.get("question") or "").strip():
                raise UserError(
                    f"{questions}:{row.number} has no question: give rows with the columns question and answer."
                )
            lines.append(json.dumps({**value, "context": text.text}, ensure_ascii=False, default=str))
        if not lines:
            raise UserError(f"{questions} has no question: give columns question and answer.")
        written.write_text("\n".join(lines) + "\n", encoding="utf-8")
        placed = loaded_as(heads[0]) | heads[0].model_dump(include={"chat", "system", "thinking"})
        choices = tuple(one.choice for one in heads)
        return {**placed, "choices": choices, "files": (FileChoice(form="prompts", path=written),), "tasks": ()}


DEFAULT_TASKS = "needle,needle_multikey,key_value,few_shot"
DEFAULT_METHODS = "streaming-llm,h2o,snapkv,keepkv"
DEFAULT_BUDGETS = "0.1,0.2,0.4"  # at 0.05 nearly all scores are 0, at 0.5 eviction is near the full cache


@dataclass(frozen=True)
class ReadingOptions:
    """How prompts of files and tasks are read."""

    max_prompt: Annotated[int | None, Setting("tokens allowed per prompt of files, by default the window")] = None
    cut: Annotated[str, Setting("part cut from longer prompts of files, start, middle (LongBench) or end")] = "middle"
    style: Annotated[
        str, Setting("how tasks ask, continuation, chat, question, or auto for chat if the model has a template")
    ] = "auto"
    skip_malformed: Annotated[bool, Setting("yes to skip malformed lines of files")] = False
    batch: Annotated[int | None, Setting("batch size, of prompts of equal length")] = None
    prefill_chunk: Annotated[
        int | None, Setting("prefill prompts in chunks of N tokens; an error for methods this would change")
    ] = None

    @property
    def fields(self) -> dict[str, Any]:
        """The request's fields. Raises UserError for an unknown cut or style."""
        from kvlab.evaluation.request_parser import parse_word

        return {
            "max_prompt": self.max_prompt,
            "cut": parse_word("cut", self.cut),
            "style": parse_word("style", self.style),
            "skip_malformed": self.skip_malformed,
            "batch_rows": self.batch,
            "prefill_chunk": self.prefill_chunk,
        }


@group_parameters
def evaluate(
    out: Annotated[
        Path | None,
        typer.Option(help="folder of results, from which a killed evaluation resumes; the atlas reads runs/eval/NAME"),
    ] = None,
    tasks: Annotated[
        str, typer.Option(help="such as needle,key_value:pairs=64; 'all'; '' for only --data")
    ] = DEFAULT_TASKS,
    methods: Annotated[str, typer.Option(help="such as h2o,keepkv:preset=paper")] = DEFAULT_METHODS,
    budgets: Annotated[str, typer.Option(help="fractions of the prompt, or slots per KV head")] = DEFAULT_BUDGETS,
    lengths: Annotated[str | None, typer.Option(help="tokens, such as 512,2048; default: each task's own")] = None,
    depths: Annotated[str | None, typer.Option(help="such as 0,0.5,1; default: random per sample")] = None,
    samples: Annotated[int, typer.Option(help="prompts for each task, length and depth")] = 20,
    seed: Annotated[int, typer.Option(help="0 to 9,999,999")] = 0,
    question_aware: Annotated[str, typer.Option(help="compress with the question visible: yes or no")] = "yes",
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="your own file, such as ruler=niah/validation.jsonl or gsm8k=test.jsonl:shots_from=train.jsonl"
        ),
    ] = None,
    new_tokens: Annotated[
        int | None, typer.Option(help="tokens per answer for prompts of files; default: the benchmark's")
    ] = None,
    forced: Annotated[
        bool, typer.Option("--forced", help="measure KL on the text that the full cache writes, not scored answers")
    ] = False,
    *,
    loading: ModelOptions,
    reading: ReadingOptions,
    kept: PrefixOptions,
    preset: Annotated[
        str,
        typer.Option(
            help="reasoning: methods that compress while generating, on traced answers, --budgets in slots; or "
            "reproduce a paper's table from files in --data DIR, such as keepkv-table2"
        ),
    ] = "",
    shard: Annotated[
        str, typer.Option(help="measure a part alone, such as 3/8; any number of parts may share --out at once")
    ] = "",
    on: Annotated[
        str, typer.Option(help="measure all parts as Ray tasks: ray, or ray:parts=16:address=auto (parts: 8)")
    ] = "",
    force: Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the summary as JSON")] = False,
) -> None:
    """Score compressed caches against the full cache on the same prompts."""
    # Imported here so that `kvlab --help` does not wait for torch.
    from kvlab.core.methods import spec
    from kvlab.evaluation import request_parser
    from kvlab.evaluation.data_check import check_tasks
    from kvlab.evaluation.harness import evaluate as run
    from kvlab.evaluation.job import shown_progress
    from kvlab.evaluation.plan import Shard

    fields: dict[str, Any] = {"samples": samples, "seed": seed, **reading.fields, **asdict(loading)}
    part = Shard.parse(shard) if shard else None
    engine, options = parse_spec(on) if on else ("", {})
    if part or engine:
        _check_in_parts(engine, shard, kept, is_table=preset not in ("", request_parser.REASONING))
    if preset and preset != request_parser.REASONING:
        from kvlab.cli.paper_table import run_paper_table

        changed = {"tasks": tasks != DEFAULT_TASKS, "budgets": budgets != DEFAULT_BUDGETS, "forced": forced}
        for option, is_changed in changed.items():
            if is_changed:
                raise UserError(f"--preset {preset} defines the experiment: leave out --{option}.")
        run_paper_table(
            preset,
            data or [],
            out,
            "" if methods == DEFAULT_METHODS else methods,
            as_json,
            lengths=request_parser.parse_numbers(lengths, "--lengths", int),
            depths=request_parser.parse_numbers(depths, "--depths", float),
            question_aware=request_parser.parse_yes_no(question_aware, "--question-aware"),
            new_tokens=new_tokens,
            force=force,
            **fields,
        )
        return
    if out is None:
        raise UserError("Name a folder for the results: --out runs/eval/NAME.")
    asked = kept.asked(out)
    errors = standard_error()
    choices: tuple[MethodChoice, ...] = ()
    if preset:
        tasks = request_parser.REASONING_TASKS if tasks == DEFAULT_TASKS else tasks
        choices, notes = request_parser.reasoning_choices(
            loading.model,
            request_parser.REASONING_SLOTS if budgets == DEFAULT_BUDGETS else budgets,
            "" if methods == DEFAULT_METHODS else methods,
        )
        for note in notes:
            errors.print(note)
    request = request_parser.parse_request(
        tasks=DEFAULT_TASKS if asked else tasks,
        files=[file if new_tokens is None else f"{file}:max_new_tokens={new_tokens}" for file in data or []],
        methods=methods,
        budgets=budgets,
        lengths=lengths,
        depths=depths,
        question_aware="no" if asked else question_aware,
        forced=forced,
        **fields,
    ).model_copy(update=asked | ({"choices": choices} if choices else {}))
    if note := spec.unused_byte_budgets(methods, budgets):
        errors.print(note)
    if not force and not engine:  # the memory of other machines is not known
        check_fits(EvalJob(name="request", request=request))
    check_tasks(request)
    if engine == "ray":
        from kvlab.evaluation.shards import measure_on_ray

        parts = options.pop("parts", 8)
        if not isinstance(parts, int) or not 1 <= parts < 1_000_000:
            raise UserError(f"--on ray:parts=N takes a number of parts, not {parts}.")
        result = measure_on_ray(request, out, parts, options, errors.print)
    else:
        prefixes = kept.runs if kept.keep_prefixes or kept.prefix else None
        with shown_progress(errors) as listener:
            result = run(request, out, on_progress=listener, prefixes=prefixes, shard=part)
    for note in result.notes:
        errors.print(note)
    if part:
        errors.print(f"Part {part}: {len(result.rows)} rows are in {out}.", soft_wrap=True)
        return
    print_summary(result.rows, result.notes, out, as_json, bool(request.depths))
    if preset and not as_json:
        print_wide(as_table(frame_of(result.rows, "reasoning"), "reasoning"), SUMMARY_WIDTH)


def _check_in_parts(engine: str, shard: str, kept: PrefixOptions, is_table: bool) -> None:
    """Raise UserError for an unknown engine, and for options that need the whole evaluation in one process."""
    if engine not in ("", "ray"):
        raise UserError(f"--on takes ray, not {engine!r}.")
    if engine and shard:
        raise UserError("--on starts every part: leave out --shard.")
    whole = {"--set keep_prefixes": kept.keep_prefixes, "--prefix": kept.prefix, "--preset": is_table}
    for option, value in whole.items():
        if value:
            raise UserError(f"{option} needs the whole evaluation in one process: leave out --shard and --on.")
