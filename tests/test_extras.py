"""The extras, and what is said about installing them."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement

from datarax._errors import MissingExtraError
from datarax._optional import EXTRAS, optional
from tests.test_layers import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# On the package index, the name belongs to another project.
ANOTHER_PROJECT = re.compile(r"pip3? install +['\"]?datarax\b|\bdatarax\[[a-z]")
MEANT = "Do not run `pip install datarax`"


def packages(extra: str) -> set[str]:
    """The names of all packages that an extra of `pyproject.toml` installs."""
    found = set()
    for each in map(Requirement, PROJECT["optional-dependencies"][extra]):
        if each.name == "datarax":
            found.update(*map(packages, each.extras))
        else:
            found.add(each.name)
    return found


def test_the_packages_of_extras_are_those_of_the_project():
    assert {extra: set(names) for extra, names in EXTRAS.items()} == {
        extra: packages(extra) for extra in EXTRAS
    }
    assert set(EXTRAS) | {"all", "demo", "test", "engines", "docs", "dev"} == set(
        PROJECT["optional-dependencies"]
    )
    # Beam and Spark need Java, or old versions of other packages: installed by name only.
    assert packages("all") == set().union(*map(packages, set(EXTRAS) - {"beam", "spark"}))
    assert packages("engines") >= packages("beam") | packages("spark")


def test_a_missing_package_is_named():
    with pytest.raises(MissingExtraError) as caught:
        optional("no_such_module.part", "checkpoint", "saving")
    assert str(caught.value).startswith("saving needs no_such_module, which cannot be imported (")
    assert str(caught.value).endswith(
        "run: pip install '.[checkpoint]' in a clone of datarax, or pip install orbax-checkpoint"
    )


def test_nothing_says_to_install_another_project():
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    for folder in ("datarax", "docs", "examples", "notebooks"):
        for suffix in ("py", "md", "ipynb", "html"):
            files += (ROOT / folder).rglob(f"*.{suffix}")
    said = []
    for path in files:
        text = path.read_text().replace(MEANT, "")
        said += [f"{path.name}: {found[0]}" for found in ANOTHER_PROJECT.finditer(text)]
    assert not said
