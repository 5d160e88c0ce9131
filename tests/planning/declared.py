"""Properties that a method's parts declare, to compare with those that `check_servability` observes."""

from __future__ import annotations

from dataclasses import dataclass

from kvlab.core.contract.method import Method


@dataclass(frozen=True)
class Declared:
    """The same properties as the parts of a method declare them."""

    log_mass: bool
    decodes: bool
    second_pass: bool
    hidden: bool
    reads_decode: bool

    @classmethod
    def from_method(cls, method: Method) -> Declared:
        """From the pipeline and its capabilities."""
        pipeline = method.paged_pipeline()
        settle = pipeline.can.settle
        return cls(
            log_mass=settle.merges and settle.mass_of_votes != 0,
            decodes=pipeline.decode,
            second_pass=pipeline.second_pass is not None,
            hidden=pipeline.score.needs_hidden_states,
            reads_decode=pipeline.decode and (pipeline.score.every_step or pipeline.recalled > 0),
        )
