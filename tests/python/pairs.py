# SPDX-License-Identifier: MIT
# tests/python/pairs.py - the same parameters twice, stepped by spillway and by PyTorch
import contextlib
import copy
import random

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.checkpoint import checkpoint

import spillway
import spillway.torch
from conftest import SEED
from fake_state import FakeStore
from offloading import raw

HOOKS = hasattr(torch.Tensor, "register_post_accumulate_grad_hook")
needs_hooks = pytest.mark.skipif(not HOOKS, reason="this PyTorch has no hook for it")
# Options of spillway.torch.Optimizer; all others are those of the class.
OURS = {"gradients", "in_backward", "interleave", "masters", "memory", "tile", "copies",
        "process_group", "commit_every", "commit_extra"}
SHAPES = ((7,), (300, 200), (1,), (), (0, 3), (50,), (33, 3), (20000,))
CLASSES = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("Adam", {}),
    ("Adam", {"amsgrad": True, "weight_decay": 0.1}),
    ("AdamW", {"lr": 0.01}),
    ("AdamW", {"amsgrad": True, "maximize": True}),
    ("RMSprop", {}),
    ("RMSprop", {"centered": True, "momentum": 0.9}),
    ("Adagrad", {"initial_accumulator_value": 0.1, "lr_decay": 0.1}),
    ("Adadelta", {}),
    ("Adamax", {}),
    ("NAdam", {}),
    ("RAdam", {}),
    ("Rprop", {}),
    ("ASGD", {"t0": 2}),
]
each_class = pytest.mark.parametrize(
    "name, options", CLASSES, ids=[f"{name}-{'-'.join(options)}" for name, options in CLASSES])


class Model(nn.Module):
    """With layers of which a pass may leave one out, a tied one, and one that is checkpointed."""

    def __init__(self, reentrant=None):
        super().__init__()
        self.first = nn.Linear(20, 30)
        self.layers = nn.ModuleList(nn.Linear(30, 30) for _ in range(4))
        self.last = nn.Linear(30, 1)
        self.reentrant = reentrant

    def forward(self, x, without=None):
        x = self.first(x)
        for number, layer in enumerate(self.layers):
            if number == without:
                continue
            if self.reentrant is not None and number == 1:
                x = checkpoint(layer, x, use_reentrant=self.reentrant).tanh()
            else:
                x = layer(x).tanh()
        return self.last(self.layers[0](x)).pow(2).sum()


def params_of(model):
    return list(model.parameters()) if isinstance(model, nn.Module) else model


def copied(params):
    """The same parameters once more, of a model or a list."""
    return copy.deepcopy(params) if isinstance(params, nn.Module) else [
        nn.Parameter(param.detach().clone()) for param in params]


def made(shapes=SHAPES, dtype=torch.float32):
    """Two times the same parameters."""
    ours = [nn.Parameter(torch.randn(shape).to(dtype)) for shape in shapes]
    return ours, copied(ours)


def give_grads(*models, none=0.0):
    """The same gradients to all, converted to their types."""
    for params in zip(*models):
        grad = torch.randn(params[0].shape) * 10 ** random.Random(SEED).uniform(-3, 1)
        grad = grad.to(params[-1].dtype)
        absent = torch.rand(()).item() < none
        for param in params:
            param.grad = None if absent else grad.clone().to(param.device, param.dtype)


