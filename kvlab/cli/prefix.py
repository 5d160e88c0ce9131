"""`kvlab prefix`: read a text once, keep it compressed in a file, and ask it many questions."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError
from rich.table import Table
from typer.core import TyperGroup

from kvlab.cli.options.model import CacheDir, Device, ModelOptions
from kvlab.cli.options.prompt import PromptOptions
from kvlab.cli.options.signature import Setting, group_parameters, with_plugins
from kvlab.common.formatting import format_bytes, model_title
from kvlab.common.terminal import print_wide
from kvlab.core import UserError, as_option, in_one_sentence
from kvlab.requests.compare import ModelRequest

if TYPE_CHECKING:
    from kvlab.engine.prefix import Prefix
    from kvlab.library.prefixes import LayerTable, PrefixFile


class PrefixGroup(TyperGroup):
    """The commands, with `show NAME` as another name of `ls NAME`."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return super().get_command(ctx, "ls" if cmd_name == "show" else cmd_name)


prefix_commands = typer.Typer(
    cls=PrefixGroup,
    help="Read a text once, keep it compressed in a file, and ask it many questions.",
    no_args_is_help=True,
)
Root = Annotated[Path, typer.Option("--runs", help="the folder of runs, next to which prefixes are stored")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="a name from `kvlab prefix ls`")]
Json = Annotated[bool, typer.Option("--json", help="print as JSON")]
ModelHere = Annotated[
    str, typer.Option("--model", help="where the model is now, if not where it was when the prefix was made")
]
RUNS = Path("runs")


@group_parameters
def make(
    name: Annotated[str, typer.Argument(metavar="NAME", help="letters, digits, dots, dashes and underscores")],
    *,
    text: PromptOptions,
    model: ModelOptions,
    method: Annotated[str, typer.Option(help="such as snapkv, or keepkv:preset=paper")] = "snapkv",
    budget: Annotated[str, typer.Option(help="a fraction of the text, slots per KV head, or bytes")] = "0.2",
    title: Annotated[str, typer.Option(help="a name in lists; default: the text's first words")] = "",
    seed: Annotated[int, typer.Option(help="seed of random methods")] = 0,
    compress_every: Annotated[int, Setting("decode steps between decisions")] = 1,
    prefill_chunk: Annotated[int | None, Setting("tokens read at once, for less memory")] = None,
    base: Annotated[
        str, typer.Option("--from", metavar="OLD", help="start from this prefix: read the text on top, or copy it")
    ] = "",
    replace: Annotated[bool, typer.Option("--replace", help="overwrite a prefix of this name")] = False,
    root: Root = RUNS,
) -> None:
    """Read a text, compress it, and keep the result under a name.

    With --from OLD the text is read on top of that prefix, as a further turn of a conversation is; OLD stays as it is,
    unless it has the same name.
    """
    from kvlab.core.budget import Budget
    from kvlab.core.method_spec import parse_spec
    from kvlab.core.methods.spec import parse_choices
    from kvlab.engine.prefix import Prefix
    from kvlab.library.prefixes import free_path, prefix_path, recorded_loading
    from kvlab.models.load import held_model
    from kvlab.tasks.shipped_samples import shipped_sample

    path = prefix_path(root, name) if replace or base == name else free_path(root, name)
    if base and not text.given:
        from kvlab.library.prefixes import fork_prefix

        copy = fork_prefix(root, base, path.stem)
        typer.echo(f"{copy.name} is a copy of {base}, {format_bytes(copy.bytes)}.")
        return
    if base:
        more = text.read()
        place = "" if model.model == ModelOptions.model else model.model
        _, made = _opened(root, base, place, model.device, model.cache_dir)
        before = made.header.tokens
        begun = time.perf_counter()
        made.extend(more)
        seconds = time.perf_counter() - begun
        made.save(path)
        _report(made, path, f"{made.header.tokens - before:,} more read in {seconds:.1f} s")
        return
    context = text.read()
    if text.sample is not None:  # its question is asked later
        context = shipped_sample(Path(text.sample).stem).context
    parse_choices(method, budget)  # an unknown method or a wrong budget ends here, before the model is loaded
    chosen, values = parse_spec(method)
    request = _request(**asdict(model))
    made = Prefix.make(
        held_model(request),
        context,
        chosen,
        Budget.parse(budget).amount,
        title=title,
        seed=seed,
        chat=request.chat,
        system=request.system,
        thinking=request.thinking,
        compress_every=compress_every,
        prefill_chunk=prefill_chunk,
        loading=recorded_loading(request),
        **values,
    )
    made.save(path)
    _report(made, path, f"read and compressed in {made.header.seconds:.1f} s")


