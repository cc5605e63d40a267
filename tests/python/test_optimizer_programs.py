# SPDX-License-Identifier: MIT
# tests/python/test_optimizer_programs.py - programs as people write them, with ours and PyTorch's
"""Each program is given a function that makes its optimizer, and returns all that it has come to:
bit for bit the same with either one."""
import io

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import (ASGD, SGD, Adagrad, Adam, AdamW, NAdam, RMSprop, lr_scheduler, swa_utils)

import spillway.torch
from conftest import SEED
from fake_state import FakeStore
from pairs import assert_same, needs_hooks

pytestmark = pytest.mark.usefixtures("fake_state")
STEPS = 5


def net():
    return nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 10), nn.Tanh(),
                         nn.Linear(10, 1))


def loss_of(model):
    return model(torch.randn(8, 20)).pow(2).mean()


def values(*models):
    return [[param.detach().clone() for param in model.parameters()] for model in models]


def train(model, optimizer, after=lambda: None, steps=STEPS):
    for _ in range(steps):
        loss_of(model).backward()
        optimizer.step()
        after()
        optimizer.zero_grad()


def squares(optimizer, params):
    """A step is of the sum of the squares of all elements."""
    for _ in range(STEPS):
        sum(param.pow(2).sum() for param in params).backward()
        optimizer.step()
        optimizer.zero_grad()
    return values(params), optimizer.state_dict()["state"]


def groups_are_added(make):
    model = net()
    optimizer = make(AdamW, model[0].parameters(), lr=0.01)
    optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 0.1, "name": "second"})
    optimizer.add_param_group({"params": model[4].weight, "weight_decay": 0.0})
    train(model, optimizer)
    return values(model), optimizer.state_dict()["state"], optimizer.param_groups[1]["name"]


def schedulers_in_sequence(make):
    model = net()
    optimizer = make(SGD, model.parameters(), lr=0.1, momentum=0.9)
    first = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
    then = lr_scheduler.CosineAnnealingLR(optimizer, 3)
    scheduler = lr_scheduler.SequentialLR(optimizer, [first, then], [2])
    train(model, optimizer, scheduler.step)
    return values(model), optimizer.param_groups[0]["lr"]


def a_scheduler_that_sets_betas(make):
    model = net()
    optimizer = make(Adam, model.parameters(), lr=0.1)
    train(model, optimizer, lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10).step)
    return values(model), optimizer.param_groups[0]["betas"]


def a_scheduler_that_is_given_losses(make):
    model = net()
    optimizer = make(RMSprop, model.parameters(), lr=0.1)
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    train(model, optimizer, lambda: scheduler.step(loss_of(model).item()))
    return values(model), optimizer.param_groups[0]["lr"]


