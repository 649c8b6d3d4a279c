"""Metrics saved and restored: every kind, bit for bit, on other devices, and amid the loop."""

import copy
import pickle
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

import datarax
from datarax._update_context import in_update
from datarax.io import pack, restore, save, unpack
from datarax.metrics import F1, Accuracy, HammingDistance, Max, Mean, Sum
from datarax.testing.subject import numbers
from tests.helpers import make_mesh, place, update
from tests.helpers import x64 as with_x64
from tests.io.kinds import (
    KINDS,
    Kept,
    assert_same_bits,
    assert_same_results,
    everything,
    random_batch,
    several,
)


def results(metric):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", datarax.InvalidValuesWarning)
        return metric.results()


def through_numpy(metric, like):
    """A state dict, and what a pickle makes of it: plain Python and NumPy."""
    saved = pickle.loads(pickle.dumps(metric.state_dict()))
    check_plain(saved)
    return like.load_state_dict(saved)


def check_plain(node):
    if isinstance(node, dict):
        assert all(type(key) is str for key in node)
        node = list(node.values())
    if isinstance(node, list):
        for item in node:
            check_plain(item)
    else:
        assert type(node) in (np.ndarray, int, float, str, bool, type(None))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_comes_back_bit_for_bit(tmp_path, rng, kind):
    empty, own_update = KINDS[kind]
    # On devices those that have all kinds of state between them, the others on the host.
    step = jax.jit(own_update)
    if kind not in ("collection", "ratio"):
        step = in_update(checks="none")(own_update)
    seen = step(step(empty, random_batch(rng, 30)), random_batch(rng, 30))
    other, more = step(empty, random_batch(rng, 30)), random_batch(rng, 30)
    after = step(seen, more)
    for number, (metric, like) in enumerate([(seen, other), (seen, empty), (empty, seen)]):
        path = tmp_path / "nested folder" / str(number)
        save(path, metric)
        restored = [restore(path, like), unpack(*pack(metric), like), through_numpy(metric, like)]
        for each in restored:
            assert_same_bits(each, metric)
        if number == 0:
            for each in restored:
                assert_same_results(results(each), results(seen))
                assert_same_bits(step(each, more), after)


def test_64_bits_come_back_too(tmp_path, rng):
    with with_x64():
        seen = update(everything(), **random_batch(rng, 30))
        seen = seen.replace(greatest=seen["greatest"].update(values=jnp.float64(1e300)))
        save(tmp_path / "x64", seen)
        assert_same_bits(restore(str(tmp_path / "x64"), everything()), seen)


def test_what_comes_back_is_ones_own(rng):
    seen = update(everything(), **random_batch(rng, 30))
    saved = seen.state_dict()
    kept = copy.deepcopy(saved)
    back = everything().load_state_dict(saved)

    def scribble(node):
        for item in node.values() if isinstance(node, dict) else ():
            if isinstance(item, np.ndarray):
                item[...] = 1
            scribble(item)

    scribble(saved)
    assert_same_bits(seen, everything().load_state_dict(kept))
    assert_same_bits(back, seen)


# On another number of devices.

ON_8 = ("auto", {"data": 4, "expert": 2})
LAYOUTS = [
    ("auto", {"data": 1}),
    ("explicit", {"data": 2}),
    ("explicit", {"data": 4, "tensor": 2}),
]


def spread(metric, layout):
    kind, axes = layout
    mesh = make_mesh(kind, axes)
    return datarax.per_device(metric, mesh, tuple(name for name in axes if name != "tensor"))


def updated(metric, batch):
    return jax.block_until_ready(update(metric, **place(batch, metric.mesh, P(metric.axis_names))))


