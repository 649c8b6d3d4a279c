"""The wheel and the source distribution hold what they should, and the wheel works elsewhere.

And what only the repository holds: the workflows.
"""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from packaging.metadata import Metadata

import datarax
from tests.test_layers import MODULES, PACKAGE, ROOT

NAME = f"datarax-{datarax.__version__}"
TOP = {
    ".gitignore",
    ".pre-commit-config.yaml",
    "CHANGELOG.md",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "PKG-INFO",
    "README.md",
    "SECURITY.md",
    "benchmarks",
    "constraints-engines.txt",
    "constraints-newest.txt",
    "constraints-oldest.txt",
    "constraints.txt",
    "datarax",
    "docs",
    "examples",
    "mkdocs.yml",
    "notebooks",
    "pyproject.toml",
    "tests",
}
PROGRAM = """
import jax.numpy as jnp
import datarax
from datarax import metrics, testing
print(datarax.__file__)
batches = [{"values": jnp.arange(4.0) + i} for i in range(3)]
testing.check_metric(metrics.Mean(), batches, on_host=True)
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
        # Raises if a field is unknown or has a value that the standard does not allow.
        metadata = Metadata.from_email(wheel.read(f"{NAME}.dist-info/METADATA"), validate=True)
        entries = wheel.read(f"{NAME}.dist-info/entry_points.txt").decode()
    package = {name for name in names if name.startswith("datarax/")}
    modules = {path.relative_to(PACKAGE.parent).as_posix() for path in MODULES.values()}
    pages = {"report.css", "report.js"}
    pages |= {f"{name}.html" for name in ("page", "macros", "report", "comparison")}
    report = {f"datarax/evaluation/{name}" for name in pages}
    rows = {f"datarax/metric/{name}.md" for name in ("names", "names_of_torchmetrics")}
    assert package == modules | report | {"datarax/py.typed", *rows}
    assert {name.partition("/")[0] for name in names - package} == {f"{NAME}.dist-info"}
    assert f"{NAME}.dist-info/licenses/LICENSE" in names
    assert (metadata.name, str(metadata.version)) == ("datarax", datarax.__version__)
    assert metadata.license_expression == "Apache-2.0"
    assert str(metadata.requires_python) == ">=3.11"
    assert metadata.description_content_type == "text/markdown"
    assert (metadata.description or "").strip() == (ROOT / "README.md").read_text().strip()
    always = {r.name for r in metadata.requires_dist or () if r.marker is None}
    assert always == {"flax", "jax", "jaxlib", "numpy", "scipy"}
    assert entries.split() == ["[console_scripts]", "datarax", "=", "datarax.cli:program"]


def test_the_source_distribution_holds_what_is_in_the_repository(built):
    with tarfile.open(built / f"{NAME}.tar.gz") as archive:
        names = {m.name.partition("/")[2] for m in archive.getmembers() if not m.isdir()}
    assert {name.partition("/")[0] for name in names} == TOP
    for folder in ("datarax", "tests", "docs", "examples", "notebooks", "benchmarks"):
        held = {name for name in names if name.startswith(f"{folder}/")}
        files = {
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and not {"__pycache__", ".ipynb_checkpoints"} & set(path.parts)
        }
        assert held == files


def test_the_version_is_the_same_everywhere():
    assert f"\nversion: {datarax.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    newest = re.search(r"^## \[(.+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest
    assert newest[1] == datarax.__version__


def test_workflows_name_each_action_by_the_hash_of_a_commit():
    used = [
        line
        for path in (ROOT / ".github/workflows").iterdir()
        for line in re.findall(r"\buses:.*", path.read_text())
    ]
    assert used
    for line in used:
        assert re.fullmatch(r"uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)
    assert "package-ecosystem: github-actions" in (ROOT / ".github/dependabot.yml").read_text()


def test_the_installed_wheel_works_in_an_empty_folder(installed, tmp_path):
    path = {"PYTHONPATH": str(installed)}
    where, value = run("-c", PROGRAM, cwd=tmp_path, **path).split()
    assert Path(where) == installed / "datarax/__init__.py"
    assert value == "1.5"
    assert datarax.__version__ in run("-m", "datarax.cli", "--version", cwd=tmp_path, **path)
    assert "jax" in run(installed / "bin/datarax", "info", cwd=tmp_path, **path)


def test_the_installed_wheel_writes_a_report(installed, tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "rows.npz", score=rng.random(50), label=rng.integers(0, 2, 50))
    command = (
        "evaluate rows.npz --task binary --preds score --target label --output out --no-progress"
    )
    run(installed / "bin/datarax", *command.split(), cwd=tmp_path, PYTHONPATH=str(installed))
    report = (tmp_path / "out/report.html").read_text()
    for kind in ("css", "js"):  # they are read from the package
        assert (ROOT / f"datarax/evaluation/report.{kind}").read_text().strip() in report
