# SPDX-License-Identifier: MIT
# tests/python/test_layers.py - PyTorch's own layers: losses, gradients and what they become
import functools
import gc
import io

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import spillway.torch
from detection import Detector
from offloading import equal, gradients_of, left_in, offload_all, raw, same_bits, save, settle

TOKENS = 50


class Recurrent(nn.Module):
    """The cells of nn.LSTM and nn.GRU change the parts of one storage in place, each with a version
    counter of its own."""

    def __init__(self, kind, packed=False, **options):
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 32)
        self.cells = kind(32, 48, num_layers=2, dropout=0.2, batch_first=True, **options)
        self.out = nn.Linear(96 if options.get("bidirectional") else 48, TOKENS)
        self.packed = packed

    def forward(self, tokens):
        x = self.embedding(tokens)
        if self.packed:
            x = nn.utils.rnn.pack_padded_sequence(x, [12, 12, 9, 3], batch_first=True)
        x = self.cells(x)[0]
        if self.packed:
            x = nn.utils.rnn.pad_packed_sequence(x, batch_first=True)[0]
        return self.out(x)


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(64) for _ in range(3))
        self.layers = nn.ModuleList(
            nn.MultiheadAttention(64, 4, dropout=0.1, batch_first=True) for _ in range(3))

    def forward(self, x):
        for norm, layer in zip(self.norms, self.layers):
            y = norm(x)
            x = x + layer(y, y, y, need_weights=False)[0]
        return x


class EncoderDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 32)
        self.both = nn.Transformer(32, 4, 2, 2, 64, dropout=0.1, batch_first=True)
        self.out = nn.Linear(32, TOKENS)
        self.out.weight = nn.Parameter(self.embedding.weight)  # shared

    def forward(self, tokens):
        later = self.both.generate_square_subsequent_mask(tokens.shape[1])
        x = self.embedding(tokens)
        return self.out(self.both(x, x, tgt_mask=later, src_key_padding_mask=tokens == 3))


def convolutions():
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True),
                         nn.MaxPool2d(2), nn.Conv2d(16, 16, 3, groups=4), nn.GroupNorm(4, 16),
                         nn.SiLU(inplace=True), nn.Dropout2d(0.2),
                         nn.ConvTranspose2d(16, 8, 2, stride=2), nn.InstanceNorm2d(8), nn.PReLU(),
                         nn.Upsample(scale_factor=2, mode="bilinear"), nn.AdaptiveAvgPool2d(4),
                         nn.Flatten(), nn.Linear(128, TOKENS))


class Scaled(torch.autograd.Function):
    """Saves inputs, a result, and nothing at all."""

    @staticmethod
    def forward(ctx, x, weight):
        product = x * weight
        ctx.save_for_backward(x, weight, product, None)
        return product * 0.5

    @staticmethod
    def backward(ctx, gradient):
        x, weight, _, nothing = ctx.saved_tensors
        assert nothing is None
        return gradient * weight * 0.5, (gradient * x * 0.5).sum((0, 1))


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x.exp_())
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64))
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = InPlace.apply(Scaled.apply(layer(x).tanh(), self.weight) * 0.1)
        return x


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1))
                                      for _ in range(4)))
        self.reentrant = reentrant

    def forward(self, x):
        if self.reentrant:
            x = checkpoint_sequential(self.layers[:2], 2, x.requires_grad_())
        for layer in self.layers[2:]:
            x = checkpoint(layer, layer(x), use_reentrant=self.reentrant)
        return x


def tokens(generator):
    return torch.randint(TOKENS, (4, 12), generator=generator)


def numbers(generator):
    return torch.randn(4, 12, 64, generator=generator)


def images(generator):
    return torch.randn(4, 3, 16, 16, generator=generator)


MODELS = {
    "lstm": (lambda: Recurrent(nn.LSTM), tokens),
    "lstm, both directions": (lambda: Recurrent(nn.LSTM, bidirectional=True), tokens),
    "lstm, packed": (lambda: Recurrent(nn.LSTM, packed=True), tokens),
    "gru": (lambda: Recurrent(nn.GRU), tokens),
    "rnn": (lambda: Recurrent(nn.RNN), tokens),
    "attention": (Attending, numbers),
    "transformer": (EncoderDecoder, tokens),
    "convolutions": (convolutions, images),
    "convolutions, channels last": (lambda: convolutions().to(memory_format=torch.channels_last),
                                    images),
    "functions": (Own, numbers),
    "checkpoints": (lambda: Checkpointed(False), numbers),
    "checkpoints, reentrant": (lambda: Checkpointed(True), numbers),
    "double": (lambda: Attending().double(), lambda generator: numbers(generator).double()),
    "rrelu": (lambda: nn.Sequential(nn.Linear(64, 64), nn.RReLU(), nn.Linear(64, 64), nn.RReLU()),
              numbers),
    "sparse gradients": (
        lambda: nn.Sequential(nn.Embedding(TOKENS, 64, sparse=True), nn.Linear(64, TOKENS)),
        tokens),
}


def loss_of(output, inputs):
    if inputs.dtype is torch.int64:
        return F.cross_entropy(output.flatten(0, 1), inputs.flatten())
    return output.pow(2).mean()


