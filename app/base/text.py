"""Text for pages: escaped for Markdown, shortened, times in words, and the terms of figures explained."""

import re
import textwrap
from datetime import UTC, datetime


def plain(text: str) -> str:
    """The text escaped for Markdown, on one line; `5 %` and `n = 5` do not wrap."""
    unbroken = re.sub(r"(?<=\d) %", "\u00a0%", " ".join(text.split()))
    unbroken = re.sub(r"\bn = (?=\d)", "n\u00a0=\u00a0", unbroken)
    return re.sub(r"([\\`*_{}\[\]<>()#+\-!|~$:.&])", r"\\\1", unbroken)


def unseen(words: str) -> str:
    """Words of a button's label that screen readers read and that are not drawn (access.css)."""
    return f":small[{plain(words)}]"


def shorten(text: str, length: int = 90) -> str:
    """The beginning of a text on one line, cut between words."""
    return textwrap.shorten(text, length, placeholder=" …") if len(text) > length else text


def code(text: object, length: int = 60) -> str:
    """The text as Markdown code, on one line and at most `length` characters long."""
    words = " ".join(str(text).replace("`", "'").split())
    return f"`{words if len(words) <= length else words[:length] + ' …'}`"


def slug(text: str) -> str:
    """The text as a file name: lower-case letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower().replace("%", "pc")).strip("-") or "figure"


def ago(moment: str | float) -> str:
    """How long ago an ISO 8601 or POSIX time was: `just now`, `5 min ago`, `3 h ago`, or the date."""
    then = datetime.fromtimestamp(moment, UTC) if isinstance(moment, float) else datetime.fromisoformat(moment)
    seconds = (datetime.now(UTC) - then).total_seconds()
    if seconds < 60:
        return "just now"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min ago"
    return f"{seconds // 3600:.0f} h ago" if seconds < 86_400 else f"{then:%d %b %Y}"


def day_or_time(moment: str) -> str:
    """An ISO 8601 time as `06:25` if it is today, else as `21 Nov 06:25`."""
    then = datetime.fromisoformat(moment).astimezone(UTC)
    return f"{then:%H:%M}" if then.date() == datetime.now(UTC).date() else f"{then:%d %b %H:%M}"


# In the order in which they are explained; the keys are matched as whole words, plurals too.
TERMS = {
    "slot": "One row of a head's cache: a key and a value. After merges it stands for several tokens.",
    "budget": "How much of the cache a method may keep: a share of the prompt, slots per head, or bytes.",
    "eviction": "Dropping a slot: its token is gone for all later steps.",
    "merging": "Joining slots: one gets the mass of another, and a key and value between both.",
    "pooling": "Joining neighbouring slots of a window into one, their mean.",
    "recent window": "The last tokens, which methods keep whatever their scores.",
    "heavy hitter": "A token that got most of the attention of all queries so far.",
    "sink": "One of the first tokens, which many heads attend to whatever the text says; methods keep them.",
    "vote": "How many tokens a slot stands for: 1 until something is merged into it.",
    "pivot": "The slot that others are merged into.",
    "mass": "Attention: the share of a query's attention that a token or slot receives. All shares sum to 1.",
    "log mass": "A number added to a slot's logit, so that a merged slot gets the attention of all its tokens.",
    "sag": "Attention lost by merging: what the tokens had apart, minus what their common slot has. 0: nothing lost.",
    "regret": "Attention that a query would give, with nothing dropped, to tokens which this cache no longer holds.",
    "nothing dropped": "This run's own query over all tokens. The full cache's queries differ once tokens are lost.",
    "perturbation": "How far a head's output is from what it would be without the merge, relative to its length.",
    "output error": "How far a head's output is from what it would be with nothing dropped, relative to its length.",
    "guard": "A check that refuses a merge which would do harm.",
    "reading head": "The head whose queries attend most to the fact while the answer is written.",
    "KL": "Kullback-Leibler divergence: how far the predicted next word is from the full cache's. 0: the same.",
    "nat": "The unit of KL and log-probabilities with the natural logarithm; 1 nat is about 1.44 bits.",
    "perplexity": "How surprised the model is by each token, on average: 1 is certain, higher is worse.",
    "interval": "A range that would contain the true value in 95 of 100 such measurements.",
    "forced": "Every method reads the text that the full cache wrote, so that predictions are compared word by word.",
    "fingerprint": "Numbers that describe how a head attends: to the first tokens, to recent ones, to similar keys.",
}
# Other forms in which captions use a term.
FORMS = {"eviction": "evict(?:ions?|ed|s)?", "merging": "merg(?:ing|es?|ed)", "pooling": "pool(?:ing|s|ed)?"}
WITH_PICTURES = "Glossary, with animations"
_PATTERNS = {
    term: re.compile(rf"\b{FORMS.get(term, re.escape(term) + 'e?s?')}\b", 0 if term.isupper() else re.IGNORECASE)
    for term in TERMS
}


def terms_in(text: str) -> str | None:
    """The terms that a text uses, explained, as Markdown; None if it uses none.

    A term within a longer one that is used, such as mass in log mass, is explained by the longer one alone.
    """
    used = [term for term, pattern in _PATTERNS.items() if pattern.search(text)]
    alone = []
    for term in used:
        rest = text
        for longer in used:
            if longer != term and term in longer.split():
                rest = _PATTERNS[longer].sub("", rest)
        if _PATTERNS[term].search(rest):
            alone.append(term)
    explanations = [f"**{term}**: {TERMS[term]}" for term in alone]
    return "\n\n".join([*explanations, f"[{WITH_PICTURES}](glossary)"]) if explanations else None
