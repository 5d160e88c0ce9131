"""A live session over kept prefixes: nothing is read, and every prefix is a lane."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from kvlab.core.cache.cache_copy import copy_cache
from kvlab.core.choice import MethodChoice
from kvlab.core.errors import UserError
from kvlab.engine.prefix import Prefix
from kvlab.library.prefixes import find_prefix
from kvlab.live.events import ContextRead, Event, LaneSettled
from kvlab.live.lane import ContextMerges, Lane
from kvlab.live.session import LiveSession
from kvlab.models.load import LoadedModel
from kvlab.requests.live_session import FIXED, GAP, LiveRequest

REPLACED = "A prefix of this session was changed or replaced since it began: begin a new one."


class PrefixSession(LiveSession):
    """Lanes over one kept text; texts are compared with those of the first prefix, which may be of any method.

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
        self.prefixes, self.lanes = prefixes, [self._lane(prefix) for prefix in prefixes]

    @classmethod
    def of_request(cls, request: LiveRequest, root: Path, loaded: LoadedModel) -> PrefixSession:
        """Open the prefixes that a request names.

        Raises UserError as `Prefix.load` does, or if they are no longer what the request says.
        """
        session = cls([Prefix.load(find_prefix(root, name).path, loaded) for name in request.prefixes], request.seed)
        if (session.context, tuple(lane.choice for lane in session.lanes)) != (request.context, request.lanes):
            raise UserError(REPLACED)
        return session

    def _lane(self, prefix: Prefix) -> Lane:
        lane = Lane(prefix.header.choice, copy_cache(prefix.cache), ContextMerges(len(self.ids)))
        lane.settle()
        return lane

    def read_context(self) -> Iterator[Event]:
        """Verify the slots, instead of reading anything. Raises UserError if they are damaged."""
        begun = time.perf_counter()
        for prefix in self.prefixes:
            prefix.verify()
        yield ContextRead(len(self.ids), time.perf_counter() - begun)
        for number in range(len(self.lanes)):
            yield self._settled(number)

    def _settled(self, number: int) -> Event:
        lane = self.lanes[number]
        header = self.prefixes[number].header
        return LaneSettled(number, lane.choice.label, lane.live_bytes, header.full_bytes - header.other_bytes)

    def change_lane(self, number: int, choice: MethodChoice) -> Iterator[Event]:
        """Raise UserError: what a prefix has dropped cannot be compressed again."""
        raise UserError(FIXED)
