"""What a live session is asked to do, as a queued job. Torch-free: pages create these."""

from collections.abc import Collection
from typing import Annotated, Literal

from pydantic import AliasChoices, BeforeValidator, Field, model_validator

from kvlab.core import FULL, MethodChoice, Restore, RestoreKind, Strict, Text, UserError, token_words
from kvlab.requests.compare import LARGEST_PROMPT_BYTES, LOADING, CompareRequest, ModelRequest, run_id_of

Edit = Literal["keep", "drop", "merge"]
KINDS: dict[Edit, RestoreKind] = {"keep": "tokens", "drop": "drop", "merge": "merge"}


def edit_tokens(
    choice: MethodChoice, edit: Edit, tokens: Collection[int], head: tuple[int, int] | None = None
) -> MethodChoice:
    """The choice with `tokens` kept, dropped or merged, in every head or in one (layer, head).

    Tokens kept in every head count in the budget; those kept in one head come on top of it. Edits add up; those of one
    head are of one kind. Raises UserError if an edit of one head would replace another one.
    """
    chosen = set(tokens)
    returned = choice.returned
    kept = set(choice.force_keep) - chosen
    if returned is not None and returned.tokens and returned.heads is None:
        left = set(returned.tokens) - chosen
        returned = returned.model_copy(update={"tokens": tuple(sorted(left))}) if left else None
    if edit == "keep" and head is None:
        kept |= chosen
    else:
        # beside those that are changed already
        heads = None if head is None else (head,)
        kind = KINDS[edit]
        if returned is None:
            returned = Restore(kind=kind, tokens=tuple(sorted(chosen)), heads=heads)
        elif (returned.kind, returned.heads) != (kind, heads):
            raise UserError(f"This branch already has the edit “{returned.description}”: undo it first.")
        else:
            returned = returned.model_copy(update={"tokens": tuple(sorted({*returned.tokens, *chosen}))})
    return choice.model_copy(update={"force_keep": tuple(sorted(kept)), "returned": returned})


def without_edits(choice: MethodChoice) -> MethodChoice:
    """The method alone."""
    return choice.model_copy(update={"force_keep": (), "returned": None})


def edit_words(choice: MethodChoice) -> str:
    """What was edited, such as `keeps tokens 738-742; without token 12`; empty without edits."""
    kept = [f"keeps {token_words(choice.force_keep)}"] if choice.force_keep else []
    return "; ".join([*kept, *([choice.returned.description] if choice.returned else [])])


MOST_BRANCHES = 5
MOST_NEW_TOKENS = 2048
GAP = "\n\n"  # between a context and its first question
# Jobs called a branch a lane before.
Action = Annotated[
    Literal["start", "ask", "again", "branch", "restart", "heads", "keep"],
    BeforeValidator(lambda action: "branch" if action == "lane" else action),
]
PrefixName = Annotated[str, Field(pattern=r"^\w[\w.-]{0,39}$")]
SessionId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,63}$")]


FIXED = "A kept prefix cannot be compressed in another way: make another with `kvlab prefix make`."
KEPT_ALREADY = "This branch is a kept prefix already: `kvlab prefix make NEW --from NAME` copies it."
EDITED = "A prefix holds no words that were kept, dropped or merged by hand: undo the edits of this branch first."


