"""The simple sentences of the atlas's figures, each with the name and the parameters of its caption (`with_simple`)."""
