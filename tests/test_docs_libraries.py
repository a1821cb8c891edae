"""docs/libraries and the README's table: in step with the scripts and adapters that there are."""

import re
import shlex
from pathlib import Path

import pytest
from helpers.face import ROOT

from unilab_gym.registration import list_tasks

EXAMPLES = {path.stem.removeprefix("train_") for path in ROOT.glob("examples/train_*.py")}
PAGES = {path.stem: path for path in ROOT.glob("docs/libraries/*.md")}
README = ROOT.joinpath("README.md").read_text(encoding="utf-8")


def rows():
    """(command, page) of each line of the README's table."""
    table = README.partition("## RL libraries")[2].partition("\n## ")[0]
    found = re.findall(r"^\|.*\| `(.+?)` \| \[\w+\]\(([\w/.#-]+)\) \|$", table, re.MULTILINE)
    assert len(found) >= len(EXAMPLES)
    return found


def commands(page):
    """The shell commands of a page that run an example."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line for line in lines if "examples/" in line and not line.startswith("pip ")]


def check(command):
    """The script is there and knows the options; what follows them is a value that can be."""
    script, *options = shlex.split(command[command.index("examples/") :])
    text = (ROOT / script).read_text("utf-8")
    if "unilab_gym.cli" in text:
        text = (ROOT / "unilab_gym" / "adapters" / "settings.py").read_text("utf-8")
    for option in options:
        if option.startswith("--"):
            assert f"    {option[2:].replace('-', '_')}: " in text, (command, option)
        elif option.startswith("UniLab/"):
            assert option in [task.id for task in list_tasks()], option


def test_every_example_has_a_page_and_a_row():
    assert set(PAGES) == EXAMPLES
    for command, page in rows():
        path, _, anchor = page.partition("#")
        name = re.search(r"examples/train_(\w+)\.py", command)[1]
        assert Path(path).stem == name and (ROOT / path) == PAGES[name]
        headings = re.findall(r"^## (.+)$", PAGES[name].read_text("utf-8"), re.MULTILINE)
        assert not anchor or anchor in [h.lower().replace(" ", "-") for h in headings]
        check(command)
    assert {Path(page.partition("#")[0]).stem for _, page in rows()} == EXAMPLES


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_says_what_it_must(name):
    text = PAGES[name].read_text("utf-8")
    for part in ("**Goes in.**", "**Comes out.**", "## Pitfalls", "*Time limits.*",
                 "*Action bounds.*", "*Observation groups.*"):  # fmt: skip
        assert part in text, part
    assert "mode" in text.lower()
    assert commands(PAGES[name])
    for command in commands(PAGES[name]):
        check(command)


def test_a_wrong_option_is_seen():
    with pytest.raises(AssertionError, match="--num-env'"):
        check("python examples/train_sb3.py --num-env 4")


def test_the_snippet_with_a_runner_of_ones_own_runs():
    (code,) = re.findall(
        r"^```python\n(.*?)^```$", PAGES["rsl_rl"].read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    scope = {}
    exec(code, scope)
    assert scope["runner"].current_learning_iteration == 1
    scope["env"].close()
