# SPDX-License-Identifier: MIT
# spillway/_values/nested.py - state of optimizers that is in lists, tuples and dicts, or by columns
"""SOAP and Shampoo keep a tensor for each side of a matrix, in a list. A record and an entry have
each thing by a name of its own; where the list was, there is what it was:

>>> flat({"Q": [a, b], "step": 1})
{'Q': ('list', 2), 'Q[0]': a, 'Q[1]': b, 'step': 1}

What linear algebra makes lies by columns, and a product with it has other bits than with the same
matrix by rows. A record has the elements as they lie, and the entry their order: 'Q[0] order'.
"""
from __future__ import annotations

from typing import Any, Dict, Iterator, Optional, Tuple

from torch import Tensor

Options = Dict[str, Any]

_KINDS: Dict[Any, str] = {list: "list", tuple: "tuple"}
_KEYS = (bool, int, float, str)


def flat(state: Options) -> Options:
    """Things of other types, and dicts with other keys than numbers and words, stay as they are; so
    do tensors with gaps between their elements."""
    found: Options = {}
    for name, value in state.items():
        _flatten(name, value, found)
    return found


def _flatten(name: str, value: Any, found: Options) -> None:
    items: Any
    if type(value) in _KINDS:
        found[name] = _KINDS[type(value)], len(value)
        items = enumerate(value)
    elif type(value) is dict and all(type(key) in _KEYS for key in value):
        found[name] = "dict", *value
        items = value.items()
    else:
        order = _order_of(value)
        found[name] = value if order is None else value.permute(order)
        if order is not None:
            found[_of_order(name)] = "order", *order
        return
    for key, item in items:
        _flatten(_part(name, key), item, found)


def _order_of(value: Any) -> Optional[Tuple[int, ...]]:
    """In which order of its sides a tensor's elements lie one after the other; None: in their own,
    or they do not."""
    if type(value) is not Tensor or value.is_contiguous():
        return None
    order = tuple(sorted(range(value.dim()), key=lambda side: -value.stride(side)))
    return order if value.permute(order).is_contiguous() else None


def _part(name: str, key: Any) -> str:
    return f"{name}[{key!r}]"


def _of_order(name: str) -> str:
    return f"{name} order"


def is_nest(value: Any) -> bool:
    """Whether it stands for a list, a tuple, a dict or an order."""
    return type(value) is tuple


def names_of(entry: Options) -> Iterator[str]:
    """As the class has them."""
    parts = {part for name, value in entry.items() if is_nest(value)
             for part, _ in _parts(name, value)}
    return (name for name, value in entry.items()
            if name not in parts and not (is_nest(value) and value[0] == "order"))


def nested(entry: Options) -> Options:
    """The other way; tensors are in the same memory."""
    if not any(map(is_nest, entry.values())):
        return dict(entry)
    return {name: _nested(name, entry) for name in names_of(entry)}


def _nested(name: str, entry: Options) -> Any:
    value = entry[name]
    if not is_nest(value):
        _, *order = entry.get(_of_order(name), [None])
        return value.permute(sorted(order, key=order.__getitem__)) if order else value
    items = [(key, _nested(part, entry)) for part, key in _parts(name, value)]
    if value[0] == "dict":
        return dict(items)
    return (tuple if value[0] == "tuple" else list)(item for _, item in items)


def _parts(name: str, value: Tuple[Any, ...]) -> Iterator[Tuple[str, Any]]:
    """The names of what is in a list, a tuple or a dict, and its places or keys."""
    kind, *rest = value
    keys = rest if kind == "dict" else range(rest[0]) if kind != "order" else ()
    return ((_part(name, key), key) for key in keys)