def gradients_become_zero(make):
    """And a parameter with a gradient of zeros goes on by its momentum."""
    model = net()
    optimizer = make(AdamW, model.parameters(), lr=0.01)
    for step in range(STEPS):
        (model[0](torch.randn(4, 20)).sum() if step == 2 else loss_of(model)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    return values(model), [param.grad for param in model.parameters()]


def zeros_have_signs(make):
    """-0.0 is added to zeros, or is the first gradient."""
    params, found = nn.ParameterList([torch.zeros(3)]), []
    optimizer = make(SGD, params, lr=0.1)
    for _ in range(STEPS):
        params[0].data.fill_(-0.0)
        (params[0] * -0.0).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        found += values(params)
    return found


def a_scaler_clips_and_skips(make):
    model = net()
    optimizer = make(AdamW, model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    for step in range(STEPS):
        scaler.scale(loss_of(model) * (float("inf") if step == 2 else 1.0)).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return values(model), scaler.get_scale()


def a_scaler_alone(make):
    model = net()
    optimizer = make(SGD, model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    for _ in range(STEPS):
        scaler.scale(loss_of(model)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return values(model), scaler.get_scale()


def closures(make):
    model, losses = net(), []
    optimizer = make(Adam, model.parameters(), lr=0.01)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    for _ in range(STEPS):
        losses.append(optimizer.step(closure).detach())
    return values(model), losses


def hooks_of_steps(make):
    model, calls = net(), []
    optimizer = make(Adam, model.parameters(), lr=0.01)
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    train(model, optimizer)
    return values(model), calls


def frozen_for_a_while(make):
    model = net()
    optimizer = make(AdamW, model.parameters(), lr=0.01, amsgrad=True)
    for step in range(STEPS):
        model[0].requires_grad_(step >= 2)
        model[4].requires_grad_(step < 3)
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()
    return values(model), optimizer.state_dict()["state"]


def one_gradient_less_each_step(make):
    model = net()
    optimizer = make(NAdam, model.parameters(), lr=0.01)
    for step in range(STEPS):
        loss_of(model).backward()
        list(model.parameters())[step].grad = None
        optimizer.step()
        optimizer.zero_grad()
    return values(model), optimizer.state_dict()["state"]


def no_elements(make):
    params = nn.ParameterList([torch.zeros(0), torch.randn(4), torch.zeros(3, 0)])
    return squares(make(AdamW, params, lr=0.01), params)


def to_another_optimizer_and_back(make):
    """To PyTorch's own, and to a new one of ours."""
    model = net()
    optimizer = make(AdamW, model.parameters(), lr=0.01)
    for following in (lambda *given, **options: given[0](*given[1:], foreach=False, **options),
                      make, make):
        train(model, optimizer, steps=2)
        after = following(AdamW, model.parameters(), lr=0.5)
        after.load_state_dict(optimizer.state_dict())
        optimizer = after
    train(model, optimizer)
    return values(model), optimizer.state_dict()["state"]


def saved_and_loaded(make):
    model, content = net(), io.BytesIO()
    optimizer = make(Adam, model.parameters(), lr=0.01)
    train(model, optimizer)
    torch.save(optimizer.state_dict(), content)
    content.seek(0)
    optimizer.load_state_dict(torch.load(content))
    train(model, optimizer)
    return values(model), optimizer.state_dict()["state"]


def rates_by_hand(make):
    model = net()
    optimizer = make(Adagrad, [{"params": model[0].parameters()},
                               {"params": model[2].parameters(), "lr": 0.5}], lr=0.01)

    def change():
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
            group["weight_decay"] += 0.01

    train(model, optimizer, change)
    return values(model)


def a_rate_in_a_tensor(make):
    model = net()
    optimizer = make(AdamW, model.parameters(), lr=torch.tensor(0.01))
    train(model, optimizer, lambda: optimizer.param_groups[0]["lr"].mul_(0.5))
    return values(model)


def two_passes_and_clipped_values(make):
    model = net()
    optimizer = make(AdamW, model.parameters(), lr=0.01, foreach=None)
    for _ in range(STEPS):
        for _ in range(2):
            loss_of(model).backward()
        clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad()
    return values(model)


def in_another_order_of_memory(make):
    params = nn.ParameterList([torch.randn(40, 50).t(),
                               torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)])
    optimizer = make(AdamW, params, lr=0.01)
    for _ in range(STEPS):
        sum(param.pow(2).sum() for param in params).backward()
        optimizer.step()
        optimizer.zero_grad()
    return values(params), [param.stride() for param in params]


def two_types(make):
    params = nn.ParameterList([torch.randn(9), torch.randn(9, dtype=torch.float64)])
    return squares(make(ASGD, params, lr=0.01), params)


def parts_of_a_flat_tensor(make):
    """Autograd counts a change of one as a change of all."""
    flat = torch.randn(1000)
    params = nn.ParameterList([nn.Parameter(flat[:300]), nn.Parameter(flat[300:301]),
                               nn.Parameter(flat[301:])])
    return squares(make(AdamW, params, lr=0.01), params)


def averaged_weights(make):
    model = net()
    optimizer = make(SGD, model.parameters(), lr=0.01)
    scheduler, averaged = swa_utils.SWALR(optimizer, 0.05), swa_utils.AveragedModel(model)

    def after():
        scheduler.step()
        averaged.update_parameters(model)

    train(model, optimizer, after)
    return values(model, averaged)


def columns_of_a_matrix(make):
    """Parameters side by side in one memory, with no element in common; a frozen one has all."""
    whole = torch.randn(40, 30)
    params = nn.ParameterList([nn.Parameter(whole[:, :11]), nn.Parameter(whole[:, 11:]),
                               nn.Parameter(whole, requires_grad=False)])
    optimizer = make(SGD, params, lr=0.01, momentum=0.9)
    for _ in range(STEPS):
        (params[0].pow(2).sum() + params[1].pow(3).sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return values(params)


PROGRAMS = [groups_are_added, schedulers_in_sequence, a_scheduler_that_sets_betas,
            a_scheduler_that_is_given_losses, gradients_become_zero, zeros_have_signs,
            a_scaler_clips_and_skips, a_scaler_alone, closures, hooks_of_steps, frozen_for_a_while,
            one_gradient_less_each_step, no_elements, to_another_optimizer_and_back,
            saved_and_loaded, rates_by_hand, a_rate_in_a_tensor, two_passes_and_clipped_values,
            in_another_order_of_memory, two_types, averaged_weights, columns_of_a_matrix,
            parts_of_a_flat_tensor]
NEEDS = {a_scaler_clips_and_skips: (torch.amp, "GradScaler"),
         a_scaler_alone: (torch.amp, "GradScaler"),
         hooks_of_steps: (torch.optim.Optimizer, "register_step_pre_hook"),
         a_rate_in_a_tensor: (torch.amp, "GradScaler")}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_same_as_with_its_class(program):
    place, name = NEEDS.get(program, (torch, "Tensor"))
    if not hasattr(place, name):
        pytest.skip(f"this PyTorch has no {name}")

    def plain(cls, params, **options):
        return cls(params, **{"foreach": False, **options})

    def ours(cls, params, **options):
        return spillway.torch.Optimizer(cls, params, FakeStore(), tile=300, **options)

    results = []
    for make in (plain, ours):
        torch.manual_seed(SEED)
        results.append(program(make))
    assert_same(*results)


@needs_hooks
@pytest.mark.parametrize("program", [groups_are_added, a_scheduler_that_sets_betas,
                                     gradients_become_zero, zeros_have_signs, closures,
                                     frozen_for_a_while, no_elements, rates_by_hand,
                                     in_another_order_of_memory, averaged_weights,
                                     parts_of_a_flat_tensor],
                         ids=lambda program: program.__name__)
@pytest.mark.parametrize("option", ["in_backward", "gradients"])
def test_the_same_in_the_backward_pass(program, option):
    def plain(cls, params, **options):
        return cls(params, foreach=False, **options)

    def ours(cls, params, **options):
        return spillway.torch.Optimizer(cls, params, FakeStore(), tile=300, **{option: True},
                                        **options)

    results = []
    for make in (plain, ours):
        torch.manual_seed(SEED)
        results.append(program(make))
    if program is gradients_become_zero:  # ours are freed, or on drives
        results = [weights for weights, _ in results]
    assert_same(*results)


# ---- Two parameters in one memory ----------------------------------------------------------------

IN_ONE_MEMORY = {
    "the same elements": lambda flat: (flat[:200].view(10, 20), flat[:200]),
    "some of them": lambda flat: (flat[:30000], flat[20000:]),
    "columns that overlap": lambda flat: (flat[:1000].view(50, 20)[:, :11],
                                          flat[:1000].view(50, 20)[:, 10:]),
}


@pytest.mark.parametrize("made", IN_ONE_MEMORY.values(), ids=IN_ONE_MEMORY.keys())
@pytest.mark.parametrize("masters", [False, "compact"])
def test_two_trained_parameters_in_one_memory(made, masters):
    """PyTorch steps one after the other. Tiles cannot, and say so before anything is changed."""
    flat = torch.randn(50000).to(torch.bfloat16 if masters else torch.float32)
    params = [nn.Parameter(each) for each in made(flat)]

    def optimizer():
        return spillway.torch.Optimizer(AdamW, params, FakeStore(), masters=masters)

    with pytest.raises(ValueError, match="group0.param0 and group0.param1 have the same memory"):
        optimizer()
    params[0].requires_grad_(False)
    tiled, before = optimizer(), flat.clone()
    params[0].requires_grad_(True)
    for param in params:
        param.grad = torch.ones_like(param)
    with pytest.raises(ValueError, match="have the same memory"):
        tiled.step()
    assert_same(flat, before)
    params[0].requires_grad_(False)
    params[0].grad = None
    tiled.step()
    assert not torch.equal(flat, before)


@pytest.mark.parametrize("way", [{}, {"masters": "compact"}, {"masters": True},
                                 pytest.param({"in_backward": True}, marks=needs_hooks),
                                 pytest.param({"gradients": True}, marks=needs_hooks)], ids=str)
def test_two_parameters_that_come_to_have_one_memory(way):
    """After the optimizer was made, as weights are tied by .data."""
    model = net().to(torch.bfloat16 if "masters" in way else torch.float32)
    model[0].weight.data = torch.randn_like(model[0].weight)  # other memory, but its own
    tiled = spillway.torch.Optimizer(AdamW, model.parameters(), FakeStore(), tile=300, **way)

    def backward():
        model(torch.randn(8, 20).to(model[0].weight.dtype)).pow(2).mean().backward()

    backward()
    tiled.step()
    tiled.zero_grad()
    model[2].weight.data = model[0].weight.data.view(-1)[:300].view(10, 30)
    before = values(model)
    with pytest.raises(ValueError, match="group0.param0 and group0.param2 have the same memory"):
        backward()
        tiled.step()
    assert_same(values(model), before)


def test_a_group_in_the_memory_of_another():
    """It is refused, and the optimizer stays as it was."""
    param = nn.Parameter(torch.randn(300))
    tiled = spillway.torch.Optimizer(AdamW, [param], FakeStore())
    with pytest.raises(ValueError, match="group0.param0 and group1.param0 have the same memory"):
        tiled.add_param_group({"params": [nn.Parameter(param.data[100:200])]})
    param.grad = torch.ones_like(param)
    tiled.step()
    assert len(tiled.param_groups) == 1


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
def test_a_parameter_that_is_named_twice():
    param = nn.Parameter(torch.randn(300))
    with pytest.raises(ValueError, match="group0.param0 and group0.param1 have the same memory"):
        spillway.torch.Optimizer(SGD, [param, param], FakeStore(), lr=0.1)
