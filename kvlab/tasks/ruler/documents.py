"""RULER's questions about documents, over invented persons."""

from __future__ import annotations

from kvlab.models.mini.words import ADJECTIVES, NAMES
from kvlab.tasks.draft import Draft, Task, drafted
from kvlab.tasks.ruler.template import QA, Wording, filled_with, sample_of
from kvlab.tasks.sample import Sample

_PERSONS = ("Alda", "Bruno", "Celia", "Dario", "Edith", "Felix", "Greta", "Hugo", "Irma", "Jonas", "Klara", "Leo")
_SURNAMES = ("Arden", "Bellamy", "Corwin", "Dunmore", "Ellery", "Fenwick", "Garrick", "Hollis", "Ingram", "Jessop")
_TOWNS = ("Bergen", "Turin", "Porto", "Lyon", "Geneva", "Dublin", "Prague", "Vienna", "Cairo", "Quito", "Lima", "Riga")
_TRADES = ("clockmaker", "painter", "sailor", "lawyer", "baker", "surgeon", "printer", "miller", "singer", "tailor")


def qa(name: str, hops: int) -> Task:
    """A question task of RULER over invented persons: of one document, or of two that name the same person."""

    def generate(draft: Draft) -> Sample:
        random = draft.random
        persons = [f"{first} {last}" for first in _PERSONS for last in _SURNAMES]
        random.shuffle(persons)
        towns = [f"{random.choice(ADJECTIVES).capitalize()} {town}" for town in random.sample(_TOWNS, len(_TOWNS))]
        facts = [
            f"{person} was born in {random.choice(towns)} and worked as a {random.choice(_TRADES)}. The house of "
            f"{person} had the number {random.randint(10, 999)}."
            for person in persons
        ]
        place = random.random()
        town = facts[0].split(" was born in ")[1].split(" and ")[0]
        needed = [facts[0]]
        query = f"In which town was {persons[0]} born?"
        if hops == 2:
            work = f"The ship {random.choice(NAMES).capitalize()}"
            needed = [f"{work} belonged to {persons[0]}. It was painted {random.choice(ADJECTIVES)}.", facts[0]]
            query = f"In which town was the owner of {work.replace('The', 'the')} born?"
        wording = Wording.of(QA, query=query)

        def render(count: int) -> str:
            documents = facts[1 : count + 1]
            for depth, fact in zip((place, place / 2), reversed(needed), strict=False):
                documents.insert(round(depth * count), fact)
            listed = [f"Document {number}:\n{document}" for number, document in enumerate(documents, 1)]
            return wording.before + "\n\n".join(listed)

        text = filled_with(draft, wording, render, len(facts) - 1)
        return sample_of(draft, wording, text, [town], 32, "string_match_part", needed)

    return drafted(f"ruler_{name}", f"RULER's {name}, in its own wording, over invented persons", name)(generate)
