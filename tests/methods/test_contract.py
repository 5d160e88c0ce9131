"""What parts declare is what the pipeline acts on; parts of plug-ins from before `Capabilities` still say it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch

from kvlab import extend
from kvlab.core.contract.parts import Capabilities, capabilities_of, optional, protected_slots
from kvlab.core.contract.pipeline import Evict, LowestScore, Pipeline
from kvlab.core.contract.second_pass import SecondPassRequest
from kvlab.core.errors import UserError
from kvlab.core.methods import make_method, registered
from kvlab.core.methods.scorers.accumulated_attention import AccumulatedAttention
from kvlab.core.methods.scorers.wrapper import PromptOnly
from kvlab.core.methods.wrappers.choice import Keeping
from kvlab.core.methods.wrappers.page_selector import WholePages


@dataclass(frozen=True)
class OldScorer:
    """As a plug-in wrote it for an earlier version."""

    every_step = True
    needs_hidden_states = False
    state: ClassVar[dict[str, float]] = {}
    recalls: int = 8
    counts: ClassVar[str] = "seen"
    notes: ClassVar[bool] = False

    def update(self, slots, seen, first):
        return {"score": slots.score}

    def recall(self, slots, seen):
        return {}

    def note(self, slots, seen):
        raise AssertionError("it says that it cannot")

    def prompt_rows(self, tokens):
        return 5


@dataclass(frozen=True)
class OldSettler:
    """Likewise."""

    state: dict[str, float] = field(default_factory=dict)
    merges: ClassVar[bool] = True
    mass_of_votes: ClassVar[None] = None
    counts: ClassVar[bool] = False
    observes: ClassVar[bool] = True
    seeks: ClassVar[bool] = True

    def settle(self, view, select):
        raise NotImplementedError


@dataclass(frozen=True)
class OldSelector:
    """Names no protected slots."""

    def victims(self, view, excess, most, barred=None):
        raise NotImplementedError


def test_parts_from_before_the_contract_say_the_same_by_their_attributes() -> None:
    scorer, settler = OldScorer(), OldSettler()
    said = {name: getattr(capabilities_of(scorer), name) for name in ("prompt_rows", "recalls", "recall", "note")}
    assert said == {"prompt_rows": scorer.prompt_rows, "recalls": 8, "recall": scorer.recall, "note": None}
    assert optional(scorer, "counted_state") == "seen"
    assert capabilities_of(settler).merges and capabilities_of(settler).mass_of_votes is None
    assert (optional(settler, "counts_votes"), optional(settler, "seeks")) == (False, True)
    assert capabilities_of(OldSelector()).protected is None
    pipeline = Pipeline(scorer, settle=settler, buffer=4)
    assert (pipeline.recalled, pipeline.prompt_rows(99)) == (8, 5)
    assert pipeline.can.score.recall == scorer.recall and pipeline.can.score.note is None
    assert pipeline.columns.mass_of_votes is None and not pipeline.columns.votes


def test_pooling_and_merging_refuse_a_selector_that_protects_nothing() -> None:
    with pytest.raises(UserError, match="OldSelector defines no protected slots"):
        protected_slots(OldSelector(), None)


def test_capabilities_of_another_type_are_refused() -> None:
    class Wrong:
        capabilities: ClassVar = {"merges": True}

    with pytest.raises(TypeError, match="must return Capabilities"):
        capabilities_of(Wrong())


def test_an_error_inside_a_parts_capabilities_is_not_taken_for_their_absence() -> None:
    class Broken(Evict):
        @property
        def capabilities(self) -> Capabilities:
            return self.no_such_field

    with pytest.raises(AttributeError, match="no_such_field"):
        capabilities_of(Broken())


def test_wrappers_forward_what_still_holds() -> None:
    plain = AccumulatedAttention(decay=0.9)
    once = capabilities_of(PromptOnly(plain))
    assert optional(PromptOnly(plain), "accumulate") == plain.accumulate and once.note is None and once.decay is None
    pinned = Keeping(LowestScore(sinks=4), (7, 9))
    assert optional(pinned, "sinks") == 6 and optional(pinned, "bounds") is None
    assert capabilities_of(pinned).protected is not None
    assert optional(Keeping(WholePages(LowestScore(), 4), (7,)), "leaves_room"), "what a wrapper does not define"


def test_a_plug_in_may_declare_what_capabilities_had_in_version_0_1() -> None:
    again = SecondPassRequest(piece=64)

    class OfPlugin(AccumulatedAttention):
        @property
        def capabilities(self) -> Capabilities:
            return extend.Capabilities(prompt_rows=lambda tokens: 3, rehearsal=again, accumulate=None, seeks=True)

    part = OfPlugin()
    assert capabilities_of(part).second_pass is again and capabilities_of(part).prompt_rows(9) == 3
    assert optional(part, "accumulate") is None and optional(part, "seeks") is True


@pytest.mark.parametrize("name", [name for name in registered() if name != "compose"])
def test_every_method_declares_its_parts(name: str) -> None:
    pipeline = make_method(name).pipeline()
    for part in (pipeline.score, pipeline.allocate, pipeline.select, pipeline.settle):
        assert isinstance(part.capabilities, Capabilities)
    assert pipeline.prompt_rows(1000) >= 1
    if pipeline.in_place is not None:
        assert capabilities_of(pipeline.score).note is not None, "the kernel keeps the score up as `note` does"


def test_a_pipeline_combines_its_parts() -> None:
    evict = Pipeline(AccumulatedAttention(), select=LowestScore(sinks=4))
    assert not (evict.can.score.across_heads or evict.can.select.across_heads or evict.can.settle.across_heads)
    assert evict.fills_budget and not evict.waits and evict.references == 0
    assert evict.in_place is not None and evict.in_place.decay == 1.0
    assert Pipeline(AccumulatedAttention(), select=Keeping(LowestScore(), (3,))).in_place is None
    one = torch.zeros(1, 1, 1, 4)
    assert evict.settler_bytes(one, one) == 0
