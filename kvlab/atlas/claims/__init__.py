"""The papers' claims, one file a claim or family: what is read from a run, and a pure function from rows to verdict."""
