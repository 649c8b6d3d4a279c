"""The wheel and the source distribution hold what they should, and the wheel works elsewhere."""

import os
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

import pytest

import datarax
from tests.test_layers import MODULES, PACKAGE, ROOT

pytestmark = pytest.mark.slow(together=True)

NAME = f"datarax-{datarax.__version__}"
PROGRAM = """
import jax.numpy as jnp
import datarax
from datarax import metrics, testing
print(datarax.__file__)
batches = [{"values": jnp.arange(4.0) + i} for i in range(3)]
testing.check_metric(metrics.Mean(), batches)
print(metrics.Mean().update(jnp.arange(4.0)).results())
"""


def run(*command: str | Path, cwd: Path, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=os.environ | environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """The folder of both. The wheel is built from the source distribution."""
    folder = tmp_path_factory.mktemp("built")
    run("-m", "build", "--no-isolation", "--outdir", folder, cwd=ROOT)
    assert {path.name for path in folder.iterdir()} == {
        f"{NAME}-py3-none-any.whl",
        f"{NAME}.tar.gz",
    }
    return folder


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    wheel = built / f"{NAME}-py3-none-any.whl"
    options = ("--quiet", "--no-deps", "--no-index", "--disable-pip-version-check")
    run("-m", "pip", "install", *options, "--target", folder, wheel, cwd=folder)
    return folder


def test_the_wheel_holds_the_package_alone(built):
    with zipfile.ZipFile(built / f"{NAME}-py3-none-any.whl") as wheel:
        names = set(wheel.namelist())
        metadata: Message = HeaderParser().parsestr(
            wheel.read(f"{NAME}.dist-info/METADATA").decode()
        )
        entries = wheel.read(f"{NAME}.dist-info/entry_points.txt").decode()
    package = {name for name in names if name.startswith("datarax/")}
    modules = {path.relative_to(PACKAGE.parent).as_posix() for path in MODULES.values()}
    report = {f"datarax/evaluation/report.{kind}" for kind in ("css", "html", "js")}
    assert package == modules | report | {"datarax/py.typed"}
    assert {name.partition("/")[0] for name in names - package} == {f"{NAME}.dist-info"}
    assert f"{NAME}.dist-info/licenses/LICENSE" in names
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert str(metadata.get_payload()).strip() == (ROOT / "README.md").read_text().strip()
    assert entries.split() == ["[console_scripts]", "datarax", "=", "datarax.cli:main"]


def test_the_source_distribution_holds_all_that_the_tests_need(built):
    with tarfile.open(built / f"{NAME}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for folder in ("datarax", "tests", "docs", "examples", "notebooks", "benchmarks"):
        held = {name for name in names if name.startswith(f"{folder}/")}
        files = {
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        assert files <= held, folder
    for name in ("README.md", "CHANGELOG.md", "CITATION.cff", "LICENSE", "Makefile"):
        assert name in names
    for name in ("pyproject.toml", "mkdocs.yml", "constraints.txt", "constraints-oldest.txt"):
        assert name in names
    assert not [name for name in names if name.startswith((".venv", "site", "datarax-demo"))]


def test_the_version_is_the_same_everywhere():
    assert f"\nversion: {datarax.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_installed_wheel_works_in_an_empty_folder(installed, tmp_path):
    path = {"PYTHONPATH": str(installed)}
    where, value = run("-c", PROGRAM, cwd=tmp_path, **path).split()
    assert Path(where) == installed / "datarax/__init__.py"
    assert value == "1.5"
    assert datarax.__version__ in run("-m", "datarax.cli", "--version", cwd=tmp_path, **path)
    assert "jax" in run(installed / "bin/datarax", "info", cwd=tmp_path, **path)
