"""A conversation with one model through several caches: all branches answer what is asked about a context read once.

All branches are rows of one batch wherever the model's layers allow it. A branch continues from its own compressed
cache in every turn, so that questions which were not in sight when the context was compressed meet what is left of it.
"""

import copy
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from kvlab.core import FULL, MethodChoice, UserError
from kvlab.core.cache.cache_copy import copy_cache
from kvlab.core.cache.fan_out_cache import shares_passes
from kvlab.core.cache.prompt_pass import PromptPass
from kvlab.engine.forward import end_ids
from kvlab.engine.prefix import Prefix
from kvlab.library.prefixes import find_prefix
from kvlab.live import events
from kvlab.live.answers import Answers, Reference, Sampling
from kvlab.live.branch import ContextMerges, LiveBranch, compress_context, next_logits, read_context
from kvlab.models.chat import Chat, Turns
from kvlab.models.load import LoadedModel
from kvlab.requests.live_session import FIXED, GAP, LiveRequest

MOST_CHECKPOINT_BYTES = 2**30  # of all branches together; older questions are then answered from the context on
MOST_LOGIT_BYTES = 2**26  # of the full cache's answers; beyond it the full cache writes again beside a changed branch
MOST_HELD_BYTES = 2**29  # of the context's pass; beyond it a branch that is changed reads the context again


