"""Ctrl-C that comes while a command starts is never lost, whatever drops the exception."""

import signal
import subprocess
import sys
import threading
import types
import weakref
from importlib import machinery

import pytest

from datarax import cli
from datarax.cli import interrupts, main
from tests.test_layers import ROOT

COMMANDS = "datarax.cli.evaluation_commands"
ARGUMENTS = {
    "evaluate": ("evaluate", "a.csv", "--task", "binary", "--preds", "p", "--target", "t"),
    "compare": ("compare", "a.csv", "a.csv", "--task", "text", "--preds", "p", "--target", "t"),
    "merge": ("merge", "a", "--output", "b"),
}


def interrupt(*_):
    signal.raise_signal(signal.SIGINT)


def dropped():
    """Ctrl-C in a callback, where every exception is dropped; JAX has such callbacks."""

    class Target:
        pass

    target = Target()
    keep = weakref.ref(target, interrupt)
    del target, keep


def turned():
    """Ctrl-C in an import that turns every exception into another."""
    try:
        interrupt()
    except BaseException:
        raise ImportError("initialization failed") from None


class Stand:
    """Imports a module in the place of the commands, which is interrupted, and then returns 0."""

    def __init__(self, call, when):
        self.call, self.when = call, when

    def find_spec(self, name, path, target=None):
        return machinery.ModuleSpec(name, self) if name == COMMANDS else None

    def create_module(self, spec):
        return types.ModuleType(spec.name)

    def exec_module(self, module):
        if self.when == "import":
            self.call()

        def command(args):
            if self.when == "run":
                self.call()
            return 0

        module.evaluate = module.compare = module.merge = command


@pytest.fixture
def commands():
    """The module of the commands is here again after the test, also as an attribute."""
    before = sys.modules.get(COMMANDS)
    yield
    sys.modules.pop(COMMANDS, None)
    if hasattr(cli, "evaluation_commands"):
        delattr(cli, "evaluation_commands")
    if before is not None:
        sys.modules[COMMANDS] = before
        setattr(cli, "evaluation_commands", before)  # noqa: B010


@pytest.fixture
def handled():
    # A shell that runs its tests in the background makes them ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not interrupts.came()
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("when", ["import", "run"])
@pytest.mark.parametrize("call", [interrupt, dropped, turned])
def test_it_is_not_lost(handled, commands, monkeypatch, capsys, call, when):
    for name, argv in ARGUMENTS.items():
        sys.modules.pop(COMMANDS, None)
        with monkeypatch.context() as patched:
            patched.setattr(sys, "meta_path", [Stand(call, when), *sys.meta_path])
            assert main(argv) == 130, name
        assert capsys.readouterr() == ("", "interrupted\n")


def test_it_is_not_lost_while_the_main_thread_waits(handled):
    ended, seen = threading.Event(), []

    def call(give):
        give(1)
        ended.wait(60)

    def take():
        for item in interrupts.beside(call):
            seen.append(item)
            dropped()

    with interrupts.noted(), pytest.raises(KeyboardInterrupt):
        take()
    assert seen == [1]
    ended.set()
    # It counts for one block only.
    with interrupts.noted():
        assert interrupts.promptly(lambda: 2) == 2


def test_it_is_ignored_where_the_program_ignores_it(handled):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupts.noted():
        interrupt()
        assert not interrupts.came()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_it_is_held_while_jax_is_imported():
    """The whole command, interrupted in callbacks while it imports modules of Rich and of JAX."""
    code = """
import signal, sys, weakref
class Interrupting:
    def find_spec(self, name, path, target=None):
        if name in ("jax._src.xla_bridge", "rich.console"):
            target = Interrupting()
            keep = weakref.ref(target, lambda _: signal.raise_signal(signal.SIGINT))
            del target  # the callback of a weak reference drops every exception
sys.meta_path.insert(0, Interrupting())
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv = ["datarax", "merge", "none", "--output", "other"]
from datarax.cli import program
program()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_what_a_callback_drops_is_printed_unless_it_is_the_interrupt():
    """Python prints what is raised in a callback of a weak reference, and goes on."""
    code = """
import signal, weakref
from datarax.cli import interrupts
def drop(call):
    class Target: pass
    target = Target()
    keep = weakref.ref(target, call)
    del target
def fail(_):
    raise ValueError("a fault of a callback")
signal.signal(signal.SIGINT, signal.default_int_handler)
with interrupts.noted():
    drop(fail)
    drop(lambda _: signal.raise_signal(signal.SIGINT))
    drop(fail)
    assert interrupts.came()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stderr.count("ValueError: a fault of a callback") == 2
    assert "KeyboardInterrupt" not in done.stderr
