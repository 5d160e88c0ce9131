"""Plotly figures from frames, as pure functions with one palette and one template (light and dark).

Every figure `name(frame, ..., theme)` has a companion `caption_name(frame)` that returns its caption: the exact
sentence with this run's numbers, and a simple one from `kvlab.figures.simple` (`base.caption.with_simple`). The CSV
export contains the frame.
"""
