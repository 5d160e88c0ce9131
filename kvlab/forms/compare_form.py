"""Build a comparison's request from form input, or raise one sentence that says what is wrong."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kvlab.common.atomic_write import replace_text
from kvlab.core import Amount, Budget, MethodChoice, UserError, in_one_sentence
from kvlab.jobs.batch import repeat_request
from kvlab.models.info.chat_template import ChatFormat
from kvlab.models.info.names import EMBEDDED, check_model, context_length
from kvlab.models.info.token_count import check_prompt, count_tokens
from kvlab.planning import parameters
from kvlab.planning.choices import MethodEntry, methods
from kvlab.planning.parameters import PRESET
from kvlab.requests.compare import CompareRequest
from kvlab.requests.recording import Recording
from kvlab.tasks.haystack import WORDINGS
from kvlab.tasks.shipped_samples import shipped_samples

# The form's choices and their labels; `make_request` accepts the keys.
DEVICES = ("auto", "cpu", "cuda", *(f"cuda:{number}" for number in range(8)), "mps")
PLACEMENTS: dict[str, tuple[str, dict[str, str]]] = {
    "device": ("Device", {name: name for name in DEVICES}),
    "placement": ("Placement", {"single": "one device", "auto": "spread over all devices"}),
    "dtype": ("Number format", {name: name for name in ("auto", "float32", "bfloat16", "float16")}),
    "weights": ("Weights", {"none": "as they are", "bf16": "bf16", "8bit": "8 bit", "4bit": "4 bit"}),
}
CHATS = {"auto": "the model's own, if it has one", "no": "none: plain text"}
FORM_WORDS: dict[Any, Any] = {"none": None, "template": None, "yes": True, "no": False}
THINKING = {"template": "as the template has it", "yes": "on", "no": "off"}
LAST_FORM = "last_form.json"  # in the queue's folder
SAMPLE_METHODS = ("full", "streaming-llm", "h2o", "snapkv", "zsmerge", "keepkv")


def parse_budgets(text: str) -> list[Amount]:
    """The budgets in a comma- or space-separated list, without duplicates, in order.

    Raises UserError if the list is empty or holds something that is no budget.
    """
    words = text.replace(",", " ").replace(";", " ").replace(" %", "%").replace("% B", "%B").split()
    if not words:
        raise UserError(
            "Give at least one budget: a fraction of the prompt such as 0.2, slots such as 128, or bytes such as 10%B."
        )
    amounts = [Budget.parse(word).amount for word in words]
    return [
        amount
        for number, amount in enumerate(amounts)
        if not any(amount == other and type(amount) is type(other) for other in amounts[:number])
    ]


def budget_notes(budgets: Sequence[Amount], prompt_tokens: int) -> list[str]:
    """One sentence for each budget that may not do what the user expects."""
    notes = []
    for budget in budgets:
        if isinstance(budget, int) and budget >= prompt_tokens:
            notes.append(
                f"{budget:,} slots hold the whole prompt ({prompt_tokens:,} tokens): nothing in it is dropped."
            )
        elif isinstance(budget, int) and budget == 1:
            notes.append("1 means one slot per KV head; write 1.0 or 100% for the whole prompt.")
        elif budget == 1:
            notes.append("A budget of 100 % means that nothing is dropped: useful as a check against the full cache.")
    return notes


def choices(
    entries: Sequence[MethodEntry],
    budgets: Sequence[Amount],
    hyper_parameters: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[MethodChoice, ...]:
    """Every method at every budget; a method that drops nothing or finds its own budget comes once."""
    if not entries:
        raise UserError("Choose at least one method.")
    changed = {entry.name: dict((hyper_parameters or {}).get(entry.name, {})) for entry in entries}
    without = []
    for entry in entries:
        # A preset says whether it needs a budget; with other changed settings the method does.
        preset = entry.presets.get(str(changed[entry.name].get(PRESET, "")))
        needs_budget = entry.needs_budget if preset is None or len(changed[entry.name]) > 1 else preset.needs_budget
        if not needs_budget:
            without.append(entry)
    return (
        *(MethodChoice(method=entry.name, budget=1.0, hyper_parameters=changed[entry.name]) for entry in without),
        *(
            MethodChoice(method=entry.name, budget=budget, hyper_parameters=changed[entry.name])
            for entry in entries
            if entry not in without
            for budget in budgets
        ),
    )


def choices_of_form(
    chosen: Sequence[MethodEntry], typed: Mapping[str, Mapping[str, Any]], budgets: str
) -> tuple[MethodChoice, ...]:
    """The choices of the form: methods with their changed settings, at every typed budget."""
    changed = {entry.name: parameters.changed_values(entry, typed.get(entry.name, {})) for entry in chosen}
    return choices(chosen, parse_budgets(budgets), changed)


def build(
    question: Mapping[str, Any],
    model: str,
    chosen: Sequence[MethodEntry],
    typed: Mapping[str, Mapping[str, Any]],
    budgets: str,
    options: Mapping[str, Any],
) -> CompareRequest:
    """The request of a whole form; `question` holds the fields of its prompt. Raises as `make_request`."""
    choices = choices_of_form(chosen, typed, budgets)
    return make_request(model=model, chosen=choices, **question, **options)


def make_request(prompt: str, model: str, chosen: tuple[MethodChoice, ...], **options: Any) -> CompareRequest:
    """A validated request; `options` are further fields of `CompareRequest`, or the form's values for them.

    Of several `prompts` among them the first is `prompt`. Raises UserError if the prompt, the model or an option is
    invalid.
    """
    try:
        fields = request_fields(options)
        request = CompareRequest(prompt=check_prompt(prompt), model=check_model(model), choices=chosen, **fields)
        # Checked are the only prompt, the longest of several, or repeats with different wordings.
        comparisons = [request]
        if request.is_batch and request.prompts:
            longest = max(range(len(request.prompts)), key=lambda place: len(request.prompts[place].prompt))
            comparisons = [repeat_request(request, "-", longest + 1)]
        elif request.is_batch:
            wordings = min(len(request.repeats), WORDINGS)
            comparisons = [repeat_request(request, "-", number) for number in range(1, 1 + wordings)]
        for comparison in comparisons:
            named = comparison.repeat.description if comparison.repeat else ""
            check_fits(comparison.prompt, ChatFormat.from_request(comparison), request.max_new_tokens, named)
        return request
    except ValidationError as error:
        raise UserError(in_one_sentence(error)) from error


def request_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """Request fields from the form's values. Raises UserError if `record` cannot be parsed."""
    chosen = {name: options[name] for name in ("weights", "thinking") if name in options}
    fields = {name: FORM_WORDS.get(value, value) for name, value in chosen.items()}
    if isinstance(options.get("record"), str):
        fields["record"] = Recording.parse(options["record"])
    return dict(options) | fields


