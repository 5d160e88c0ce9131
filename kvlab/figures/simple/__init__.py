"""The simple sentence of every figure: short, true of its frame, and free of terms that only specialists know.

A function here has the name and the parameters of the figure's caption without `caption_`; `with_simple` joins the two.
"""
