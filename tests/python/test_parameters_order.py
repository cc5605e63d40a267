# SPDX-License-Identifier: MIT
# tests/python/test_parameters_order.py - the order in which parameters are expected
import weakref

import pytest

torch = pytest.importorskip("torch")

from spillway._params.order import Order  # noqa: E402


class Place:
    def __init__(self, number):
        self.number, self.order, self.last = number, [], 0


def learnt(passes):
    order = Order()
    order.expect(without_repetitions(passes))
    return order


def without_repetitions(uses):
    """As a step's uses are noted."""
    return [place for place, before in zip(uses, [None, *uses]) if place is not before]


def back_and_forth(count):
    places = [Place(number) for number in range(count)]
    return places, places + places[-2::-1]


def reads_of(order, uses, count, room):
    """How many places come, where that many have room and the one needed last goes."""
    here, reads = [], 0
    for place in uses:
        if place not in here:
            reads += 1
            if len(here) == room:
                here.remove(max(here, key=order.distance))
            here.append(place)
        order.note(place, count)
    return reads


def test_a_use_that_comes_late_does_not_begin_the_plan_again():
    places, plan = back_and_forth(40)
    order = learnt(plan)
    for place in (*places[:3], places[5], places[3], places[4]):
        order.note(place, len(places))
    assert order.at == 6
    assert order.distance(places[6]) == 0


def test_a_use_that_others_came_before_is_still_expected():
    places, plan = back_and_forth(40)
    order = learnt(plan)
    for place in (places[0], places[2], places[3]):
        order.note(place, len(places))
    assert order.distance(places[1]) == 0
    assert order.distance(places[2]) == 75  # the next time is on the way back
    assert order.next_to_come() is places[1]


def test_what_does_not_come_is_passed():
    places, plan = back_and_forth(40)
    order = learnt(plan)
    for place in places[1:30]:
        order.note(place, len(places))
    assert order.distance(places[30]) <= len(plan) // 4
    order.begin_step()
    assert order.at == 0 and order.distance(places[1]) == 0


@pytest.mark.parametrize("lag", (0, 5, 8, 12, 16))
def test_another_order_of_near_uses_costs_few_reads(lag):
    """A way back in which each place is used once more, some uses later: by another number of them
    than in the pass before."""
    places, _ = back_and_forth(60)

    def passes(lag):
        later = [None] * lag + places[::-1]
        back = [place for pair in zip(places[::-1] + [None] * lag, later) for place in pair]
        return places + [place for place in back if place is not None]

    order = learnt(passes(8))
    reads_of(order, passes(8), len(places), 40)
    order.expect(without_repetitions(passes(8)))
    assert reads_of(order, passes(lag), len(places), 40) <= 40 + 2 * 20 + 4


@pytest.mark.parametrize("micros", (1, 2, 3, 7))
def test_the_order_of_all_micro_batches_is_learnt(micros):
    """The last of them is followed by a pass of the optimizer."""
    places, forward_and_back = back_and_forth(12)
    order = Order()
    passes = [forward_and_back] * (micros - 1) + [forward_and_back + places[1:]]
    for uses in passes * 3:
        order.begin_step()
        for place in uses:
            order.note(place, len(places))
    order.begin_step()
    assert order.plan == [place for uses in passes for place in uses]
    assert order.at == 0


def test_one_pass_of_another_length_is_no_period():
    places, plan = back_and_forth(12)
    order = Order()
    for uses in ([plan] * 10) + [plan + places[1:]] + [plan] * 3:
        order.begin_step()
        for place in uses:
            order.note(place, len(places))
    order.begin_step()
    assert order.plan == plan


def test_the_distance_beyond_a_use_is_that_of_the_next_one():
    places, plan = back_and_forth(5)  # 0 1 2 3 4 3 2 1 0
    order = learnt(plan)
    assert [order.distance(place, 3) for place in places] == [8, 7, 6, 3, 4]
    assert [order.distance(place, 6) for place in places] == [8, 7, 6, 12, 13]


def test_what_is_forgotten_is_not_held():
    places, plan = back_and_forth(4)
    order = learnt(plan)
    for place in plan:
        order.note(place, len(places))
    order.begin_step()
    order.note(places[0], len(places))
    gone = [weakref.ref(place) for place in places]
    order.forget()
    order.drop(places[0])
    assert order.next_to_come() is None and order.distance(places[1]) > len(plan)
    del place, places, plan
    assert not any(ref() for ref in gone)
