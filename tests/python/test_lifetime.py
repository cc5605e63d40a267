# SPDX-License-Identifier: MIT
# tests/python/test_lifetime.py - a `with` around the contexts of steps closes the Offload
# layer: test all
import pytest
import torch

import spillway
import spillway.torch as st
from conftest import given_back
from offloading import Layers, equal, gradients_of


def trained(model, off=None):
    """One step; its gradients."""
    model.zero_grad(set_to_none=True)
    inputs = torch.ones(256, 100)
    if off is None:
        model(inputs).sum().backward()
    else:
        with off:
            model(inputs).sum().backward()
    return gradients_of(model)


def test_leaving_it_closes_what_was_opened(formatted):
    torch.manual_seed(1)
    model = Layers()
    expected = trained(model)
    with st.offload(model, formatted, mode="spill", sizes=st.Sizes(min_bytes=1)) as off:
        for _ in range(3):
            assert equal(trained(model, off), expected)
            offers = off.stats().offers
            assert offers > 0
            trained(model)  # outside of the steps nothing is offloaded
            assert off.stats().offers == offers
        assert not off.closed
    assert off.closed and off.stats().steps == 3
    given_back(formatted)
    with pytest.raises(spillway.SpillwayError, match="closed"):
        off.__enter__()
    assert equal(trained(model), expected)


def test_a_store_of_the_caller_stays_open(store):
    model = Layers()
    with st.offload(model, store) as off:
        trained(model, off)
    assert off.closed and not store.closed


def test_a_step_that_raises_ends_it(formatted):
    model = Layers()
    with pytest.raises(ZeroDivisionError):
        with st.offload(model, formatted) as off:
            with off:
                model(torch.ones(256, 100))
                raise ZeroDivisionError
    assert off.closed and getattr(st._active, "offload", None) is None
    given_back(formatted)


def test_the_steps_may_be_calls_of_a_decorated_function(formatted):
    torch.manual_seed(1)
    model = Layers()
    expected = trained(model)
    with st.offload(model, formatted, mode="spill", sizes=st.Sizes(min_bytes=1)) as off:
        step = off(lambda: trained(model))
        assert equal(step(), expected) and equal(step(), expected)
        assert off.stats().steps == 2
    assert off.closed


def test_without_steps_inside_it_stays_open(store):
    model = Layers()
    with st.offload(model, store, mode="spill", sizes=st.Sizes(min_bytes=1)) as off:
        trained(model)
        trained(model)
    assert not off.closed and off.stats().steps == 2
    with off:
        trained(model)
    assert off.stats().steps == 3
    off.close()


def test_it_may_be_closed_inside(store):
    model = Layers()
    with st.offload(model, store) as off:
        trained(model, off)
        off.close()
    assert off.closed


@pytest.mark.parametrize("saves", [
    lambda model: model(torch.ones(256, 100)),
    lambda model: torch.randn(100000, requires_grad=True).exp(),
])
def test_inside_of_a_step_it_is_entered_twice(store, saves):
    model = Layers()
    off = st.offload(model, store, mode="spill", sizes=st.Sizes(min_bytes=1))
    with off:
        saved = saves(model)
        with pytest.raises(RuntimeError, match="active already"):
            off.__enter__()
        del saved
    with off, pytest.raises(RuntimeError, match="active already"):
        off.__enter__()
    assert not off.closed
    off.close()


@pytest.mark.skipif(not hasattr(torch.nn.Module, "compile"), reason="PyTorch cannot compile here")
def test_a_model_that_is_compiled_in_place(formatted):
    torch.manual_seed(1)
    model = Layers()
    expected = trained(model)
    model.compile(backend="eager")
    with st.offload(model, formatted, sizes=st.Sizes(min_bytes=1)) as off:
        assert all(equal(trained(model, off), expected) for _ in range(3))
        assert off.stats().steps == 3 and off.stats().offers > 0
    assert off.closed
    given_back(formatted)