class LiveRequest(ModelRequest):
    """A context and the branches beside `reference`, which they are compared with.

    With `prefixes`, names of kept prefixes of one text, each of them is a branch and nothing is read: `context` and
    methods are theirs (`kvlab.library.prefixes.live_request`).
    """

    context: Text = Field(min_length=1, max_length=LARGEST_PROMPT_BYTES)
    choices: tuple[MethodChoice, ...] = Field((), max_length=MOST_BRANCHES)
    prefixes: tuple[PrefixName, ...] = Field((), max_length=1 + MOST_BRANCHES)
    reference: MethodChoice = Field(FULL, description="branch 0: the full cache, or the first of the prefixes")
    seed: int = Field(0, ge=0, lt=2**31)

    @property
    def branches(self) -> tuple[MethodChoice, ...]:
        """The methods of all branches."""
        return (self.reference, *self.choices)

    @property
    def has_full_cache(self) -> bool:
        """Whether branch 0 is the full cache."""
        return self.reference.method == FULL.method

    @property
    def why_fixed(self) -> str:
        """Why branches cannot be changed; empty if they can."""
        return FIXED if self.prefixes else ""

    def why_not_kept(self, branch: int) -> str:
        """Why a branch cannot be kept as a prefix; empty if it can."""
        if self.prefixes:
            return KEPT_ALREADY
        choice = self.branches[branch]
        return EDITED if choice.force_keep or choice.returned else ""

    @model_validator(mode="after")
    def _has_branches(self) -> "LiveRequest":
        if self.prefixes:
            if len(self.prefixes) != len(self.branches):
                raise ValueError("every prefix is a branch, and every branch a prefix")
        elif not self.choices:
            raise ValueError("at least 1 method beside the full cache is needed")
        elif self.reference != FULL:
            raise ValueError("branches are compared with the full cache")
        return self


def comparison_of(request: LiveRequest, question: str, max_new_tokens: int) -> CompareRequest:
    """A recorded comparison of all branches over context and question as one prompt: the question is in sight."""
    placed = {name: getattr(request, name) for name in ("model", *LOADING, "chat", "system", "thinking")}
    prompt = f"{request.context}{GAP}{question}" if question else request.context
    return CompareRequest(
        prompt=prompt, choices=request.branches, max_new_tokens=max_new_tokens, seed=request.seed, **placed
    )


def runs_of_branches(request: LiveRequest, recorded: CompareRequest, comparison: str) -> list[str]:
    """Ids of the runs of each branch in a comparison that `comparison_of` has made."""
    first = len(recorded.runs) - len(request.branches)  # after the full cache, where no branch is one
    return [run_id_of(recorded, comparison, first + branch) for branch in range(len(request.branches))]


class LiveJob(Strict):
    """One action in a session, in turn with the other jobs of the queue.

    Every job carries the session's request: a worker that no longer holds the session reads the context again.
    """

    kind: Literal["live"] = "live"
    session: SessionId
    action: Action
    request: LiveRequest
    question: Text = Field("", max_length=LARGEST_PROMPT_BYTES)
    temperature: float = Field(0.0, ge=0, le=10)
    seed: int = Field(0, ge=0, lt=2**31, description="of tokens drawn at a temperature above 0")
    max_new_tokens: int = Field(128, ge=1, le=MOST_NEW_TOKENS)
    turn: int | None = Field(None, ge=0, description="action again: the question that is replaced; none: the last")
    branch: int | None = Field(
        None,
        validation_alias=AliasChoices("branch", "lane"),
        ge=0,
        le=MOST_BRANCHES,
        description="action branch: which one gets `choice`; action heads: whose heads are read; keep: which one",
    )
    name: Literal[""] | PrefixName = Field("", description="action keep: of the new prefix")
    owner: str = Field("", exclude=True, description="whose session it is on a shared server; the queue says it")
    choice: MethodChoice | None = None
    title: Text = ""
    private: bool = Field(True, description="on a shared server, visible only to its owner")

    @model_validator(mode="after")
    def _is_complete(self) -> "LiveJob":
        if self.action in ("ask", "again") and not self.question.strip():
            raise ValueError("the question is empty: type one")
        if self.action == "branch" and (not self.branch or self.choice is None):
            raise ValueError("a branch beside the full cache and its new method are needed")
        if self.action in ("heads", "keep") and self.branch is None:
            raise ValueError("a branch is needed")
        if self.action == "keep" and not self.name:
            raise ValueError("a prefix needs a name")
        return self