def test_saved_on_8_devices_restored_on_others(tmp_path, rng):
    first, more = random_batch(rng, 64), random_batch(rng, 64)
    seen = updated(spread(several(), ON_8), first)
    save(tmp_path / "a", seen)
    merged = restore(tmp_path / "a", several()).canonical()
    # The copies were merged on the host before they were saved, in another order and precision.
    synced = numbers(seen.sync())
    for path, number in numbers(merged).items():
        np.testing.assert_allclose(np.asarray(number), np.asarray(synced[path]), 1e-6, 0, True)
    assert [spread(Mean(), each).device_count for each in LAYOUTS] == [1, 2, 4]
    restored = [restore(tmp_path / "a", spread(several(), layout)) for layout in LAYOUTS]
    for back in restored:
        whole = several().load_state_dict(back.state_dict())
        jax.tree.map(np.testing.assert_array_equal, whole.canonical(), merged)
    # The program of one layout: on some of the axes of an explicit mesh.
    jax.tree.map(np.testing.assert_array_equal, restored[-1].sync().canonical(), merged)
    want = results(update(update(several(), **first), **more))
    back = updated(restore(tmp_path / "a", spread(several(), LAYOUTS[2])), more)
    assert_same_results(without_rows(results(back)), without_rows(want), 2e-6)


def without_rows(values):
    """A buffer fills in the order of devices: which rows it kept depends on how many there are."""
    return {name: value for name, value in values.items() if name != "inner/config/rows"}


def three():
    return datarax.Collection({"epoch": Mean(), "run": Mean(), "sum": Sum()})


def test_members_that_no_longer_share_a_statistic_keep_their_own(tmp_path, rng):
    batch = random_batch(rng, 16)
    seen = three().update(values=batch["values"])
    seen = seen.replace(epoch=seen["epoch"].reset()).update(values=batch["values"])
    save(tmp_path / "a", seen)
    back = restore(tmp_path / "a", three())
    assert_same_results(results(back), results(seen))
    assert len(jax.tree.leaves(back)) == len(jax.tree.leaves(seen))
    assert results(back).get("run/invalid", 0) == 2 * results(back).get("epoch/invalid", 0)
    spread_out = restore(tmp_path / "a", spread(three(), LAYOUTS[1]))
    assert_same_results(results(spread_out), results(seen))


def test_a_plain_state_restores_on_devices_and_a_member_can_be_on_devices(tmp_path, rng):
    batch = random_batch(rng, 64)
    mixed = datarax.Collection(
        {
            "there": spread(Mean(), ON_8),
            "here": Max(),
        }
    )
    plain = datarax.Collection({"there": Mean(), "here": Max()})
    seen = plain.update(values=batch["values"], weights=batch["weights"])
    save(tmp_path / "plain", seen)
    back = restore(tmp_path / "plain", mixed)
    assert_same_results(results(back), results(seen))
    save(tmp_path / "mixed", back)
    assert_same_bits(restore(tmp_path / "mixed", plain), seen)
    assert_same_bits(back.reset()["there"].sync(), Mean())


def test_a_buffer_counts_what_did_not_fit_on_any_number_of_devices(tmp_path, rng):
    seen = spread(Kept(5, "float32").replace(on_invalid="exclude"), ("auto", {"data": 8}))
    rows = rng.normal(size=(64, 3)).astype(np.float32)
    seen = jax.block_until_ready(seen.update(rows))
    save(tmp_path / "a", seen)
    for n in (1, 4):
        like = Kept(5, "float32").replace(on_invalid="exclude")
        back = restore(tmp_path / "a", spread(like, ("auto", {"data": n})))
        with pytest.warns(datarax.InvalidValuesWarning, match="75 beyond the capacity"):
            back = jax.block_until_ready(back.update(rows[:16])).results()
        np.testing.assert_array_equal(back["rows"], rows[:5])
        assert back["overflow"] == 64 + 16 - 5


# A collection whose members, or the outputs that feed them, have changed.


def of_step(rng, **changed):
    """A collection of an accuracy and a loss, some rows for it, and their results."""
    step = {
        "preds": rng.integers(0, 3, 32),
        "target": rng.integers(0, 3, 32),
        "loss": rng.random(32).astype(np.float32),
    }
    members = {
        "acc": Accuracy(num_classes=3),
        "hamming": HammingDistance(num_classes=3),
        "loss": Mean().from_outputs(values="loss"),
        "health": datarax.Collection({"most": Max().from_outputs(values="loss")}),
    }
    return datarax.Collection({k: m for k, m in (members | changed).items() if m is not None}), step


