# SPDX-License-Identifier: MIT
# tests/python/test_nested.py - state in lists, tuples and dicts, and by columns, as an entry has it
import pytest
import torch

from pairs import assert_same
from spillway._values.nested import flat, names_of, nested

ROWS = torch.arange(6.0).view(2, 3)
COLUMNS = torch.arange(6.0).view(3, 2).t()
TURNED = torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1)

STATES = {
    "plain": {"step": 3, "name": "x", "none": None, "rows": ROWS, "count": torch.tensor(2.0)},
    "list": {"Q": [ROWS, COLUMNS, []], "step": 1},
    "empty": {"list": [], "tuple": (), "dict": {}},
    "deep": {"a": {"b": [(ROWS, {1: COLUMNS, 0.5: None}), True], 2: "c"}, "Q": [1], "Q ": [2]},
    "columns": {"one": COLUMNS, "other": TURNED, "rows": ROWS},
}


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_there_and_back(state):
    entry = flat(state)
    assert all(value.is_contiguous() for value in entry.values() if isinstance(value, torch.Tensor))
    assert not any(isinstance(value, (list, dict)) for value in entry.values())
    again = nested(entry)
    assert list(names_of(entry)) == list(again) == list(state)
    assert_same(again, state)
    assert_same(strides_in(again), strides_in(state))
    assert flat(again).keys() == entry.keys()


def strides_in(thing):
    if isinstance(thing, torch.Tensor):
        return thing.stride()
    if isinstance(thing, dict):
        return {key: strides_in(value) for key, value in thing.items()}
    return [strides_in(item) for item in thing] if isinstance(thing, (list, tuple)) else None


def test_tensors_are_in_the_same_memory():
    state = {"Q": [COLUMNS.clone(memory_format=torch.preserve_format), ROWS.clone()]}
    for tensor in nested(flat(state))["Q"]:
        tensor.add_(1)
    assert_same(state, {"Q": [COLUMNS + 1, ROWS + 1]})


def test_what_has_gaps_or_another_type_stays_as_it_is():
    gaps, queue = ROWS[:, ::2], {1, 2}
    entry = flat({"gaps": gaps, "queue": queue, "keys": {(1, 2): 3}})
    assert entry["gaps"] is gaps and entry["queue"] is queue and entry["keys"] == {(1, 2): 3}
