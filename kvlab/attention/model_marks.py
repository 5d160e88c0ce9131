"""What a loaded model remembers of itself, for rooms that do not know its family."""

# It starts its recurrent state anew at every pass of several tokens, so that no such pass may follow another.
STARTS_ANEW = "_kvlab_guards_passes"