def test_the_names_of_outputs_are_no_state(tmp_path, rng):
    metrics, step = of_step(rng)
    seen = metrics.update(**step)
    save(tmp_path / "a", seen)
    renamed = metrics.from_outputs(preds="logits").replace(
        loss=Mean().from_outputs(values="ce", weights=None),
        acc=Accuracy(num_classes=3).from_outputs(preds="chosen"),  # shares nothing any more
    )
    step |= {"logits": step["preds"], "chosen": step["preds"], "ce": step["loss"]}
    for like in (renamed, spread(renamed, LAYOUTS[1])):
        back = restore(tmp_path / "a", like)
        assert_same_results(results(back), results(seen))
        more = updated(back, step) if like is not renamed else update(back, **step)
        assert_same_results(results(more), results(update(seen, **step)), 1e-6)
    # Of the arguments of a wrapper, too.
    seen = datarax.Sliced(Mean(), 2).update(step["loss"], slices=step["preds"] % 2)
    like = datarax.Sliced(Mean(), 2).from_outputs(values="ce", slices="of")
    back = like.load_state_dict(seen.state_dict())
    assert_same_results(results(back), results(seen))
    assert [route.output for route in back.routes()][:1] == ["ce"]


def test_members_that_are_in_both_are_kept(tmp_path, rng):
    metrics, step = of_step(rng)
    seen = metrics.update(**step)
    save(tmp_path / "a", seen)
    wide = of_step(
        rng,
        f1=F1(num_classes=3),  # whose statistic the accuracy would share
        loss=None,
        health=datarax.Collection({"most": Max().from_outputs(values="loss"), "sum": Sum()}),
    )[0].from_outputs(values="loss")
    with pytest.raises(datarax.ConfigurationMismatchError, match=r"\['acc', 'f1', .*partial=True"):
        restore(tmp_path / "a", wide)
    for like in (wide, spread(wide, LAYOUTS[1])):
        back = [
            restore(tmp_path / "a", like, partial=True),
            unpack(*pack(seen), like, partial=True),
            like.load_state_dict(seen.state_dict(), partial=True),
        ]
        names = ("acc", "hamming", "health/most")
        for each in back:
            found, want = results(each), results(seen)
            kept = {name: want[name] for name in names}
            assert found == kept | {"f1": pytest.approx(np.nan, nan_ok=True), "health/sum": 0}
            assert list(each) == ["acc", "f1", "hamming", "health"]
        more = updated(back[0], step) if like is not wide else update(back[0], **step)
        new, twice = update(wide, **step), update(seen, **step)
        want = {name: results(twice)[name] for name in names}
        want |= {name: results(new)[name] for name in ("f1", "health/sum")}
        assert_same_results(results(more), want, 1e-6)
    # Back again: the accuracy was then saved with the counts by class.
    again = update(wide, **step)
    save(tmp_path / "b", again)
    back = restore(tmp_path / "b", metrics, partial=True)
    assert results(back)["acc"] == results(again)["acc"]
    assert np.isnan(results(back)["loss"])
    # Within a wrapper, whose states are several.
    inner = datarax.Collection({"a": Mean().from_outputs(values="loss")})
    sliced = update(datarax.Sliced(inner, 3), loss=step["loss"], slices=step["preds"])
    like = datarax.Sliced(datarax.Collection({"a": inner["a"], "b": Max()}), 3)
    back = like.load_state_dict(sliced.state_dict(), partial=True).results()
    assert all(back[name] == value for name, value in sliced.results().items() if "/a" in name)
    # What both have must be the same metric, and something must be in both.
    other = datarax.Collection({"acc": Accuracy(num_classes=4), "more": Mean()})
    with pytest.raises(datarax.ConfigurationMismatchError, match=r"acc\.num_classes is 3 "):
        restore(tmp_path / "a", other, partial=True)
    with pytest.raises(datarax.ConfigurationMismatchError, match="none of \\['more'\\]"):
        restore(tmp_path / "a", datarax.Collection({"more": Mean()}), partial=True)


