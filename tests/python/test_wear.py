# SPDX-License-Identifier: MIT
# tests/python/test_wear.py - how long drives last, in reports; the cap on what is written
import io

import pytest
import torch

import spillway
import spillway.torch
from offloading import Layers, offload_all
from spillway.report import per_day_text, years_text
from spillway.wear import Wear, cap_of, wear_of

DAY = 86400


def trained(store, steps=3, **options):
    """An offload that some steps ran in."""
    model = Layers()
    off = offload_all(store, model, **options)
    for _ in range(steps):
        with off:
            loss = model(torch.ones(64, 100, requires_grad=True)).sum()
            # Written after what the step spills: the backward pass does not come before that.
            store.free(store.put(b"x" * 4096))
            loss.backward()
    return off


def report_of(off):
    file = io.StringIO()
    off.report(file)
    return file.getvalue()


def test_a_drive_lasts_by_its_rating():
    wear = wear_of("", 4e12, DAY, 600e12)
    assert wear.basis == "rating alone" and wear.left_bytes == 600e12
    assert wear.bytes_per_day == 4e12
    assert wear.years == pytest.approx(150 / 365.25)
    assert wear.percentage_used is None and wear.reason == ""
    unknown = wear_of("", 4e12, DAY)
    assert unknown.basis == "unknown" and unknown.left_bytes is None and unknown.years is None
    with pytest.raises(spillway.SpillwayError, match="above 0"):
        wear_of("", 1, 0)


@pytest.mark.parametrize("left, years, words", [
    (None, None, "for how long is unknown"), (0, 0, "it is used up"),
    (1e12, None, "nothing is written"), (1e12, 1 / 365.25, "lasts 24.0 hours"),
    (1e12, 0.5, "lasts 182.6 days"), (1e12, 4, "lasts 4.0 years"),
    (1e12, 4000, "lasts over 1000 years"),
])
def test_it_is_said_in_words(left, years, words):
    assert years_text(Wear("rating", None, left, 1e12, years, "")) == words


def test_rates_are_in_units_of_drive_makers():
    assert per_day_text(11.6e12) == "11.6 TB a day"
    assert per_day_text(2e9) == "2.0 GB a day"
    assert per_day_text(1e6) == "1.0 MB a day"


def test_a_report_says_what_it_wears(store):
    """Files are not NVMe drives: without a rating it is unknown how long they last."""
    text = report_of(trained(store))
    assert text.count("wear of ") == len(store.drive_stats())
    assert "a day, for how long is unknown" in text
    assert "not an NVMe device" in text and "offload(endurance_bytes=) names a rating" in text


def test_a_report_counts_on_the_rating_given(store):
    off = trained(store, endurance_bytes="600TB")
    # Each drive is worn by something.
    store.free(store.put(b"x" * (8 << 20)))
    text = report_of(off)
    assert "a day, lasts " in text and "unknown" not in text
    assert "names a rating" not in text


# ---- The cap -----------------------------------------------------------------------------------


@pytest.mark.parametrize("wear, per_day, years", [
    (5, 5, 0), (2e12, 2 * 10**12, 0), ("2TB/day", 2 * 10**12, 0), ("1.5 GB a day", 15 * 10**8, 0),
    ("3PB", 3 * 10**15, 0), ("5 years", 0, 5), ("1 year", 0, 1), (" 0.5years ", 0, 0.5),
])
def test_a_cap_in_words(wear, per_day, years):
    assert cap_of(wear) == (per_day, years)


@pytest.mark.parametrize("wear", [
    0, -1, "", "TB", "2 TB/hour", "-2TB", "5 months", "0 years", "0TB", 1e30, float("nan"), "2TB5",
])
def test_a_cap_that_is_none(wear):
    with pytest.raises(ValueError, match="wear must be"):
        cap_of(wear)


def test_beyond_the_cap_tensors_are_kept_and_the_report_says_so(store):
    """A step saves some 200 KB; an hour's worth is 100 KB."""
    off = trained(store, wear=2.4e6, steps=4)
    stats = off.stats()
    assert 0 < stats.bytes_spilled <= 1e5
    assert stats.bytes_kept_wear > 0 and stats.wear_bytes_per_day == 2400000
    text = report_of(off)
    assert "kept: the cap on wear was used up" in text
    assert "2.4 MB a day" in text


def test_years_need_to_know_the_drives(store):
    with pytest.raises(spillway.SpillwayError, match="name its rating"):
        offload_all(store, wear="5 years")
    off = offload_all(store, wear="5 years", endurance_bytes="600TB")
    expected = 600e12 * len(store.drive_stats()) / 5 / 365.25
    assert off.stats().wear_bytes_per_day == pytest.approx(expected, rel=1e-9)
