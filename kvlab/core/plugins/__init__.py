"""Plug-ins: methods, parts, tasks, loaders, metrics and views from outside kvlab, and their origins.

A plug-in is a Python module that calls the same `register` functions as kvlab itself. It is named when a process is
started, never by a page, a run or the current folder: `--plugin FILE.py` on every command, `KVLAB_PLUGINS` in the
environment, or an installed package with an entry point in the group `kvlab.plugins`.
"""
