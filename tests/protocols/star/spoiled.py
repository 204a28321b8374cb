"""Messages gone bad: for one good message, every kind of spoiled one that a party must refuse."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from eigenveil.linalg import Array
from eigenveil.protocols.messages import Ask, Contribution, Decline, Done, Message
from eigenveil.protocols.star.rounds import Layout
from eigenveil.tasks.base import Question

Spoiled = Iterator[tuple[str, Message]]


def spoiled(message: Message, layout: Layout) -> Spoiled:
    """What must be refused in place of `message`, which is about to be delivered and good."""
    yield "foreign sender", replace(message, sender="stranger")
    yield "from itself", replace(message, sender=message.receiver)
    for other in (*layout.nodes, *layout.above()):
        if other not in layout.below.get(message.receiver, {}) and other not in (message.sender, message.receiver):
            yield "from somebody of another place", replace(message, sender=other)
            break
    match message.body:
        case Ask() as ask:
            yield from _spoiled_ask(message, ask)
        case Contribution() as give:
            yield from _spoiled_give(message, give, behind=layout.below[message.receiver][message.sender])
        case Done() as done:
            yield from _wrong_types(message, (Contribution(round=done.round, arrays=()), Decline(done.round)))
            if done.round > 0:
                yield "old round", replace(message, body=replace(done, round=done.round - 1))


def _wrong_types(message: Message, bodies: tuple[Any, ...]) -> Spoiled:
    for body in bodies:
        yield f"{type(body).__name__} out of place", replace(message, body=body)


def _spoiled_ask(message: Message, ask: Ask) -> Spoiled:
    yield from _wrong_types(message, (Contribution(round=ask.round, arrays=ask.question.arrays), Decline(ask.round)))
    for name, question in spoiled_questions(ask.question):
        yield f"question: {name}", replace(message, body=replace(ask, question=question))
    if ask.round > 0:
        yield "old round", replace(message, body=replace(ask, round=ask.round - 1))


def spoiled_questions(question: Question) -> Iterator[tuple[str, Question]]:
    """What no site may work on."""
    arrays = question.arrays
    yield "a step that there is not", replace(question, step=10_000)
    yield "one array more", replace(question, arrays=(*arrays, np.zeros((2, 2))))
    yield "two arrays more", replace(question, arrays=(*arrays, np.zeros(1), np.zeros(1)))
    if question.stage:
        yield "unknown stage", replace(question, stage="nonsense")
        yield "no stage", replace(question, stage="")
        yield "the last stage", replace(question, stage="done")
    if arrays and question.stage != "mean":
        yield "one array fewer", replace(question, arrays=arrays[:-1])
    for place, array in enumerate(arrays):
        for name, bad in _never_a_question(array):
            yield f"array {place} {name}", replace(question, arrays=(*arrays[:place], bad, *arrays[place + 1 :]))


def _never_a_question(array: Array) -> Iterator[tuple[str, Any]]:
    yield "with a side more", array[None]
    yield "of one side longer", np.concatenate([array, array[:1] if len(array) else np.ones(1)])
    yield "of single precision", array.astype(np.float32)
    yield "of complex numbers", array * 1j
    yield "of objects", array.astype(object)
    yield "a list", array.tolist()
    for number in (np.nan, np.inf, -np.inf):
        if array.size:
            yield f"with {number}", _with(array, number)
    if array.ndim == 2:
        yield "longer than one", array * (1 + 1e-7)
        yield "with 1e200", _with(array, 1e200)
        yield "turned on its side", array.T


def _spoiled_give(message: Message, give: Contribution, *, behind: tuple[str, ...]) -> Spoiled:
    yield from _wrong_types(message, (Ask(give.round, Question()), Done(give.round, give.arrays)))
    for name, round_ in (("next round", give.round + 1), ("old round", give.round - 1)):
        if round_ >= 0:
            yield name, replace(message, body=replace(give, round=round_))
            yield f"decline of the {name}", replace(message, body=Decline(round_))
    missing = {
        "a stranger": ("stranger",),
        "itself": (message.sender,),
        "the hub": ("hub",),
        "all of them": behind,
        "one twice": behind[:1] * 2,
    }
    for name, names in missing.items():
        yield f"missing: {name}", replace(message, body=replace(give, missing=names))
    for name, arrays in spoiled_parts(give.arrays):
        yield f"part: {name}", replace(message, body=replace(give, arrays=arrays))


def spoiled_parts(arrays: tuple[Array, ...]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Arrays that can be no part."""
    yield "no array", ()
    yield "one array more", (*arrays, np.zeros(1))
    yield "twice", arrays * 2
    if len(arrays) == 2:
        yield "the other way round", arrays[::-1]
    for place, array in enumerate(arrays):
        for name, bad in _never_a_part(array):
            yield f"array {place} {name}", (*arrays[:place], bad, *arrays[place + 1 :])
    if len(arrays) == 2 and arrays[1].shape == arrays[0].shape[1:] and arrays[1].size and arrays[1].shape != (1,):
        basis, values = arrays
        yield "a basis too long", (2 * basis, values)
        yield ("a basis that leans", (basis + 0.1 * basis[:, ::-1], values) if basis.shape[1] > 1 else (basis / 2, values))
        yield "negative values", (basis, values - values.max() - 1)
        yield "more directions than there are", (np.hstack([basis] * 6), np.tile(values, 6))
    elif len(arrays) == 2 and np.isfinite(arrays[1]).all():
        yield "farther than two bases can be", (arrays[0], np.array([2.1]))
        yield "a negative distance", (arrays[0], np.array([-0.1]))


def _never_a_part(array: Array) -> Iterator[tuple[str, Any]]:
    yield "with a side more", array[None]
    yield "flat", array.ravel() if array.ndim == 2 else array[None]
    yield "of one side longer", np.concatenate([array, array[:1]])
    yield "of one side shorter", array[:-1]
    yield "of single precision", array.astype(np.float32)
    yield "of whole numbers", np.zeros(array.shape, dtype=np.int64)
    yield "of complex numbers", array * 1j
    yield "of objects", array.astype(object)
    yield "a list", array.tolist()
    if np.isfinite(array).all() and array.size:
        for number in (np.nan, np.inf, -np.inf, 1e200, -1e200):
            yield f"with {number}", _with(array, number)


def _with(array: Array, number: float) -> Array:
    changed = array.copy()
    changed.flat[changed.size // 2] = number
    return changed
