"""What does not fit, is damaged or is not there: a named error, and nothing half-restored."""

import contextlib
import hashlib
import itertools
import json
import re
import shutil
import sys
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import datarax
from datarax import (
    CheckpointError,
    ConfigurationMismatchError,
    DataraxError,
    MetricTypeError,
    MissingExtraError,
)
from datarax.algebra.fields import REQUIRED
from datarax.algebra.saving import plain
from datarax.io import checkpoint, pack, restore, save, unpack
from datarax.metrics import Accuracy, Max, Mean, Min, Std, Sum, Variance
from datarax.training import StatefulMetric
from tests import processes
from tests.helpers import bits, make_mesh
from tests.helpers import x64 as with_x64
from tests.io.kinds import Kept, Ratio, assert_same_bits, random_batch, several
from tests.registry import CASES

# Saved, restored into, and what the error says.
OTHERS = {
    "class": (Max(), Min(), "Min is a datarax.*Min; the saved state is of a datarax.*Max"),
    "metric or collection": (Mean(), datarax.Collection({"a": Mean()}), "Collection is a .*Mean"),
    "threshold": (
        Accuracy(threshold=0.9),
        Accuracy(),
        r"Accuracy\.threshold is 0.9 in the saved state and 0.5 here",
    ),
    "classes": (
        Accuracy(num_classes=3),
        Accuracy(num_classes=4),
        r"Accuracy\.num_classes is 3 in the saved state and 4 here",
    ),
    "task": (Accuracy(num_classes=3), Accuracy(num_labels=3), "num_classes is 3 .* and None here"),
    "average": (
        Accuracy(num_classes=3, average=None),
        Accuracy(num_classes=3),
        "average is None in the saved state and 'micro' here",
    ),
    "ddof": (Variance(ddof=1), Variance(), "ddof is 1 in the saved state and 0 here"),
    "policy": (Mean(on_invalid="raise"), Mean(), "on_invalid is 'raise' .* and 'propagate' here"),
    "capacity": (Kept(8), Kept(9), "capacity is 8 in the saved state and 9 here"),
    "dtype": (Kept(dtype="float32"), Kept(dtype="float16"), "dtype is 'float32' .* 'float16' here"),
    "function": (Ratio(np.tanh), Ratio(np.sin), r"of is .*tanh.* and .*sin.* here"),
    "number": (Ratio(power=0.1), Ratio(power=0.1 + 2**-55), r"power is 0\.1 .* 0\.1000"),
    "members": (
        datarax.Collection({"a": Mean(), "b": Max()}),
        datarax.Collection({"a": Mean(), "c": Max()}),
        r"Collection: the saved state holds \['a', 'b'\]; expected \['a', 'c'\]",
    ),
    "member": (
        datarax.Collection({"a": Mean(), "in": datarax.Collection({"b": Accuracy()})}),
        datarax.Collection({"a": Mean(), "in": datarax.Collection({"b": Accuracy(threshold=1)})}),
        r"Collection\.in\.b\.threshold is 0.5 in the saved state and 1.0 here",
    ),
}


class Total(datarax.Metric):
    def __init__(self, shape, op="sum"):
        self.total = datarax.MetricAccumulator(np.zeros(shape), op)


@pytest.mark.parametrize("name", OTHERS)
def test_another_metric_is_refused_and_named(tmp_path, name):
    saved, like, message = OTHERS[name]
    save(tmp_path / "a", saved)
    for layout in (like, datarax.per_device(like, make_mesh("auto", {"data": 2}), "data")):
        with pytest.raises(ConfigurationMismatchError, match=message):
            restore(tmp_path / "a", layout)
        with pytest.raises(ConfigurationMismatchError, match=message):
            layout.load_state_dict(saved.state_dict())
    with pytest.raises(ConfigurationMismatchError, match=re.escape(str(tmp_path / "a"))):
        restore(tmp_path / "a", like)
    assert_same_bits(restore(tmp_path / "a", saved), saved)


def test_a_field_that_is_newer_than_the_state_had_its_default():
    """Of every metric, as if each of its fields were new."""
    tried = set()
    for case in CASES:
        saved, fields = case.make().state_dict(), case.cls.fields
        for name, value in saved["config"].items():
            if fields[name].default is REQUIRED or not fields[name].restored:
                continue
            config = {other: x for other, x in saved["config"].items() if other != name}
            load = partial(case.make().load_state_dict, {**saved, "config": config})
            # Rank correlations kept rows alone before they had `exact`, and are read as either.
            rows_alone = name == "exact" and "capacity" in fields
            if value == plain(fields[name].default) or rows_alone:
                assert bits(load().state_dict()["state"]) == bits(saved["state"]), case.id
            else:
                with pytest.raises(ConfigurationMismatchError, match=rf"\.{name} is "):
                    load()
            tried.add(value == plain(fields[name].default))
    assert tried == {True, False}