class LiveSession:
    """Branches over one context; branch 0 is the full cache. Use it from one thread; `stop` may be called from any."""

    def __init__(
        self,
        loaded: LoadedModel,
        context: str,
        choices: Sequence[MethodChoice],
        chat: Chat | None = None,
        seed: int = 0,
    ) -> None:
        """Check the request; nothing is read before `read_context`.

        Raises UserError for an empty context, one that exceeds the model's window, or a method that refuses the model.
        """
        if not context.strip():
            raise UserError("The context is empty: paste some text or choose a file.")
        self.loaded, self.context, self.seed, self.turns = loaded, context, seed, Turns.from_chat(chat)
        self.ids = self.turns.context_ids(loaded, context)
        self._check_window(len(self.ids), "The context")
        self.branches = [LiveBranch.new(loaded, choice, seed, len(self.ids)) for choice in (FULL, *choices)]
        self.prompt_pass = self.branches[0].cache.settings.observer = PromptPass(MOST_HELD_BYTES)
        self.history: list[events.Exchange] = []
        self.read_seconds = 0.0  # to read and compress the context, in all branches
        self.end_ids = end_ids(loaded)
        self.answers = Answers(loaded, self.end_ids, self._number)

    @property
    def choices(self) -> tuple[MethodChoice, ...]:
        """The methods beside the full cache."""
        return tuple(branch.choice for branch in self.branches[1:])

    @property
    def turn(self) -> int:
        """The number of questions that have been answered."""
        return len(self.history)

    def stop(self) -> None:
        """End the answers that are being written, after the present token."""
        self.answers.stopped.set()

    def read_context(self) -> Iterator[events.Event]:
        """Read and compress the context in every branch, once for all that can share the pass."""
        begun = time.perf_counter()
        together = [branch for branch in self.branches if shares_passes(branch.cache)]
        for group in [together, *([branch] for branch in self.branches if branch not in together)]:
            if group:
                read_context(self.loaded, group, self.ids)
        self.read_seconds = time.perf_counter() - begun
        yield events.ContextRead(len(self.ids), self.read_seconds)
        for number in range(len(self.branches)):
            yield self._settled(number)

    def change_branch(self, number: int, choice: MethodChoice) -> Iterator[events.Event]:
        """Give a branch another method, budget or changed tokens: it alone is compressed again.

        `answer_again` then answers what was asked. The context's pass is not repeated where it is still held. Raises
        UserError for the full cache's branch, a token that the context does not have, or a method that refuses the
        model.
        """
        if not 0 < number < len(self.branches):
            raise UserError(f"Choose a branch from 1 to {len(self.branches) - 1}: branch 0 is the full cache.")
        branch = self.branches[number] = LiveBranch.new(self.loaded, choice, self.seed, len(self.ids))
        if self.prompt_pass.serves(branch.cache):
            compress_context(self.loaded, branch, self.prompt_pass, self.branches[0].checkpoints[0].cache, self.ids)
        else:
            read_context(self.loaded, [branch], self.ids)
        yield self._settled(number)

    def answer_again(self, number: int, sampling: Sampling) -> Iterator[events.Event]:
        """Answer all questions again in a branch that was changed; other branches stay as they are.

        For the KL its predictions are compared with the full cache's. Where those are not held, a copy of the full
        cache writes its texts again beside the branch, as long as both texts agree.
        """
        branch = self.branches[number]
        is_held = all(exchange.logits for exchange in self.history)
        full = self.branches[0] if is_held else self.branches[0].fork()
        self.answers.stopped.clear()
        for turn, exchange in enumerate(self.history):
            if branch.failure:
                return
            yield events.QuestionAgain(turn, number, exchange.question)
            known = exchange.answers.get(0, [])
            is_cut = bool(known) and known[-1] not in self.end_ids
            limited = replace(sampling, max_new_tokens=len(known)) if is_cut else sampling
            branch.begin_answer(turn)
            branches = [full, branch] if branch.follows and not is_held else [branch]
            ids = self.turns.question_ids(self.loaded, exchange.question, is_first=turn == 0)
            reference = Reference(full, known, list(exchange.logits) if is_held else [])
            yield from self.answers.write(turn, branches, ids, limited, reference)
            exchange.answers[number] = list(branch.answer)

    def fork(self) -> "LiveSession":
        """Another session over the same compressed context, before its first question."""
        other = copy.copy(self)
        other.branches = [branch.fork() for branch in self.branches]
        other.history = []
        other.answers = Answers(self.loaded, self.end_ids, other._number)
        return other

    def go_back(self, turn: int) -> None:
        """Return to the state before question `turn`, counted from 0: as if the later ones had not been asked.

        Where that state is no longer in memory, earlier questions and answers are read again. Raises UserError for a
        question that was not asked.
        """
        if not 0 <= turn <= self.turn:
            raise UserError(f"Choose a question from 1 to {self.turn}." if self.turn else "Nothing was asked yet.")
        kept = self.history[:turn]
        known = max(number for number in range(turn + 1) if self._has_checkpoint(number))
        for branch in self.branches:
            branch.return_to(known)
        self.history = kept[:known]
        for exchange in kept[known:]:
            self.repeat(exchange)

    def repeat(self, exchange: events.Exchange) -> None:
        """Read a question and the answers that were given to it, token by token, as when they were written."""
        branches = [branch for branch in self.branches if not branch.failure]
        answers = {branch: exchange.answers.get(self._number(branch), []) for branch in branches}
        self._begin(branches)
        ids = self.turns.question_ids(self.loaded, exchange.question, is_first=self.turn == 0)
        next_logits(self.loaded, branches, [ids] * len(branches))
        for index in range(max(map(len, answers.values()))):
            here = {branch: answer[index] for branch, answer in answers.items() if index < len(answer)}
            reading = [branch for branch, token in here.items() if token not in self.end_ids]
            next_logits(self.loaded, reading, [[here[branch]] for branch in reading])
        for branch, answer in answers.items():
            branch.answer = list(answer)
            branch.follows = branch.follows and answer == answers.get(self.branches[0])
        self.history.append(exchange)

    def ask(self, question: str, sampling: Sampling | None = None) -> Iterator[events.Event]:
        """Answer a question in all branches, token by token.

        Raises UserError for an empty question or one that exceeds the model's window.
        """
        sampling = sampling or Sampling()
        if not question.strip():
            raise UserError("The question is empty: type one.")
        ids = self.turns.question_ids(self.loaded, question, is_first=self.turn == 0)
        branches = [branch for branch in self.branches if not branch.failure]
        tokens = max(branch.tokens_seen for branch in branches) + len(ids) + sampling.max_new_tokens
        self._check_window(tokens, "This question")
        self.answers.stopped.clear()
        try:
            self._begin(branches)
            reference = Reference(self.branches[0])
            yield from self.answers.write(self.turn, branches, ids, sampling, reference)
        except Exception:
            self.go_back(self.turn)
            raise
        answers = {self._number(branch): list(branch.answer) for branch in branches}
        # The logits are held if they fit beside those of earlier questions.
        every = [*reference.logits, *(row for exchange in self.history for row in exchange.logits)]
        is_held = sum(row.nbytes for row in every) <= MOST_LOGIT_BYTES
        self.history.append(events.Exchange(question, answers, tuple(reference.logits) if is_held else ()))

    def _begin(self, branches: Sequence[LiveBranch]) -> None:
        """Prepare branches for a question.

        The oldest checkpoints, but for the context's and the newest, are dropped until they take little enough memory.
        """
        for branch in branches:
            branch.begin_answer(self.turn)
        working = [branch for branch in self.branches if not branch.failure]
        sizes = {
            turn: sum(branch.checkpoints[turn].cache.memory().live_bytes for branch in working)
            for turn in range(1, self.turn + 1)
            if self._has_checkpoint(turn)
        }
        for turn in sorted(sizes)[:-1]:
            if sum(sizes.values()) <= MOST_CHECKPOINT_BYTES:
                return
            del sizes[turn]
            for branch in self.branches:
                branch.checkpoints.pop(turn, None)

    def _has_checkpoint(self, turn: int) -> bool:
        return all(turn in branch.checkpoints for branch in self.branches if not branch.failure)

    def _settled(self, number: int) -> events.Event:
        branch = self.branches[number]
        if branch.failure:
            return events.BranchFailed(number, branch.failure)
        return events.BranchSettled(number, branch.choice.label, branch.live_bytes, self.branches[0].live_bytes)

    def _number(self, branch: LiveBranch) -> int:
        return self.branches.index(branch)

    def _check_window(self, tokens: int, what: str) -> None:
        window = getattr(self.loaded.model.config.get_text_config(decoder=True), "max_position_embeddings", None)
        if isinstance(window, int) and tokens > window:
            raise UserError(
                f"{what} needs {tokens:,} tokens, answers included, but the context window of {self.loaded.name} is "
                f"{window:,}: shorten it, or begin a new session."
            )