def list_prefixes(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="show this one; default: list all")] = "",
    root: Root = RUNS,
    text: Annotated[bool, typer.Option("--text", help="of one: print what it read, questions and answers too")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="of one: verify every checksum")] = False,
    as_json: Json = False,
) -> None:
    """List prefixes, newest first; or show how one was made, and the memory of its layers."""
    from kvlab.library import prefixes

    if name:
        file = prefixes.find_prefix(root, name)
        if verify:
            prefixes.check_tensors(file)
        if text:
            for part in prefixes.read_texts(file):
                typer.echo(f"[{part.kind}]\n{part.text}\n")
        elif as_json:
            layers = [layer.model_dump() for layer in file.header.layers]
            typer.echo(json.dumps(_as_data(file) | {"layers": layers}, indent=2))
        else:
            _show(file)
        if verify:
            typer.echo(f"All {len(file.sums)} checksums are right.", err=True)
        return
    found, problems = prefixes.list_prefixes(root)
    if as_json:
        typer.echo(json.dumps([_as_data(file) for file in found], indent=2))
    else:
        table = Table("name", "model", "method", "tokens", "in memory", "on disk", "made", "title")
        for file in found:
            head = file.header
            sizes = format_bytes(head.allocated_bytes), format_bytes(file.bytes)
            row = file.name, model_title(head.model.name), head.choice.label, f"{head.tokens:,}", *sizes
            table.add_row(*row, head.created[:16].replace("T", " "), head.title)
        print_wide(table)
        typer.echo(
            "Ask one: kvlab prefix ask NAME QUESTION" if found else "Nothing is kept yet: kvlab prefix make NAME"
        )
    for problem in problems:
        typer.echo(f"Not listed: {problem}", err=True)


@group_parameters
def ask(
    name: Name,
    questions: Annotated[list[str], typer.Argument(metavar="QUESTION...", help="several are asked one by one")],
    new_tokens: Annotated[int, typer.Option(min=1, help="most tokens of an answer")] = 128,
    keep: Annotated[
        bool, typer.Option("--keep", help="keep questions and answers in the prefix: the next one continues them")
    ] = False,
    model: ModelHere = "",
    device: Device = "auto",
    cache_dir: CacheDir = None,
    root: Root = RUNS,
    as_json: Json = False,
) -> None:
    """Ask questions about a prefix; each meets the text alone and leaves the prefix as it was, unless kept."""
    path, made = _opened(root, name, model, device, cache_dir)
    for question in questions:
        begun = time.perf_counter()
        answer = made.ask(question, new_tokens, keep=keep)
        seconds = time.perf_counter() - begun
        if as_json:
            row = {"question": question, "answer": answer.text, "ended": answer.ended, "seconds": round(seconds, 3)}
            typer.echo(json.dumps(row, ensure_ascii=False))
        else:
            typer.echo(answer.text)
            typer.echo(f"{len(answer.token_ids)} tokens in {seconds:.1f} s, {answer.ended}", err=True)
        if keep:
            made.save(path)


def remove(
    names: Annotated[list[str], typer.Argument(metavar="NAME...")],
    root: Root = RUNS,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
) -> None:
    """Remove prefixes for good."""
    from kvlab.library.prefixes import find_prefix, prefix_path, remove_prefixes

    missing = [name for name in names if not prefix_path(root, name).is_file()]
    if missing:
        find_prefix(root, missing[0])  # raises
    sizes = [prefix_path(root, name).stat().st_size for name in names]
    if not yes and not typer.confirm(f"Remove {', '.join(names)} ({format_bytes(sum(sizes))}) for good?"):
        raise UserError("Nothing was removed.")
    remove_prefixes(root, names)
    typer.echo(f"{format_bytes(sum(sizes))} freed.")


