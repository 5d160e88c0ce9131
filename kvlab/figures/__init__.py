"""Plotly figures from frames, as pure functions with one palette and one template (light and dark).

Every figure `name(frame, ..., theme)` has a companion `read_name(frame)` that returns a one-sentence reading with this
run's numbers. The CSV export contains the frame.
"""
