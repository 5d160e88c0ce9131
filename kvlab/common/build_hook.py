"""setuptools hook: put the dashboard and the assets inside the built package.

`app/` and `assets/` are at the top of the checkout; as packages of their own they would take general names,
so a wheel carries them as data in `kvlab/shipped/`, where `kvlab.core.assets` finds them.
"""

import shutil
from pathlib import Path

from setuptools.command.build_py import build_py

FOLDERS = ("app", "assets")
IGNORED = ("__pycache__", "*.pyc", ".DS_Store", "mini-60", "mini-half")  # the last two: models of the checkout alone


class BuildWithDashboard(build_py):
    """`build_py` that also copies the folders above; an editable install uses the checkout."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for folder in FOLDERS:
            target = Path(self.build_lib) / "kvlab" / "shipped" / folder
            shutil.copytree(folder, target, ignore=shutil.ignore_patterns(*IGNORED), dirs_exist_ok=True)

    def get_source_files(self) -> list[str]:
        """Files of a source archive, with the folders above."""
        files = [path for folder in FOLDERS for path in Path(folder).rglob("*") if path.is_file()]
        return [*super().get_source_files(), *(str(path) for path in files if "__pycache__" not in path.parts)]