prefix_commands.command("make")(with_plugins(make))
prefix_commands.command("ls")(list_prefixes)
prefix_commands.command("ask")(with_plugins(ask))
prefix_commands.command("rm")(remove)


def _opened(root: Path, name: str, model: str, device: str, cache_dir: str | None) -> tuple[Path, Prefix]:
    """The path of a prefix, and the prefix with its model loaded as it was."""
    from kvlab.engine.prefix import Prefix
    from kvlab.library.prefixes import find_prefix, loaded_as
    from kvlab.models.load import held_model

    file = find_prefix(root, name)
    loaded = held_model(_request(**loaded_as(file.header, model, device, cache_dir)))
    begun = time.perf_counter()
    made = Prefix.load(file.path, loaded)
    typer.echo(f"{made.header.tokens:,} tokens opened in {1000 * (time.perf_counter() - begun):.0f} ms", err=True)
    return file.path, made


def _request(**fields: Any) -> ModelRequest:
    try:
        return ModelRequest(**fields)
    except ValidationError as error:
        raise UserError(in_one_sentence(error, as_option)) from None


def _report(made: Prefix, path: Path, how: str) -> None:
    head = made.header
    size = path.stat().st_size
    typer.echo(f"{head.tokens:,} tokens, {how}; {format_bytes(size)} in {path}")
    typer.echo(f"Ask it: kvlab prefix ask {path.stem} QUESTION", err=True)


def _as_data(file: PrefixFile) -> dict[str, Any]:
    sizes = {"live_bytes": file.header.live_bytes, "allocated_bytes": file.header.allocated_bytes}
    return {"name": file.name, **file.header.model_dump(mode="json", exclude={"layers"}), **sizes, "bytes": file.bytes}


def _show(file: PrefixFile) -> None:
    head = file.header
    model = file.header.model
    settings = ", ".join(f"{name}={value}" for name, value in head.settings.items()) or "none"
    often = head.compress_every
    later = head.tokens > head.context_tokens
    packages = ", ".join(f"{name} {head.versions.get(name)}" for name in ("kvlab", "torch", "transformers"))
    chat = "no" if head.chat == "no" else f"{head.chat}{f', system prompt {head.system[:60]!r}' if head.system else ''}"
    rows = {
        "title": head.title,
        "tokens": f"{head.tokens:,}" + (f", {head.context_tokens:,} of them the first text" if later else ""),
        "SHA-256 of that text": head.text_sha256,
        "questions kept": str(head.questions),
        "method": f"{head.choice.label}{f', from {head.origin}' if head.origin else ''}",
        "settings": f"{settings}; seed {head.seed}" + (f", a decision every {often} steps" if often > 1 else ""),
        "store": head.store,
        "model": f"{model_title(model.name)}, weights {model.digest}, {model.dtype} on {model.device}",
        "rope": json.dumps(model.shape.get("rope_parameters")),
        "tokenizer and template": model.tokenizer,
        "chat template": chat,
        "read in": f"{head.seconds:.1f} s",
        "made": f"{head.created} by {packages}",
        "file": f"{file.path}, {format_bytes(file.bytes)}",
    }
    for name, value in rows.items():
        typer.echo(f"{name:<23}{value}")
    table = Table("layers", "slots per head", "valid slots", "allocated", "codes", "scales")
    for cells, alike in groupby(head.layers, _cells):
        numbers = [one.layer for one in alike]
        table.add_row("–".join(map(str, dict.fromkeys((numbers[0], numbers[-1])))), *cells)
    table.caption = (
        f"{format_bytes(head.live_bytes)} in valid slots, {format_bytes(head.allocated_bytes)} allocated; "
        f"a full cache: {format_bytes(head.full_bytes)}"
    )
    print_wide(table)


def _cells(layer: LayerTable) -> list[str]:
    """The memory of one layer as shown."""
    packed = [format_bytes(size) if size is not None else "–" for size in (layer.codes_bytes, layer.scales_bytes)]
    return [f"{layer.live_slots:,.1f}", format_bytes(layer.live_bytes), format_bytes(layer.allocated_bytes), *packed]