def trained(name, off_of=None):
    """Losses, norms, gradients of three steps of two micro-batches; then parameters and buffers."""
    make, draw = MODELS[name]
    torch.manual_seed(1)
    model, generator = make(), torch.Generator().manual_seed(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    off = off_of(model) if off_of else None
    seen = []
    for _ in range(3):
        if off is not None:
            off.step()
        for _ in range(2):
            inputs = draw(generator)
            with off or torch.enable_grad():
                loss = loss_of(model(inputs), inputs)
                if off is not None and off.stats().staging_bytes:
                    settle(off)  # what is written has to be read
                loss.backward()
            seen.append(loss.item().hex())
            del loss
        if name != "sparse gradients":
            seen.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).item().hex())
        seen.append([gradient if gradient is None else raw(gradient.to_dense())
                     for gradient in gradients_of(model)])
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            seen.append(raw(model(inputs)))
        model.train()
    if off is not None:
        gc.collect()
        assert left_in(off) == (0, 0, 0)
        assert off.stats().steps == 3 and off.stats().bytes_read > 0
        off.close()
    return seen + [raw(tensor) for tensor in (*model.parameters(), *model.buffers())]


@pytest.mark.parametrize("name", MODELS)
def test_a_layer_trains_to_the_same_bits(store, name):
    plain = trained(name)
    for scopes in ([], None):
        assert trained(name, lambda model: offload_all(store, model, scopes=scopes)) == plain


@pytest.mark.parametrize("wait", [True, False], ids=["stored", "at once"])
def test_parts_that_do_not_know_of_each_other(store, wait):
    """What torch.unsafe_chunk() gives, as cells of nn.LSTM have it: changing one in place shows in
    no counter of the others. They and their views are kept: the storage is still written to."""
    off = offload_all(store)
    seen, expected, outputs = [], [], []
    with off:
        for part in torch.unsafe_chunk(torch.randn(200, 400), 4, 1):
            part.sigmoid_()
            outputs.append(save(seen, part, part.t(), part[1:]))
            expected.append(part.clone())
            if wait:
                settle(off)
        del part
        for output in outputs:
            output.sum().backward()
    assert equal([got for got, _, _ in seen], expected)
    assert equal([view for _, view, _ in seen], [part.t() for part in expected])
    assert equal([rows for _, _, rows in seen], [part[1:] for part in expected])
    assert off.stats().bytes_spilled == 0
    assert off.stats().activation_bytes_max == 200 * 400 * 4  # counted, once for all


def test_views_know_of_each_other(store):
    """As what torch.chunk() gives: one object for all."""
    off = offload_all(store)
    seen, whole = [], torch.randn(200, 400)
    with off:
        output = save(seen, *whole.chunk(4, 1))
        settle(off)
        output.sum().backward()
    assert all(same_bits(got, wanted) for got, wanted in zip(seen[0], whole.chunk(4, 1)))
    assert (off.stats().tensors_spilled, off.stats().tensors_deduplicated) == (1, 3)


@pytest.mark.parametrize("min_bytes", [1, None], ids=["all", "by default"])
def test_a_number_of_python_stays_one(store, min_bytes):
    """Saved as a tensor of doubles without dimensions, whose type yields to that of others:
    gradients are computed as floats."""
    off = offload_all(store, min_bytes=min_bytes)

    def gradients():
        torch.manual_seed(1)
        leaves = [leaf.requires_grad_() for leaf in torch.ones(200).unbind()]
        products = [leaf * 1e-3 for leaf in leaves]
        settle(off)
        for product, gradient in zip(products, torch.rand(200)):
            product.backward(gradient)
        return torch.stack([leaf.grad for leaf in leaves])

    expected = gradients()
    with off:
        assert torch.equal(gradients(), expected)


def test_a_model_that_is_compiled_as_a_whole(store):
    with pytest.raises(TypeError, match="pass an nn.Module"):
        spillway.torch.offload(torch.jit.script(nn.Linear(4, 4)), store)


def test_a_model_with_parts_that_are_compiled(store):
    """They take no hooks, so they cannot be scopes. TorchScript's own gradients differ by rounding
    from run to run."""
    model = nn.Sequential(*(torch.jit.script(nn.Sequential(nn.Linear(64, 64), nn.Tanh()))
                            for _ in range(2)))
    inputs = torch.randn(32, 64)
    model(inputs).pow(2).sum().backward()
    expected = gradients_of(model)
    model.zero_grad(set_to_none=True)
    off = offload_all(store, model)
    with off:
        output = model(inputs).pow(2).sum()
        settle(off)
        output.backward()
    assert all(map(functools.partial(torch.allclose, atol=1e-4), gradients_of(model), expected))
    assert off.stats().bytes_read > 0


def test_heads_beside_the_layers_are_no_last_layer(store):
    """As of a detector: three quarters of what it saves come after the last ModuleList."""
    model = Detector()
    off = offload_all(store, model)
    for _ in range(3):
        before = off.stats()
        with off:
            model(torch.randn(2, 3, 128, 128)).sum().backward()
    stats = off.stats()
    offered = stats.bytes_offered - before.bytes_offered
    kept = stats.bytes_kept_last_scope - before.bytes_kept_last_scope
    assert 0 < kept < offered / 3
    report = io.StringIO()
    off.report(report)
    assert "kept: needed first (the last layer, and what follows)" in report.getvalue()
