"""Methods, parts of methods, tasks, loaders, metrics and views from outside, and where each came from.

A plug-in is a Python module that calls the same `register` functions as kvlab's own rooms do. It is named by whoever
starts the process, never by a page, a run or the current folder: `--plugin FILE.py` on every command, `KVLAB_PLUGINS`
in the environment, or an installed package with an entry point in the group `kvlab.plugins`.
"""