def test_another_shape_operation_or_width_is_refused():
    def refuses(saved, like, message):
        with pytest.raises(ConfigurationMismatchError, match=message):
            unpack(*pack(saved), like)
        with pytest.raises(ConfigurationMismatchError, match=message):
            like.load_state_dict(saved.state_dict())

    refuses(Total((2,)), Total((3,)), r"Total\.total\.initial_value is .*\(2,\).* \(3,\)")
    refuses(Total(2, "max"), Total(2, "min"), "op is 'max' in the saved state and 'min' here")
    with with_x64():
        wide = Sum().update(np.arange(3))
    refuses(wide, Sum(), "'int64'.* in the saved state and .*'int32'.* here")
    # Arrays that do not fit the configuration beside them.
    saved = Total((2,)).state_dict()
    parts = saved["state"]["total"]["state"]["parts"]
    for array in (np.zeros(3, np.float32), np.zeros(2, np.float64), np.zeros(2, np.int32), 0):
        parts["0"] = array
        with pytest.raises(
            ConfigurationMismatchError, match=r"parts\.0 is .*; expected float32\[2"
        ):
            Total((2,)).load_state_dict(saved)
    for broken in ({}, None, [1], saved["state"], saved | {"state": {}}, saved | {"type": "Mean"}):
        with pytest.raises(ConfigurationMismatchError, match="Total"):
            Total((2,)).load_state_dict(broken)


def test_newer_and_foreign_formats_are_refused():
    arrays, info = pack(Mean())
    newer = info | {"format": checkpoint.FORMAT + 1, "metric": "as yet unknown"}
    with pytest.raises(CheckpointError, match=r"has format 6, .* reads format 5; read it with"):
        unpack(arrays, newer, Mean())
    for foreign in ({}, None, [info], {"format": 1}, {"metric": info["metric"]}):
        with pytest.raises(CheckpointError, match="description is incomplete"):
            unpack(arrays, foreign, Mean())
    for foreign in ({}, None, {"other": arrays["state"]}):
        with pytest.raises(CheckpointError, match="'state' is missing"):
            unpack(foreign, info, Mean())


def test_any_change_of_what_was_packed_is_found(rng):
    seen = several().update(**random_batch(rng, 20))
    arrays, info = pack(seen)
    assert_same_bits(unpack(arrays, json.loads(json.dumps(info)), several()), seen)
    state = arrays["state"]
    for _ in range(20):
        flipped = state.copy()
        flipped[rng.integers(state.size)] ^= np.uint8(1 << rng.integers(8))
        with pytest.raises(CheckpointError, match="damaged"):
            unpack({"state": flipped}, info, several())
    for cut in (state[:-1], state[:0], np.append(state, state[:1]), state.astype(np.int32)):
        with pytest.raises(CheckpointError, match="damaged"):
            unpack({"state": cut}, info, several())
    text = json.dumps(info)
    for old, new in {"0.5": "0.25", '"propagate"': '"raise"', '"float32"': '"uint32"'}.items():
        with pytest.raises(CheckpointError, match="damaged"):
            unpack(arrays, json.loads(text.replace(old, new)), several())


def attempt(folder, like):
    try:
        return restore(folder, like), ""
    except CheckpointError as error:
        return None, str(error)