def assert_same(one, other):
    """Bit for bit (-0 is not 0), types and shapes as well."""
    if isinstance(one, nn.Module):
        one, other = params_of(one), params_of(other)
    assert type(one) is type(other) or isinstance(one, torch.Tensor), (one, other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and one.shape == other.shape
        assert raw(one) == raw(other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_same(one[name], other[name])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for pair in zip(one, other):
            assert_same(*pair)
    else:
        assert one == other


def reference(name, params, options):
    return getattr(torch.optim, name)(params, foreach=False, **options)


def of(optimizer):
    """What a state_dict has, without which arithmetic was asked for."""
    content = copy.deepcopy(optimizer.state_dict())
    for group in content["param_groups"]:
        group.pop("foreach", None)
    return content


class Masters:
    """Masters of float32 by hand, as an optimizer."""

    def __init__(self, params, cls=torch.optim.AdamW, **options):
        self.params = params
        self.masters = [nn.Parameter(param.detach().float()) for param in params]
        self.inner = cls(self.masters, foreach=False, **options)
        self.state_dict = self.inner.state_dict

    def step(self):
        for master, param in zip(self.masters, self.params):
            master.grad = None if param.grad is None else param.grad.float()
        self.inner.step()
        for master, param in zip(self.masters, self.params):
            param.detach().copy_(master)

    def zero_grad(self, set_to_none=True):
        for param in self.params:
            if set_to_none or param.grad is None:
                param.grad = None
            else:
                param.grad.zero_()


class Pair:
    """Parameters that spillway's optimizer steps, and the same that PyTorch's does. All that is
    done to both ends with a comparison.

    :param ours, theirs: models, or lists of parameters
    """

    def __init__(self, ours, theirs, optimizer, plain):
        self.ours, self.theirs, self.optimizer, self.plain = ours, theirs, optimizer, plain
        self.models, self.optimizers = (ours, theirs), (optimizer, plain)

    def __iter__(self):
        return zip(self.models, self.optimizers)

    @property
    def state(self):
        return self.optimizer._tiled.records.state

    def give_grads(self, none=0.0):
        give_grads(*map(params_of, self.models), none=none)

    def backward(self, times=1, x=None, **options):
        """Of Model; another input than its own: @x."""
        for _ in range(times):
            given = torch.randn(8, 20) if x is None else x
            for model in self.models:
                model(given.to(params_of(model)[0].dtype), **options).backward()

    def clip(self, max_norm=0.5, norm_type=2.0):
        assert_same(*(clip_grad_norm_(params_of(model), max_norm, norm_type)
                      for model in self.models))

    def step(self, zero=True):
        for one in self.optimizers:
            one.step()
            if zero:
                one.zero_grad()
        self.same()

    def zero_grad(self):
        for one in self.optimizers:
            one.zero_grad()

    def train(self, steps, none=0.0):
        for _ in range(steps):
            self.give_grads(none)
            self.step(zero=False)

    def same(self):
        assert_same(*map(params_of, self.models))

    def same_gradients(self):
        """Read as DistributedDataParallel does."""
        for mine, yours in zip(*map(params_of, self.models)):
            assert (mine.grad is None) == (yours.grad is None)
            if mine.grad is not None:
                assert_same(torch.empty_like(yours.grad).copy_(mine.grad), yours.grad)

    def same_state(self):
        assert_same(of(self.optimizer), of(self.plain))

    @contextlib.contextmanager
    def drive_fails(self, after):
        """This many calls later, of what is in the `with`, which is to raise it."""
        self.state.fail_after = after
        with pytest.raises(spillway.SpillwayError, match="a drive failed"):
            yield
        self.state.fail_after = None


def over(params, cls=torch.optim.AdamW, store=None, **options):
    return spillway.torch.Optimizer(cls, params_of(params), store or FakeStore(), **options)


def pair_of(ours, theirs=None, cls=torch.optim.AdamW, store=None, **options):
    """
    :param theirs: None: a copy
    :param options: of spillway's optimizer, and those of the class for both
    """
    theirs = copied(ours) if theirs is None else theirs
    of_class = {name: value for name, value in options.items() if name not in OURS}
    plain = (Masters(params_of(theirs), cls, **of_class) if options.get("masters")
             else cls(params_of(theirs), foreach=False, **of_class))
    return Pair(ours, theirs, over(ours, cls, store, **options), plain)


def models(tile=500, dtype=torch.float32, model=Model, **options):
    """A pair of a model."""
    torch.manual_seed(7)
    return pair_of(model().to(dtype), tile=tile, **options)


needs_types = pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"),
                                 reason="gradients are of their parameters' type")


def models_with_float32_gradients(**options):
    """Of bfloat16 parameters."""
    def model():
        made = Model().to(torch.bfloat16)
        for param in made.parameters():
            param.grad_dtype = torch.float32
        return made

    torch.manual_seed(7)
    ours, theirs = model(), model()  # a copy would not have the gradients' type
    theirs.load_state_dict(ours.state_dict())
    return pair_of(ours, theirs, tile=500, **options)


@contextlib.contextmanager
def interrupted_after(thing, name):
    """Ctrl-C comes as soon as this method of it has returned."""
    method = getattr(thing, name)

    def interrupted(*args):
        method(*args)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(thing, name, interrupted)
        yield
