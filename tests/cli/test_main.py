"""The command line: what it refuses, how it says so, and what that costs."""

import subprocess
import sys
from pathlib import Path

import pytest

import datarax
from datarax.cli import MAX_DEVICES, MAX_PROCESSES, main, simulate_devices
from tests.cli.command import datarax as run


def refusal(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> str:
    """The one line on stderr with which the command ends, with exit code 2."""
    with pytest.raises(SystemExit) as stopped:
        main([str(arg) for arg in argv])
    assert stopped.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("\n")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("option", "value"),
    [("--devices", x) for x in ("0", "-1", "two", "1.5", "", str(MAX_DEVICES + 1), "1" * 30)]
    + [("--processes", x) for x in ("0", "-1", "two", "", str(MAX_PROCESSES + 1))]
    + [("--epochs", x) for x in ("0", "-3", "many", "2.5", "")],
)
def test_bad_number(capsys, option, value):
    error = refusal(capsys, "demo", f"{option}={value}")
    assert error.startswith(f"datarax demo: error: argument {option}: expected an integer ")
    assert error.endswith(f", got {value!r}\n")


def test_devices_and_processes_exclude_each_other(capsys):
    error = refusal(capsys, "demo", "--devices", "4", "--processes", "2")
    assert error == (
        "datarax demo: error: argument --processes: not allowed with argument --devices\n"
    )


def test_output_that_cannot_be_written(capsys, tmp_path):
    file = tmp_path / "file"
    file.write_text("kept")
    taken = tmp_path / "taken"
    (taken / "history.jsonl").mkdir(parents=True)
    cannot = "cannot write to"
    for bad, said in ((file, "expected a folder"), (file / "below", cannot), (taken, cannot)):
        error = refusal(capsys, "demo", "--output", bad)
        assert error.startswith(f"datarax demo: error: argument --output: {said}")
        assert repr(str(bad)) in error
    assert file.read_text() == "kept"


@pytest.mark.parametrize("argv", [(), ("dance",), ("demo", "--speed", "3"), ("info", "more")])
def test_unknown_arguments(capsys, argv):
    assert "error: " in refusal(capsys, *argv)


@pytest.mark.parametrize("name", ["jinja2", "matplotlib", "optax", "rich", "sklearn"])
def test_missing_package(capsys, monkeypatch, tmp_path, name):
    monkeypatch.setitem(sys.modules, name, None)  # Python's own way to make an import fail
    error = refusal(capsys, "demo", "--output", tmp_path / "out")
    assert error == f"datarax demo: error: not installed: {name}; run: pip install '.[demo]'\n"
    assert not (tmp_path / "out").exists()


def test_bad_value_does_not_load_jax(tmp_path):
    refused = run("demo", "--devices", "0", cwd=tmp_path, PYTHONPROFILEIMPORTTIME="1")
    assert refused.returncode == 2
    assert list(tmp_path.iterdir()) == []
    *loaded, error = refused.stderr.splitlines()
    assert error.startswith("datarax demo: error: argument --devices: ")
    names = {line.rpartition("|")[2].strip().partition(".")[0] for line in loaded}
    assert {"argparse", "datarax"} <= names
    assert names.isdisjoint({"jax", "flax", "numpy", "optax", "sklearn", "rich", "matplotlib"})


def test_simulate_devices_replaces_only_its_own_settings():
    environ = {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2 --xla_cpu_enable_fast_math=false",
        "JAX_NUM_CPU_DEVICES": "3",
        "HOME": "/home",
    }
    simulate_devices(5, environ)
    flags = environ.pop("XLA_FLAGS").split()
    assert sorted(flags) == [
        "--xla_cpu_enable_fast_math=false",
        "--xla_force_host_platform_device_count=5",
    ]
    assert environ == {"JAX_PLATFORMS": "cpu", "HOME": "/home"}


def test_version(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"datarax {datarax.__version__}\n"


def test_info(capsys):
    import jax

    assert main(["info"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"datarax {datarax.__version__}" in lines
    assert f"jax {jax.__version__}" in lines
    assert f"devices {jax.device_count()} x cpu (cpu)" in lines
    assert "process 0 of 1" in lines


def test_module_is_the_command(tmp_path):
    command = [sys.executable, "-m", "datarax.cli", "--version"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert shown.stdout == f"datarax {datarax.__version__}\n"
