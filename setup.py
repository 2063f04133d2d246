"""Puts conf/, which stands at the top of the repository, into the wheel; all else is in pyproject.toml."""

from setuptools import setup
from setuptools.command.build_py import build_py


class WithConfiguration(build_py):
    """Copies conf/ beside the modules of the package."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            self.copy_tree("conf", f"{self.build_lib}/thinkalike/conf")


setup(cmdclass={"build_py": WithConfiguration})
