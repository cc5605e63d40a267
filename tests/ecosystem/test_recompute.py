# SPDX-License-Identifier: MIT
# tests/ecosystem/test_recompute.py - transformers' models, recomputed: nothing is collected twice
import contextlib
import random

import numpy
import pytest
import torch
import transformers

import spillway.torch

VOCABULARY, STEPS = 128, 4
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64,
         "num_hidden_layers": 3, "num_attention_heads": 4, "use_cache": False}
DECODER = {**SIZES, "num_key_value_heads": 2}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
# What is collected of each layer, beside the loss.
ROUTERS, STATES = {"output_router_logits": True}, {"output_hidden_states": True}
ATTENTIONS = {"output_attentions": True}


def of(name, **sizes):
    return getattr(transformers, f"{name}Config")(**sizes)


PLAIN = {
    "llama": lambda: of("Llama", **DECODER, attention_dropout=0.1),
    "gpt2": lambda: of("GPT2", n_embd=32, n_layer=3, n_head=4, vocab_size=VOCABULARY,
                       use_cache=False, bos_token_id=0, eos_token_id=0),
    "bert": lambda: of("Bert", **SIZES, is_decoder=True),
    "t5": lambda: of("T5", vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=3,
                     num_heads=4, decoder_start_token_id=0, use_cache=False),
}
MIXTURES = {
    "mixtral": lambda: of("Mixtral", **DECODER, num_local_experts=4),
    "qwen3_moe": lambda: of("Qwen3Moe", **DECODER, **EXPERTS, head_dim=8),
    "gpt_oss": lambda: of("GptOss", **DECODER, num_local_experts=4, num_experts_per_tok=2,
                          head_dim=8),
}
MODELS = {**PLAIN, **MIXTURES}


def flat(outputs):
    """All tensors of an output, and how many there are of each kind."""
    for name, value in outputs.items():
        for index, each in enumerate(value if isinstance(value, tuple) else (value,)):
            if isinstance(each, torch.Tensor):
                yield f"{name}.{index}", each.detach().clone()


def train(make, step, recompute):
    """(the outputs and gradients of each step, why scopes were not recomputed, how many were)"""
    for seed in (torch.manual_seed, random.seed, numpy.random.seed):
        seed(7)
    model = make().train()
    off = contextlib.nullcontext()
    if recompute:
        off = spillway.torch.offload(model, None, mode="budget", budget_bytes=1 << 40,
                                     sizes=spillway.torch.Sizes(min_bytes=1), recompute="auto")
        off._session.discards_all = True
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    seen = []
    for index in range(STEPS):
        with off:
            loss, outputs = step(model, index)
            loss.backward()
        seen.append(dict(flat(outputs)))
        seen[-1].update((name, parameter.grad.clone())
                        for name, parameter in model.named_parameters()
                        if parameter.grad is not None)
        optimizer.step()
        optimizer.zero_grad()
    seen.append({"torch": torch.rand(3), "numpy": torch.tensor(numpy.random.rand())})
    if not recompute:
        return seen, set(), 0
    stats = off.stats()
    assert stats.restores_refused == 0
    refused = set(off._recomputer.refused.values())
    off.close()
    return seen, refused, stats.scopes_again


def same(make, step):
    plain, spilled = train(make, step, False), train(make, step, True)
    for one, other in zip(plain[0], spilled[0]):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
    return spilled[1:]


def language_model(name):
    kind = MODELS[name]()
    if name == "t5":
        return transformers.T5ForConditionalGeneration(kind)
    return transformers.AutoModelForCausalLM.from_config(kind, attn_implementation="eager")


def collecting(given_at):
    """A step; what is to be collected then says a function of its number."""
    def step(model, index):
        tokens = torch.randint(0, VOCABULARY, (2, 16))
        given = given_at(index)
        outputs = model(input_ids=tokens, labels=tokens, **given)
        loss = outputs.loss
        for name in ("hidden_states", "attentions"):  # as where a student is trained by them
            for each in outputs.get(name) or ():
                loss = loss + each.square().mean()
        return loss, outputs
    return step


@pytest.mark.parametrize("name", MODELS)
def test_what_collects_nothing_is_recomputed(name):
    reasons, count = same(lambda: language_model(name), collecting(lambda index: {}))
    assert count > 0 and reasons <= {"there are scopes inside of it"}


@pytest.mark.parametrize("name", MIXTURES)
def test_router_logits_are_collected_once(name):
    reasons, _ = same(lambda: language_model(name), collecting(lambda index: ROUTERS))
    assert any("hooks" in reason for reason in reasons)


@pytest.mark.parametrize("given", [STATES, ATTENTIONS, {**STATES, **ATTENTIONS}], ids=str)
@pytest.mark.parametrize("name", ["llama", "bert", "mixtral"])
def test_states_are_collected_once(name, given):
    same(lambda: language_model(name), collecting(lambda index: given))


@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
def test_what_begins_to_be_collected_later(name):
    """After the trial: hooks come into the model that stay there."""
    given = {**STATES, **(ROUTERS if name in MIXTURES else ATTENTIONS)}
    same(lambda: language_model(name), collecting(lambda index: given if index == 2 else {}))


def test_a_cache_among_the_arguments():
    def step(model, index):
        tokens = torch.randint(0, VOCABULARY, (2, 16))
        outputs = model(input_ids=tokens, labels=tokens, use_cache=True)
        assert outputs.past_key_values.get_seq_length() == 16
        return outputs.loss, {"loss": outputs.loss}

    reasons, _ = same(lambda: language_model("llama"), step)
    assert any("DynamicCache" in reason for reason in reasons)


def test_random_attention_of_numpy():
    """Which blocks a BigBird attends to is drawn from NumPy's generator in each forward pass."""
    def make():
        return transformers.BigBirdModel(of(
            "BigBird", **SIZES, attention_type="block_sparse", block_size=16, num_random_blocks=2,
            max_position_embeddings=512), add_pooling_layer=False)

    def step(model, index):
        outputs = model(input_ids=torch.randint(0, VOCABULARY, (2, 256)))
        return outputs.last_hidden_state.square().mean(), {"states": outputs.last_hidden_state}

    _, count = same(make, step)
    assert count > 0