@pytest.mark.parametrize("kind", [Accuracy, HammingDistance])
@pytest.mark.parametrize("size", [{}, {"num_classes": 3}, {"num_labels": 3}], ids=str)
def test_a_member_that_shared_a_finer_statistic_restores_alone(rng, kind, size):
    shape = (24, 3) if "num_labels" in size else (24,)
    most = size.get("num_classes", 2)
    step = {name: rng.integers(0, most, shape) for name in ("preds", "target")}
    alone, mesh = kind(**size), make_mesh("auto", {"data": 2})
    member = datarax.Collection({"it": alone, "f1": F1(**size)}).update(**step)["it"]
    for like in (
        alone,
        datarax.replicate(alone, mesh),
        datarax.per_device(alone, mesh, "data"),
        datarax.Transformed(alone),
    ):
        wrapped = isinstance(like, datarax.Transformed)
        saved = like.with_parts({"metric": member}) if wrapped else member
        back = like.load_state_dict(saved.state_dict())
        assert_same_results(results(back), results(alone.update(**step)))
        assert type(jax.tree.leaves(back)[0]) is type(jax.tree.leaves(like)[0])
        assert_same_results(results(back.update(**step)), results(back))
    # A metric that stands alone there is restored where it shares a statistic.
    both = datarax.Collection({"it": alone, "f1": F1(**size)})
    apart = both.replace(it=alone.update(**step)).state_dict()
    assert both.load_state_dict(apart).results()["it"] == alone.update(**step).results()
    assert len(jax.tree.leaves(both.load_state_dict(both.state_dict()))) == len(
        jax.tree.leaves(both)
    )


# Amid the loop.


def test_saving_amid_a_window_loses_nothing(tmp_path, rng):
    batches = [random_batch(rng, 16) for _ in range(17)]
    crash = int(rng.integers(6, 15))

    def loop(metric, steps):
        """Collects every 5 steps and at the end; what the windows gave that it closed."""
        windows = []
        with datarax.AsyncMetricCollector(metric) as collector:
            for step in steps:
                metric = updated(metric, batches[step])
                if step % 5 == 4 or step == 16:
                    metric = collector.schedule_collection(metric, step=step)
                if step == crash:
                    save(tmp_path / "last", metric, overwrite=True)
                windows += collector.ready()
        return windows + collector.ready()

    layout = ("auto", {"data": 4})
    undisturbed = loop(spread(several(), layout), range(17))
    windows = loop(spread(several(), layout), range(crash + 1))
    resumed = restore(tmp_path / "last", spread(several(), ("explicit", {"data": 2})))
    windows += loop(resumed, range(crash + 1, 17))
    assert [step for step, _ in windows] == [step for step, _ in undisturbed] == [4, 9, 14, 16]
    for (_, got), (_, want) in zip(windows, undisturbed, strict=True):
        assert_same_results(without_rows(got), without_rows(want), 2e-6)


def test_beside_model_and_optimizer_in_ones_own_manager(tmp_path, rng):
    def make(seed):
        model = nnx.Linear(3, 2, rngs=nnx.Rngs(seed))
        return model, nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)

    mesh = make_mesh("auto", {"data": 8})
    model, optimizer = make(0)
    metrics = datarax.per_device(several(), mesh, "data")
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        for step in range(3):
            batch = random_batch(rng, 16)
            grads = nnx.grad(lambda model, x=batch["scores"]: jnp.mean(model(x) ** 2))(model)
            optimizer.update(model, grads)
            metrics = updated(metrics, batch)
            arrays, info = pack(metrics)
            # Under any name but "metrics", which Orbax keeps for itself.
            args = ocp.args.Composite(
                train=ocp.args.StandardSave(nnx.state((model, optimizer))),
                seen=ocp.args.StandardSave(arrays),
                seen_info=ocp.args.JsonSave(info),
            )
            manager.save(step, args=args)
        manager.wait_until_finished()

    fresh = make(1)
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        step = manager.latest_step()
        args = ocp.args.Composite(
            train=ocp.args.StandardRestore(nnx.state(fresh)),
            seen=ocp.args.StandardRestore(),
            seen_info=ocp.args.JsonRestore(),
        )
        found = manager.restore(step, args=args)
    nnx.update(fresh, found["train"])
    back = unpack(found["seen"], found["seen_info"], like=metrics.reset())
    assert step == 2
    assert_same_bits(nnx.state(fresh), nnx.state((model, optimizer)))
    assert_same_results(results(back), results(metrics))