def check_fits(prompt: str, how: ChatFormat, max_new_tokens: int, named: str = "") -> None:
    """Check, without loading the model, that the prompt fits its context window; `named` identifies the prompt.

    Raises UserError if prompt and new tokens exceed the context window, or the chat template refuses the prompt.
    """
    count, exact = count_tokens(prompt, how)
    if exact and (
        why := too_long_message(how.model, count, max_new_tokens, f"The prompt {named}" if named else "The prompt")
    ):
        raise UserError(why)


def too_long_message(model: str, count: int, max_new_tokens: int, which: str = "The prompt") -> str:
    """Why a prompt of `count` tokens exceeds the context window; empty if it fits or the window is unknown."""
    window = context_length(model)
    if window is None or count + max_new_tokens <= window:
        return ""
    return (
        f"{which} has {count:,} tokens and {max_new_tokens:,} are to be generated, but the context window of {model} "
        f"is {window:,}: shorten the prompt to at most {max(window - max_new_tokens, 0):,} tokens."
    )


def sample_request() -> CompareRequest:
    """The comparison behind "try the sample prompt": the first sample that fits mini, under the best-known methods.

    Raises UserError if the samples or the list of methods cannot be read.
    """
    sample = shipped_samples()[0]
    for one in shipped_samples():
        with contextlib.suppress(UserError):
            check_fits(one.text, ChatFormat(EMBEDDED), one.max_new_tokens)
            sample = one
            break
    registered = {entry.name: entry for entry in methods()}
    entries = [registered[name] for name in SAMPLE_METHODS if name in registered]
    chosen = choices(entries, [sample.suggested_budget])
    return make_request(
        sample.text,
        EMBEDDED,
        chosen,
        max_new_tokens=sample.max_new_tokens,
        title=sample.title,
        answer=sample.answer,
        facts=sample.facts,
    )


def store_last_form(root: Path, model: str, options: Mapping[str, object]) -> None:
    """Store the form's model and placement; if the disk is full or read-only, the previous ones stay."""
    fields = {"model": model.strip()} | {name: str(options[name]) for name in PLACEMENTS if name in options}
    with contextlib.suppress(UserError, OSError):
        replace_text(root / ".jobs" / LAST_FORM, json.dumps(fields))


def last_form(root: Path) -> dict[str, str]:
    """The last form's fields by name, without those that are no longer valid."""
    try:
        stored = json.loads((root / ".jobs" / LAST_FORM).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    fields = {name: str(value) for name, value in stored.items()} if isinstance(stored, dict) else {}
    valid = {name: fields[name] for name, (_, kinds) in PLACEMENTS.items() if fields.get(name) in kinds}
    with contextlib.suppress(UserError):
        valid["model"] = check_model(fields.get("model", ""))
    return valid
