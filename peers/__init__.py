"""tightz beside its peers, the same models in the same run: `python -m peers` (`make peers`).

`tasks/` has a module for each task, `engines/` one for each library, `cases.py` makes the models,
`runner.py` starts every engine on every model in a process of its own, `page.py` writes the page.
Modules that the peers' interpreter imports (`given`, `child`, `engines`) need numpy, not tightz.
"""