def test_damaged_files_are_exact_or_refused(tmp_path, rng):
    """Files deleted, cut short, and with one bit flipped: never another value, nor another error.

    Some files are not read at all (marks of success, the log of each process), and then the state
    comes back whole.
    """
    like, folder = several(), tmp_path / "a"
    seen = like.update(**random_batch(rng, 20))
    save(folder, seen)
    needed = set()
    for file in [path for path in sorted(folder.rglob("*")) if path.is_file()]:
        data = file.read_bytes()
        damages = [None, b"", data[: len(data) // 2], data[:-1], bytes(len(data))]
        for _ in range(6):
            flipped = bytearray(data)
            flipped[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
            damages.append(bytes(flipped))
        for damage in damages:
            file.unlink() if damage is None else file.write_bytes(damage)
            back, said = attempt(folder, like)
            if back is not None:
                assert_same_bits(back, seen)
            else:
                needed.add(file.parent.name + "/" + re.sub("[0-9a-f]{32}", "data", file.name))
                assert str(folder) in said
                assert re.search("incomplete|damaged|format", said)
                assert len(said) < 500
            file.write_bytes(data)
    assert {"d/data", "info/metadata", "arrays/_METADATA", "arrays/manifest.ocdbt"} <= needed
    assert_same_bits(restore(folder, like), seen)
    assert_same_bits(like, several())


def test_what_is_not_there_or_cannot_be_written(tmp_path):
    with pytest.raises(CheckpointError, match=f"no checkpoint at {tmp_path / 'none'}"):
        restore(tmp_path / "none", Mean())
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        restore(tmp_path / "file", Mean())
    with pytest.raises(CheckpointError, match="incomplete or damaged"):
        restore(tmp_path / "folder", Mean())
    with pytest.raises(CheckpointError, match="exists already; pass overwrite=True"):
        save(tmp_path / "folder", Mean())
    for overwrite in (False, True):
        with pytest.raises(CheckpointError, match="cannot be written: "):
            save(tmp_path / "file" / "below", Mean(), overwrite=overwrite)
    assert (tmp_path / "file").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_no_checkpoint_is_never_replaced(tmp_path, monkeypatch, overwrite):
    """Files, folders of a user, other checkpoints, checkpoints with more in them."""
    import orbax.checkpoint as ocp

    (tmp_path / "file").write_text("mine")
    (tmp_path / "pictures").mkdir()
    for name in "abcde":
        (tmp_path / "pictures" / name).write_text(name)
    save(tmp_path / "runs" / "last", Mean())
    with ocp.StandardCheckpointer() as other:
        other.save(tmp_path / "model", {"arrays": np.zeros(2), "info": np.zeros(2)})
    save(tmp_path / "more", Mean())
    (tmp_path / "more" / "notes.txt").write_text("mine")
    save(tmp_path / "damaged", Mean())
    (tmp_path / "damaged" / "info" / "metadata").write_text('{"format": 5')
    (tmp_path / "link").symlink_to(tmp_path / "pictures")
    # A file of the user's and a link deep within; what looks like a checkpoint; one that does not
    # say what was written.
    shutil.copytree(tmp_path / "runs" / "last", tmp_path / "deep")
    (tmp_path / "deep" / "arrays" / "mine").write_text("mine")
    (tmp_path / "deep" / "info" / "link").symlink_to(tmp_path / "pictures")
    (tmp_path / "alike" / "arrays").mkdir(parents=True)
    (tmp_path / "alike" / "arrays" / "mine").write_text("mine")
    (tmp_path / "alike" / "info").mkdir()
    shutil.copy(tmp_path / "runs" / "last" / "datarax.json", tmp_path / "alike")
    (tmp_path / "alike" / "info" / "metadata").write_text(
        '{"format": 5, "metric": {}, "sha256": ""}'
    )
    shutil.copytree(tmp_path / "runs" / "last", tmp_path / "earlier")
    (tmp_path / "earlier" / "datarax.json").unlink()
    before = contents(tmp_path)
    for name, said in {
        "file": "file is a file, which is kept; give a folder",
        "pictures": "pictures holds 'a', 'b', 'c' and 2 more, which is kept",
        "link": "pictures holds 'a', 'b', 'c'",
        "runs": "runs holds 'last', which is kept",
        "model": "model holds '_",
        "more": "more holds 'notes.txt', which is kept",
        "damaged": "damaged holds 'info/metadata', which is kept",
        "deep": "deep holds 'arrays/mine', 'info/link', which is kept",
        "alike": "alike holds 'arrays/mine', 'info/metadata', which is kept",
        "earlier": "earlier holds '_CHECKPOINT_METADATA', 'arrays', ",
        ".": f"{tmp_path.name} is the current directory, or holds it",
        "..": f"{tmp_path.parent.name} is the current directory, or holds it",
        "": f"{tmp_path.name} is the current directory, or holds it",
    }.items():
        monkeypatch.chdir(tmp_path)
        with pytest.raises(CheckpointError, match=re.escape(said)):
            save(name, Mean(), overwrite=overwrite)
        assert contents(tmp_path) == before
    # Not even a checkpoint, while it is the current directory.
    monkeypatch.chdir(tmp_path / "runs" / "last" / "info")
    with pytest.raises(CheckpointError, match="current directory"):
        save(tmp_path / "runs" / "last", Mean(), overwrite=overwrite)
    assert contents(tmp_path) == before


def test_what_overwrite_replaces(tmp_path):
    """An empty folder, a checkpoint of any format, and what a link leads to; the link stays."""
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    for name in ("a", "a", "link"):
        metric = Mean().update(jnp.float32(len(contents(tmp_path))))
        save(tmp_path / name, metric, overwrite=True)
        for path in ("a", "link"):
            assert_same_bits(restore(tmp_path / path, Mean()), metric)
    assert (tmp_path / "link").is_symlink()
    info = tmp_path / "a" / "info" / "metadata"
    info.write_text(json.dumps(json.loads(info.read_text()) | {"format": 1}))
    with pytest.raises(CheckpointError, match="has format 1"):
        restore(tmp_path / "a", Mean())
    with pytest.raises(CheckpointError, match="exists already; pass overwrite=True"):
        save(tmp_path / "link", Mean())
    save(tmp_path / "a", Mean(), overwrite=True)
    assert_same_bits(restore(tmp_path / "link", Mean()), Mean())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "link"]


def test_what_is_beside_is_kept(tmp_path):
    """Folders of the user's, whatever their names; and what was put into one of ours."""
    names = (".a.old", ".a.new", ".a.orbax-checkpoint-tmp", "a.old", "a.new")
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").write_text(name)
    before = contents(tmp_path)
    for count in (1, 2):
        save(tmp_path / "a", Sum().update(count), overwrite=True)
    assert restore(tmp_path / "a", Sum()).results() == 2
    assert {path.name for path in tmp_path.iterdir()} == {"a", *names}
    assert before.items() <= contents(tmp_path).items()

    work = tmp_path / ".a.datarax-save"
    (tmp_path / ".a.new").rename(work)
    with pytest.raises(CheckpointError, match=r"datarax-save holds 'mine', which is kept"):
        save(tmp_path / "a", Sum(), overwrite=True)
    (work / "datarax.json").write_text("datarax.io.save works in .a.datarax-save\n")
    with pytest.raises(CheckpointError, match=r"datarax-save holds 'mine', which is kept"):
        save(tmp_path / "a", Sum(), overwrite=True)
    assert (work / "mine").read_text() == ".a.new"
    (work / "mine").unlink()
    for name in ("new data", "newest", "new.orbax-checkpoint-tmp-mine"):
        (work / name).mkdir()
        with pytest.raises(CheckpointError, match=rf"datarax-save holds '{name}', which is kept"):
            save(tmp_path / "a", Sum(), overwrite=True)
        (work / name).rmdir()
    (work / "new.orbax-checkpoint-tmp").mkdir()  # killed while it wrote
    shutil.copytree(tmp_path / "a", work / "old")
    (work / "old" / "info" / "mine").write_text("mine")
    with pytest.raises(CheckpointError, match=r"datarax-save/old holds 'info/mine', which is kept"):
        save(tmp_path / "a", Sum(), overwrite=True)
    (work / "old" / "info" / "mine").unlink()
    save(tmp_path / "a", Sum(), overwrite=True)
    assert not work.exists()
    work.symlink_to(tmp_path / ".a.old")
    with pytest.raises(CheckpointError, match="datarax-save is no folder, which is kept"):
        save(tmp_path / "a", Sum(), overwrite=True)
    assert (tmp_path / ".a.old" / "mine").read_text() == ".a.old"


def test_an_earlier_checkpoint_that_was_left_is_named_and_not_taken(tmp_path):
    """A save was killed before it deleted the old one, and the user deleted the new one."""
    folder, work = tmp_path / "a", tmp_path / ".a.datarax-save"
    save(folder, Sum().update(1))
    work.mkdir()
    (work / "datarax.json").write_text("datarax.io.save works in .a.datarax-save\n")
    for left in (work / "old", tmp_path / ".a.old"):  # the second of an earlier version
        folder.rename(left)
        with pytest.raises(CheckpointError) as caught:
            restore(folder, Sum())
        assert f"no checkpoint at {folder}; " in str(caught.value)
        assert f"left an earlier one at {left}: " in str(caught.value)
        assert restore(left, Sum()).results() == 1
        left.rename(folder)


def test_paths_that_lead_nowhere(tmp_path):
    for a, b in ("lm", "ml"):
        (tmp_path / a).symlink_to(tmp_path / b)
    for path in ("a\0b", "n" * 5000, tmp_path / ("n" * 300), tmp_path / "l"):
        with pytest.raises(CheckpointError, match="save: "):
            save(path, Sum(), overwrite=True)
        with pytest.raises(CheckpointError, match="restore: "):
            restore(path, Sum())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["l", "m"]


def signed(tree, state):
    """A description whose checksum is right, as an attacker writes it."""
    text = json.dumps(tree, sort_keys=True).encode()
    return {
        "format": checkpoint.FORMAT,
        "metric": tree,
        "sha256": hashlib.sha256(text + state.tobytes()).hexdigest(),
    }


def arrays_in(node):
    """The dicts that stand for an array in a description."""
    if isinstance(node, dict):
        if isinstance(node.get(""), list):
            yield node
        else:
            for item in node.values():
                yield from arrays_in(item)


@pytest.mark.parametrize(
    "described",
    [
        ["float32", [2], -8],
        ["float32", [2], 2**40],
        ["float32", [2], 4],
        ["float32", [-2], 0],
        ["float32", [2**61], 0],
        ["float32", [2**31, 2**31, 2**31], 0],
        ["float32", [0, 2**70], 0],
        ["float32", [1] * 100, 0],
        ["float32", [True, True], False],
        ["float32", [1.0], 0],
        ["float32", "22", 0],
        ["float32", 2, 0],
        ["float32", [2], "0"],
        ["float32", [2], None],
        ["float32", [2]],
        [],
        ["object", [2], 0],
        ["O", [2], 0],
        ["void", [2], 0],
        ["V2147483647", [2], 0],
        ["i4,(", [2], 0],
        ["no such dtype", [2], 0],
        [None, [2], 0],
        [["float32"], [2], 0],
    ],
    ids=str,
)
def test_a_description_that_lies_is_refused(tmp_path, rng, described):
    """Offsets outside, before, across; sizes that no memory holds; dtypes of objects."""
    arrays, info = pack(Variance().update(np.float32(rng.normal(size=9))))
    count = len(list(arrays_in(info["metric"])))
    for place in {0, count - 1, int(rng.integers(count))}:
        tree = json.loads(json.dumps(info["metric"]))
        list(arrays_in(tree))[place][""] = described
        with pytest.raises(CheckpointError, match="damaged"):
            unpack(arrays, signed(tree, arrays["state"]), Variance())


def test_arrays_that_overlap_or_leave_bytes_unused_are_refused(rng):
    arrays, info = pack(Variance().update(np.float32(rng.normal(size=9))))
    state, tree = arrays["state"], info["metric"]
    unpack(arrays, signed(tree, state), Variance())
    places = list(arrays_in(tree))
    for one, other in itertools.permutations(range(len(places)), 2):
        twice = json.loads(json.dumps(tree))
        a, b = (list(arrays_in(twice))[place] for place in (one, other))
        if a[""][2] == b[""][2]:
            continue
        a[""][2] = b[""][2]
        with pytest.raises(CheckpointError, match=r"starts at byte|dtype, shape"):
            unpack(arrays, signed(twice, state), Variance())
    longer = np.append(state, state)
    with pytest.raises(CheckpointError, match=f"{state.size} bytes by .* {longer.size} bytes are"):
        unpack({"state": longer}, signed(tree, longer), Variance())


def test_a_description_with_random_changes_gives_a_named_error_or_a_metric(rng):
    """Each value of a description replaced by another kind, with a checksum that is right."""
    arrays, info = pack(several().update(**random_batch(rng, 20)))
    strange = [None, True, -1, 2**64, 0.5, "", "float64", "x" * 2000, [], [[1], [1, 2]], {}]

    def slots(node):
        for key, item in node.items() if isinstance(node, dict) else enumerate(node):
            yield node, key
            if isinstance(item, dict | list):
                yield from slots(item)

    for _ in range(200):
        tree = json.loads(json.dumps(info["metric"]))
        found = list(slots(tree))
        node, key = found[rng.integers(len(found))]
        node[key] = strange[rng.integers(len(strange))]
        with contextlib.suppress(DataraxError):
            unpack(arrays, signed(tree, arrays["state"]), several())
    deep: list = []
    for _ in range(sys.getrecursionlimit()):
        deep = [deep]
    nested: dict = {}
    for _ in range(sys.getrecursionlimit()):
        nested = {"a": nested}
    for endless in (deep, nested, {"a": {1, 2}}, {"a": np.zeros(2)}, [float], None):
        with pytest.raises(DataraxError):
            unpack(arrays, info | {"metric": endless}, several())


def test_no_more_is_read_than_the_metric_holds(tmp_path):
    """A file of a kilobyte that says it holds a terabyte, in its description and to Orbax."""
    folder, size = tmp_path / "a", 2**40
    save(folder, Total((2,)))
    info = json.loads((folder / "info" / "metadata").read_text())
    last = max(arrays_in(info["metric"]), key=lambda node: node[""][2])
    start = last[""][2]
    text = json.dumps(info).replace(
        json.dumps(last), json.dumps({"": ["uint8", [size - start], start]})
    )
    (folder / "info" / "metadata").write_text(text)
    with pytest.raises(CheckpointError, match=f"damaged: its arrays have {size} bytes by its desc"):
        restore(folder, Total((2,)))
    # Zeros take no bytes in the file.
    import orbax.checkpoint as ocp
    import tensorstore as ts

    shutil.rmtree(folder / "arrays")
    with ocp.PyTreeCheckpointer(use_ocdbt=False) as writer:
        writer.save(folder / "arrays", {"state": np.zeros(8, np.uint8)})
    store = next(path.parent for path in folder.rglob(".zarray"))
    shutil.rmtree(store)
    spec = {"driver": "zarr", "kvstore": f"file://{store}/", "create": True}
    ts.open(spec, dtype=ts.uint8, shape=[size]).result()
    with pytest.raises(ConfigurationMismatchError, match=rf"is uint8\[{size - start}\] in"):
        restore(folder, Total((2,)))


def test_what_is_no_metric(tmp_path):
    save(tmp_path / "a", Mean())
    for wrong in (None, {"loss": 1.0}, Mean, datarax.MetricAccumulator(0)):
        for call in (
            lambda x=wrong: save(tmp_path / "b", x),
            lambda x=wrong: restore(tmp_path / "a", x),
            lambda x=wrong: pack(x),
        ):
            with pytest.raises(MetricTypeError, match=r"expected a datarax\.Metric; got "):
                call()
    with pytest.raises(MetricTypeError, match=r"got StatefulMetric, whose \.metric is one"):
        save(tmp_path / "b", StatefulMetric(Mean()))
    assert not (tmp_path / "b").exists()


def test_without_orbax_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)  # Python's own way to fail an import
    command = r"run: pip install '\.\[checkpoint\]' in a clone of datarax, or pip install orbax-"
    with pytest.raises(MissingExtraError, match=command):
        save(tmp_path / "a", Mean())
    with pytest.raises(MissingExtraError, match=command):
        restore(tmp_path / "a", Mean())


def test_a_state_that_was_donated_is_not_saved_in_part(tmp_path):
    mean = jax.jit(lambda m, x: m.update(x))(Mean(), jnp.ones(3))
    jax.jit(lambda m, x: m.update(x), donate_argnums=0)(mean, jnp.ones(3))
    with pytest.raises(RuntimeError, match="deleted"):
        save(tmp_path / "a", mean)
    assert not (tmp_path / "a").exists()


def save_over_and_over(folder):
    total = datarax.Collection({"steps": Sum(), "spread": Std()})
    for step in range(1000):
        total = total.update(values=jnp.float32(step))
        save(folder, total, overwrite=True)
        processes.mark(str(step))


def test_killed_while_it_saves_leaves_the_last_whole(tmp_path, rng):
    folder = tmp_path / "last"
    with processes.Group(save_over_and_over, 1, folder, join=False, timeout=90) as group:
        group.await_mark(0, "2")
        time.sleep(rng.uniform(0, 0.3))
        group.kill(0)
        reached = int(group.marks(0)[-1])
    like = datarax.Collection({"steps": Sum(), "spread": Std()})
    # What was saved when it was killed is the last step that was marked, or the next.
    found = restore(folder, like)
    assert found.results()["steps"] in [sum(range(n + 1)) for n in (reached, reached + 1)]
    # Killed between the two renames, of the old folder and of the new: both are there.
    work = tmp_path / ".last.datarax-save"
    if folder.exists():
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        (work / "datarax.json").write_text("datarax.io.save works in .last.datarax-save\n")
        shutil.copytree(folder, work / "old")
        folder.rename(work / "new")
    assert_same_bits(restore(folder, like), found)
    save(folder, Mean(), overwrite=True)
    assert_same_bits(restore(folder, Mean()), Mean())
    assert [path.name for path in tmp_path.iterdir() if "last" in path.name] == ["last"]
