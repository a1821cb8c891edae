"""Packages of strangers, installed into a folder as pip would: modules and a .dist-info."""

import textwrap
from pathlib import Path


def install(site: Path, package: str, entry_points: dict[str, str] | str, **modules: str) -> None:
    """Writes a distribution: the text of its modules, and what it declares.

    Args:
        site: A folder that is, or will be, on sys.path.
        package: Name of the distribution.
        entry_points: id -> value of the group, or the text of entry_points.txt.
        **modules: Module name -> source.
    """
    info = site / f"{package.replace('-', '_')}-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1\n")
    if not isinstance(entry_points, str):
        lines = [f"{name} = {value}" for name, value in entry_points.items()]
        entry_points = "\n".join(["[unilab_gym.tasks]", *lines])
    (info / "entry_points.txt").write_text(entry_points + "\n")
    for name, source in modules.items():
        (site / f"{name}.py").write_text(textwrap.dedent(source))