REPLACED = "A prefix of this session was changed or replaced since it began: begin a new one."


class PrefixSession(LiveSession):
    """Branches over one kept text; texts are compared with those of the first prefix, which may be of any method.

    What a method merged when it compressed the text is not shown: a file does not hold it.
    """

    def __init__(self, prefixes: Sequence[Prefix], seed: int = 0) -> None:
        """`prefixes` are of one model and one text; they stay as they are.

        Raises UserError if their texts or templates differ, or a question was kept in one.
        """
        first = prefixes[0]
        if any(prefix.texts != first.texts or prefix.turns != first.turns for prefix in prefixes):
            raise UserError("These prefixes are not of one text in one chat template: open them one by one.")
        if first.header.questions:
            raise UserError(
                "This prefix holds a conversation, which a session cannot show: ask it with `kvlab prefix ask`."
            )
        context = GAP.join(text.text for text in first.texts)
        super().__init__(first.model, context, [prefix.header.choice for prefix in prefixes[1:]], None, seed)
        self.turns = first.turns
        self.ids = self.turns.context_ids(self.loaded, context)
        if len(self.ids) != first.header.tokens:
            raise UserError(
                "This prefix was extended so that its tokens are not those of its texts in one piece: ask it with "
                "`kvlab prefix ask`."
            )
        self.prefixes = prefixes
        self.branches = []
        for prefix in prefixes:
            branch = LiveBranch(prefix.header.choice, copy_cache(prefix.cache), ContextMerges(len(self.ids)))
            branch.settle()
            self.branches.append(branch)

    @classmethod
    def of_request(cls, request: LiveRequest, root: Path, loaded: LoadedModel) -> "PrefixSession":
        """Open the prefixes that a request names.

        Raises UserError as `Prefix.load` does, or if they are no longer what the request says.
        """
        session = cls([Prefix.load(find_prefix(root, name).path, loaded) for name in request.prefixes], request.seed)
        choices = tuple(branch.choice for branch in session.branches)
        if (session.context, choices) != (request.context, request.branches):
            raise UserError(REPLACED)
        return session

    def read_context(self) -> Iterator[events.Event]:
        """Verify the slots, instead of reading anything. Raises UserError if they are damaged."""
        begun = time.perf_counter()
        for prefix in self.prefixes:
            prefix.verify()
        yield events.ContextRead(len(self.ids), time.perf_counter() - begun)
        for number in range(len(self.branches)):
            yield self._settled(number)

    def _settled(self, number: int) -> events.Event:
        branch = self.branches[number]
        header = self.prefixes[number].header
        full_bytes = header.full_bytes - header.other_bytes
        return events.BranchSettled(number, branch.choice.label, branch.live_bytes, full_bytes)

    def change_branch(self, number: int, choice: MethodChoice) -> Iterator[events.Event]:
        """Raise UserError: what a prefix has dropped cannot be compressed again."""
        raise UserError(FIXED)
