"""The command `datarax` with its subcommands.

This module imports JAX only after it has checked the arguments. So an error about a bad argument
comes at once, and the number of simulated devices is set before JAX makes its first device.
"""

import argparse
import os
import platform
import re
import shlex
import sys
from collections import Counter
from collections.abc import MutableMapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from datarax import __version__
from datarax._start import end_on_interrupt, raise_on_interrupt
from datarax.cli import interrupts
from datarax.cli.evaluation_arguments import a_folder, add_commands, add_integer
from datarax.cli.one_line import plain_output

MAX_DEVICES = 64
MAX_PROCESSES = 16
REPLICAS = 200  # of the bootstrap of the demo
_DEMO_PACKAGES = ("jinja2", "matplotlib", "optax", "rich", "sklearn")  # as they are imported


def program() -> NoReturn:
    """The command `datarax`: runs `main`, and ends the process with its exit code."""
    try:
        try:
            raise_on_interrupt()
            code = main()
        finally:
            # What follows cannot be interrupted halfway, and has results only for whom waits.
            end_on_interrupt()
    except KeyboardInterrupt:  # outside of what `main` handles, or while it handled another one
        code = interrupts.INTERRUPTED
    interrupts.end(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code.

    The code is 0 for success; 1 if a reported number is wrong, a process failed or a condition of
    `--fail-if` holds; 2 for a bad argument or a missing package, with one line on stderr; and 130
    after an interrupt.

    Raises:
        SystemExit: raised by argparse for `--help`, `--version` and bad arguments.
    """
    args = _parser().parse_args(argv)
    try:
        with plain_output(), interrupts.noted():
            code = args.run(args)
            if code != interrupts.INTERRUPTED:
                interrupts.raise_if_any()  # the exception may have been dropped
            return code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return interrupts.INTERRUPTED


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # argparse would print the usage text first, which hides the message.
        self.exit(2, f"{self.prog}: error: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="datarax", description="Distributed metrics for JAX and Flax.")
    parser.add_argument("--version", action="version", version=f"datarax {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    demo = commands.add_parser(
        "demo",
        help="train on real data over several devices, and check every reported number",
        description="Trains a small classifier on scikit-learn's handwritten digits, data-parallel "
        "over simulated CPU devices or real processes, and checks every reported number against "
        "NumPy and scikit-learn. Exits with 1 if one differs by more than 1e-5. The training is "
        "the same on any number of devices or processes: the numbers agree to five digits.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    where = demo.add_mutually_exclusive_group()
    about = f"number of simulated CPU devices, in one process, 1 to {MAX_DEVICES}"
    add_integer(where.add_argument, "--devices", 1, MAX_DEVICES, about, default=8)
    about = f"number of real processes with one CPU device each, 1 to {MAX_PROCESSES}"
    add_integer(where.add_argument, "--processes", 1, MAX_PROCESSES, about, default=1)
    add_integer(demo.add_argument, "--epochs", 1, None, "passes over the data", default=10)
    demo.add_argument(
        "--slices",
        action="store_true",
        help="also report the test set by digit and by ink, with intervals",
    )
    demo.add_argument(
        "--output",
        type=a_folder,
        default=Path("datarax-demo"),
        metavar="DIR",
        help="folder for the history, the learning curve, and the report of the test set",
    )
    demo.set_defaults(run=_run_demo, parser=demo)

    add_commands(commands.add_parser)

    info = commands.add_parser("info", help="print versions and devices")
    info.set_defaults(run=_run_info)
    return parser


def _run_demo(args: argparse.Namespace) -> int:
    parser, several = args.parser, args.processes > 1
    # Ctrl-C is held while modules are imported.
    with interrupts.held():
        missing = [name for name in _DEMO_PACKAGES if find_spec(name) is None]
        if missing:
            parser.error(f"not installed: {', '.join(missing)}; run: pip install '.[demo]'")
        try:
            _clear(args.output)
        except OSError as error:
            reason = error.strerror or error
            parser.error(f"argument --output: cannot write to {str(args.output)!r}: {reason}")
        # Before JAX is imported. Each of several processes has one device.
        simulate_devices(1 if several else args.devices, os.environ)
        module = import_module(f"datarax.cli.{'launch' if several else 'demo'}")
    if several:
        code = module.run_demo(args.processes, args.epochs, args.output)
    else:
        code = module.run(args.devices, args.epochs, args.output)
    return code or _report_demo(args)


def _clear(folder: Path) -> None:
    """Removes the files of an earlier run, so that none is left if this run is stopped."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("history.jsonl", "learning_curve.png", "predictions.npz", "report/report.html"):
        (folder / name).unlink(missing_ok=True)
    (folder / "history.jsonl").touch(exist_ok=False)


def _report_demo(args: argparse.Namespace) -> int:
    """Evaluates the predictions of the test set with the command that is for files."""
    options = ["--task", "multiclass", "--preds", "logits", "--target", "digit", "--no-progress"]
    options += ["--bootstrap", str(REPLICAS), "--output", str(args.output / "report")]
    options += ["--slice-by", "digit", "--slice-by", "ink"] * args.slices
    argv = ["evaluate", str(args.output / "predictions.npz"), *options]
    print(f"\n$ datarax {shlex.join(argv)}", flush=True)
    # An earlier run of the demo may have left results there.
    return main([*argv, "--overwrite"])


def simulate_devices(count: int, environ: MutableMapping[str, str]) -> None:
    """Sets the environment so that JAX starts with `count` CPU devices.

    It has no effect after JAX has made its first device.
    """
    flags = re.sub(r"--xla_force_host_platform_device_count=\S*", "", environ.get("XLA_FLAGS", ""))
    flags = f"{flags} --xla_force_host_platform_device_count={count}"
    environ["XLA_FLAGS"] = flags.strip()
    environ["JAX_PLATFORMS"] = "cpu"
    # This variable sets the number of devices too. JAX raises an error if both are set.
    environ.pop("JAX_NUM_CPU_DEVICES", None)


def _run_info(args: argparse.Namespace) -> int:
    """Prints versions and devices, for bug reports."""
    with interrupts.held():
        from importlib import metadata

        import jax

    print(f"datarax {__version__}")
    for name in ("jax", "jaxlib", "flax", "numpy", "optax"):
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            version = "not installed"
        print(name, version)
    print(f"python {platform.python_version()} ({platform.platform()})")
    # Equal devices are one line: a machine may have hundreds.
    kinds = Counter((device.platform, device.device_kind) for device in jax.devices())
    for (name, kind), count in kinds.items():
        print(f"devices {count} x {kind} ({name})")
    print(f"process {jax.process_index()} of {jax.process_count()}")
    return 0
