"""Finds what is equal on all devices inside `shard_map` although its type says that it may vary.

The result of `jax.lax.all_gather` has such a type. What is computed from it, and from other values
that are equal on all devices, is equal too: the program as it is traced so far says so. An array
for which that cannot be told is taken to differ: the argument of a traced function, for example.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import jax
from jax.core import Tracer

from datarax._typing import PyTree
from datarax.distributed.collectives import axes_of_type, varying_axes

# What devices hold of a value, along an axis; of several values, the greatest. Of an argument of a
# traced function, the program does not tell it.
_SAME, _GATHERED, _UNKNOWN, _DIFFERS = range(4)
_CALLS = {
    *("jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint"),
    *("custom_jvp_call", "custom_vjp_call"),
}
_MARKS = {"pvary", "pcast"}
"""The primitives that only change the type of an array."""
# By the names of their classes, because JAX does not export these.
_INNER = {"BatchTracer": "val", "JVPTracer": "primal", "LinearizeTracer": "primal"}
"""The tracers of `vmap` and of derivatives, with the attribute that holds the array within."""


def gathered_axes(tree: PyTree, names: Iterable[str]) -> frozenset[str]:
    """Those of the axes along which all devices hold the arrays, as they were gathered."""
    return frozenset(name for name in names if _held(tree, name) == _GATHERED)


def same_axes(tree: PyTree, names: Iterable[str]) -> frozenset[str]:
    """Those of the axes along which the arrays are equal on all devices."""
    return frozenset(name for name in names if _held(tree, name) <= _GATHERED)


def differing_axes(tree: PyTree, names: Iterable[str]) -> frozenset[str]:
    """Those of the axes along which the program tells that the arrays differ."""
    return frozenset(name for name in names if _held(tree, name) == _DIFFERS)


def _held(tree: PyTree, axis: str, known: dict[int, int] | None = None) -> int:
    """What devices along an axis hold of the arrays of a pytree.

    `known` holds the replies for inputs of equations, by their `id`: without it, their number would
    double with each layer of a network that adds its result to its input.
    """
    coming, seen, found = list(jax.tree.leaves(tree)), set[int](), _SAME
    known = {} if known is None else known
    # Nothing is above it, so the rest need not be looked at.
    while coming and found != _DIFFERS:
        x = coming.pop()
        if not isinstance(x, Tracer) or axis not in varying_axes(x) or id(x) in seen:
            continue
        if id(x) in known:
            found = max(found, known[id(x)])
            continue
        seen.add(id(x))
        if inner := _INNER.get(type(x).__name__):
            coming.append(getattr(x, inner))
            continue
        # Of the tracers of JAX, those of a program that is being traced have it.
        equation: PyTree = getattr(x, "parent", None)
        inputs: PyTree = getattr(equation, "in_tracers", None)
        if inputs is None:
            found = max(found, _UNKNOWN)
            continue
        if not _names(equation, axis):
            coming += inputs
            continue
        for each in inputs:
            known[id(each)] = _held(each, axis, known)
        outputs = _outputs(equation, [known[id(each)] for each in inputs], inputs, axis)
        places = [i for i, var in enumerate(equation.outvars) if var is getattr(x, "val", None)]
        found = max([found, *([outputs[i] for i in places] or outputs)])
    return found


def _outputs(
    equation: PyTree, held: Sequence[int], inputs: Sequence[PyTree], axis: str
) -> list[int]:
    """What devices hold of the outputs of an equation, given what they hold of its inputs."""
    name, params, count = equation.primitive.name, equation.params, len(equation.outvars)
    if not _names(equation, axis):
        return [max(held, default=_SAME)] * count
    if name == "all_gather" and params.get("axis_index_groups") is None:
        return [_GATHERED] * count
    inner = list(_programs(params))
    if len(inner) == 1 and len(inner[0].invars) == len(held):
        if name in _CALLS:
            return _run(inner[0], held, axis)
        if name == "scan":
            return _scan(inner[0], equation, held, inputs, axis)
    return [_DIFFERS] * count


def _run(program: PyTree, held: Sequence[int], axis: str) -> list[int]:
    """What devices hold of the outputs of a program."""
    known = dict(zip(program.invars, held, strict=True))

    def of(atom: PyTree) -> int:
        # A literal has no entry, nor has a constant; a type that does not vary settles it.
        if hasattr(atom, "val") or axis not in axes_of_type(atom.aval):
            return _SAME
        return known.get(atom, _SAME)

    for equation in program.eqns:
        held = [of(atom) for atom in equation.invars]
        known |= zip(equation.outvars, _outputs(equation, held, equation.invars, axis), strict=True)
    return [of(atom) for atom in program.outvars]


def _scan(
    body: PyTree, equation: PyTree, held: Sequence[int], inputs: Sequence[PyTree], axis: str
) -> list[int]:
    """`_outputs` of a scan: what is carried joins what the steps make of it."""
    # The number of constants and carries has other names in other versions of JAX. The shapes tell
    # which inputs and outputs have an axis of steps.
    pairs = zip(inputs, body.invars, strict=True)
    stacked = [x.aval.shape != inside.aval.shape for x, inside in pairs]
    outputs = zip(equation.outvars, body.outvars, strict=True)
    carries = [x.aval.shape == inside.aval.shape for x, inside in outputs].count(True)
    first = stacked.count(False) - carries
    held = list(held)
    # Until no carry changes: what one carry holds may reach another one only in a later step.
    while True:
        found = _run(body, held, axis)
        carried = [max(pair) for pair in zip(held[first : first + carries], found, strict=False)]
        if carried == held[first : first + carries]:
            return found
        held[first : first + carries] = carried


def _names(equation: PyTree, axis: str) -> bool:
    """True if an equation, or one within it, refers to the axis or to what only the host knows."""
    if equation.primitive.name in _MARKS:
        return False
    if "callback" in equation.primitive.name or equation.primitive.name == "shard_map":
        return True
    given = [equation.params.get(name) for name in ("axis_name", "axes", "axis_names")]
    if any(axis == x or (isinstance(x, tuple | list | set) and axis in x) for x in given):
        return True
    return any(
        _names(each, axis) for program in _programs(equation.params) for each in program.eqns
    )


def _programs(params: Mapping[str, PyTree]) -> Iterator[PyTree]:
    """The programs in the parameters of an equation."""
    for value in params.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            program = getattr(each, "jaxpr", each)
            if hasattr(program, "eqns") and hasattr(program, "outvars"):
                yield program
