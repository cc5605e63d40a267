# SPDX-License-Identifier: MIT
# tests/ecosystem/test_torchtune.py - a loop as torchtune's recipes have it, with their switch on
"""The recipes themselves refuse activation offloading where there is no CUDA device: what they do
with the switch is here as they do it."""
import copy

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("torchtune", reason="not with the newest torchao")

import spillway  # noqa: E402
import spillway.torch  # noqa: E402
from places import wait_after_layers  # noqa: E402
from spillway.integrations.torchtune import install  # noqa: E402
from torchtune import training  # noqa: E402
from torchtune.models.llama3 import llama3  # noqa: E402
from torchtune.modules import TransformerSelfAttentionLayer  # noqa: E402

STEPS, TOKENS = 6, 64
SPILL = {"mode": "spill", "sizes": spillway.torch.Sizes(min_bytes=0)}


class Recipe:
    """Of its model, its context and its loop: as recipes/full_finetune_single_device.py."""

    def __init__(self, offloading=True, recompute=False):
        torch.manual_seed(3)
        self.model = llama3(vocab_size=256, num_layers=4, num_heads=4, num_kv_heads=2,
                            embed_dim=64, max_seq_len=TOKENS)
        if recompute:
            training.set_activation_checkpointing(
                self.model, auto_wrap_policy={TransformerSelfAttentionLayer})
        self.context = training.get_act_offloading_ctx_manager(self.model, offloading)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.losses, self.done = [], 0

    def train(self, until=STEPS, fails_at=None, error=None):
        while self.done < until:
            tokens = (torch.arange(2 * TOKENS).reshape(2, TOKENS) * (self.done % 5 + 1)) % 256
            with self.context:
                logits = self.model(tokens)
                if self.done == fails_at:
                    raise error
            loss = F.cross_entropy(logits.flatten(0, 1), tokens.roll(-1, 1).flatten())
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.losses.append(loss.item().hex())
            self.done += 1
        return self

    def state(self):
        return copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict(), self.done))

    def load(self, state):
        self.model.load_state_dict(state[0])
        self.optimizer.load_state_dict(state[1])
        self.done = state[2]
        return self


@pytest.fixture
def switch(drives):
    found = install(drives, **SPILL)
    yield found
    found.end()


def moved(off):
    """On slow drives all may be asked for before it is written."""
    stats = off.stats()
    return stats.bytes_spilled + stats.bytes_forwarded


@pytest.mark.parametrize("recompute", [False, True])
def test_the_same_losses(switch, recompute):
    plain = Recipe(False, recompute).train()
    spilled = Recipe(True, recompute).train()
    assert spilled.losses == plain.losses and len(plain.losses) == STEPS
    assert all(map(torch.equal, plain.model.state_dict().values(),
                   spilled.model.state_dict().values()))
    assert moved(switch.off) > 0 and switch.off.stats().steps == STEPS


def test_less_memory(drives):
    """Than what plain training holds, which mode "observe" counts."""
    peaks = {}
    for mode in ("observe", "spill"):
        switch = install(drives, mode=mode, sizes=spillway.torch.Sizes(
            min_bytes=0, prefetch_bytes="64KiB"))
        recipe = Recipe()
        wait_after_layers(recipe.model, lambda: switch.off)
        recipe.train()
        peaks[mode] = switch.off.stats().step_peak_bytes
        switch.end()
    assert peaks["spill"] < 0.7 * peaks["observe"], peaks


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ZeroDivisionError("mine")])
def test_ends_and_resumes(switch, drives, error):
    """What was interrupted goes on from its checkpoint as what was not, in the same process."""
    whole = Recipe(False).train()
    recipe = Recipe().train(until=2)
    saved = recipe.state()
    with pytest.raises(type(error)):
        recipe.train(fails_at=4, error=error)
    again = Recipe().load(saved).train()
    assert again.losses == whole.losses[2:]
    switch.end()
    spillway.Store(drives).close()


def test_without_the_setting_nothing_is_opened(switch):
    Recipe(False).train(until=1)
    assert switch.off is None


def test_at_its_end_torchtune_offloads_by_itself(drives):
    before = training.get_act_offloading_ctx_manager
    switch = install(drives)
    assert training.get_act_offloading_ctx_manager is not before
    switch.end()
    switch.end()
    assert training.get_act_offloading_ctx_manager is before


def test_drives_without_a_store_are_named(folder):
    (folder / "empty").write_bytes(bytes(1 << 20))
    switch = install(str(folder / "empty"))
    with pytest.raises(spillway.SpillwayError, match="is not a drive of a spillway store"):
        Recipe()
    switch.end()
