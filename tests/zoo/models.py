# SPDX-License-Identifier: MIT
# tests/zoo/models.py - models of public packages, small: how to build each, and its loss of a batch
"""A row of MODELS is a Model. Packages are imported where a model is built, so that one that does
not load fails its own rows only. Weights are drawn, new batches are drawn for each step, dropout
is on; nothing is fetched."""
from __future__ import annotations

import dataclasses
import importlib
from typing import Any, Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, WIDTH, LENGTH, BATCH, CLASSES = 96, 64, 64, 4, 10


@dataclasses.dataclass(frozen=True)
class Model:
    name: str
    package: str
    build: Callable[[], nn.Module]
    # of the model and the generator of batches: a batch, and its loss
    loss: Callable[[nn.Module, torch.Generator], Tensor]


def load_torchvision() -> None:
    """The index has it for CUDA alone. Under a PyTorch for CPUs its operators do not load, and
    without these two it does not; timm and transformers use none of them."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor x, Tensor y, float z) -> Tensor")
        importlib.import_module("torchvision")


# ---- Batches and losses --------------------------------------------------------------------------


def tokens(random: torch.Generator, length: int = LENGTH, batch: int = BATCH) -> Tensor:
    return torch.randint(4, VOCABULARY, (batch, length), generator=random)


def noise(random: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=random)


def classes(random: torch.Generator, count: int = BATCH) -> Tensor:
    return torch.randint(CLASSES, (count,), generator=random)


def language(model: nn.Module, random: torch.Generator) -> Tensor:
    ids = tokens(random)
    return model(input_ids=ids, labels=ids).loss


def translation(model: nn.Module, random: torch.Generator) -> Tensor:
    return model(input_ids=tokens(random), labels=tokens(random, 32)).loss


def images(size: int, channels: int = 3) -> Callable[[nn.Module, torch.Generator], Tensor]:
    """Of a classifier."""
    def loss(model: nn.Module, random: torch.Generator) -> Tensor:
        scores = model(noise(random, BATCH, channels, size, size))
        return functional.cross_entropy(getattr(scores, "logits", scores), classes(random))
    return loss


def clip(model: nn.Module, random: torch.Generator) -> Tensor:
    return model(input_ids=tokens(random, 32), pixel_values=noise(random, BATCH, 3, 32, 32),
                 return_loss=True).loss


def speech(model: nn.Module, random: torch.Generator) -> Tensor:
    return model(input_values=noise(random, 2, 4000), labels=tokens(random, 4, 2)).loss


def whisper(model: nn.Module, random: torch.Generator) -> Tensor:
    return model(input_features=noise(random, 2, 16, 128), labels=tokens(random, 16, 2)).loss


def video(model: nn.Module, random: torch.Generator) -> Tensor:
    mask = torch.zeros(2, 32, dtype=torch.bool)
    mask[:, ::2] = True
    return model(pixel_values=noise(random, 2, 4, 3, 32, 32), bool_masked_pos=mask).loss


def denoising(model: nn.Module, random: torch.Generator) -> Tensor:
    image, target = noise(random, 2, 3, 32, 32), noise(random, 2, 3, 32, 32)
    return functional.mse_loss(model(image, classes(random, 2)).sample, target)


def conditional(model: nn.Module, random: torch.Generator) -> Tensor:
    image, text = noise(random, 2, 4, 16, 16), noise(random, 2, 8, 32)
    return functional.mse_loss(model(image, classes(random, 2), text).sample, image)


def diffusion_transformer(model: nn.Module, random: torch.Generator) -> Tensor:
    image = noise(random, 2, 4, 16, 16)
    got = model(image, timestep=classes(random, 2), class_labels=classes(random, 2)).sample
    return functional.mse_loss(got, image)


def pixart(model: nn.Module, random: torch.Generator) -> Tensor:
    image, text = noise(random, 2, 4, 16, 16), noise(random, 2, 8, WIDTH)
    added = {"resolution": None, "aspect_ratio": None}
    got = model(image, encoder_hidden_states=text, timestep=classes(random, 2),
                added_cond_kwargs=added).sample
    return functional.mse_loss(got, image)


def variational(model: nn.Module, random: torch.Generator) -> Tensor:
    image = noise(random, 2, 3, 32, 32)
    posterior = model.encode(image).latent_dist
    got = model.decode(posterior.sample()).sample  # by PyTorch's own generator, as training does
    return functional.mse_loss(got, image) + 1e-3 * posterior.kl().mean()


def quantized(model: nn.Module, random: torch.Generator) -> Tensor:
    image = noise(random, 2, 3, 32, 32)
    got = model(image)
    return functional.mse_loss(got.sample, image) + got.commit_loss.mean()


def returned(model: nn.Module, random: torch.Generator) -> Tensor:
    """Of what returns its loss itself."""
    return model(tokens(random))


def sequences(model: nn.Module, random: torch.Generator) -> Tensor:
    return model(tokens(random), tokens(random, 32))


def encoded(model: nn.Module, random: torch.Generator) -> Tensor:
    ids = tokens(random)
    return functional.cross_entropy(model(ids).transpose(1, 2), ids)


def graph(model: nn.Module, random: torch.Generator) -> Tensor:
    nodes, edges = 200, 800
    x, y = noise(random, nodes, 32), classes(random, nodes)
    ends = torch.randint(nodes, (2, edges), generator=random)
    return functional.cross_entropy(model(x, ends), y)


def molecules(model: nn.Module, random: torch.Generator) -> Tensor:
    charges = torch.randint(1, 10, (40,), generator=random)
    got = model(charges, noise(random, 40, 3) * 3, torch.arange(40) // 10)
    return got.pow(2).mean()


def density(model: nn.Module, random: torch.Generator) -> Tensor:
    """Of a normalizing flow: the flow itself is never called."""
    return -model.log_prob(noise(random, 128, 8)).mean()


def points(model: nn.Module, random: torch.Generator) -> Tensor:
    x = noise(random, 128, 4)
    return functional.mse_loss(model(x), x.sin())


# ---- Wholes that no package has as one module ----------------------------------------------------


class Solved(nn.Module):
    """A neural differential equation: the same layers in each evaluation of the solver."""

    def __init__(self, solver: str, **options: Any) -> None:
        super().__init__()
        self.field = nn.Sequential(nn.Linear(4, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4))
        self.solver, self.options = solver, options

    def forward(self, x: Tensor) -> Tensor:
        solve = getattr(importlib.import_module("torchdiffeq"), self.solver)
        times = torch.tensor([0.0, 1.0])
        rates = self.field if self.solver == "odeint_adjoint" else lambda _t, y: self.field(y)
        if self.solver == "odeint_adjoint":
            rates = Rates(self.field)
        return solve(rates, x, times, **self.options)[-1]


class Rates(nn.Module):
    def __init__(self, field: nn.Module) -> None:
        super().__init__()
        self.field = field

    def forward(self, _time: Tensor, y: Tensor) -> Tensor:
        return self.field(y)


class Distilled(nn.Module):
    """A student whose features, captured by hooks inside of its layers, follow its teacher's."""

    def __init__(self, teacher: nn.Module, student: nn.Module, features: str) -> None:
        super().__init__()
        self.teacher, self.student = teacher.eval().requires_grad_(False), student
        self.captured: dict[str, list[Tensor]] = {"teacher": [], "student": []}
        for role in self.captured:
            for name, module in getattr(self, role).named_modules():
                if name.endswith(features):
                    module.register_forward_hook(self.keep(role))

    def keep(self, role: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _given: Any, features: Tensor) -> None:
            self.captured[role].append(features)
        return hook

    def train(self, mode: bool = True) -> "Distilled":
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        for features in self.captured.values():
            features.clear()
        with torch.no_grad():
            self.teacher(image)
        scores = self.student(image)
        # Of as many as there are: what is captured twice counts twice.
        return scores, sum(functional.mse_loss(mine, aim) for mine in self.captured["student"]
                           for aim in self.captured["teacher"])


def distillation(model: nn.Module, random: torch.Generator) -> Tensor:
    scores, distance = model(noise(random, BATCH, 3, 32, 32))
    return functional.cross_entropy(scores, classes(random)) + distance


class Process(nn.Module):
    """A Gaussian process: trained by its marginal likelihood, with the data that it is made of."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        import gpytorch

        x = torch.linspace(0, 1, 96).unsqueeze(1)
        self.x, self.y = x, torch.sin(6 * x).squeeze(1)
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood()
        mean, kernel = gpytorch.means.ConstantMean(), gpytorch.kernels.ScaleKernel(
            gpytorch.kernels.RBFKernel())

        def forward(model: Any, points: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(model.mean(points),
                                                             model.kernel(points))
        if kind == "exact":
            process = type("Exact", (gpytorch.models.ExactGP,), {"forward": forward})(
                self.x, self.y, self.likelihood)
            self.objective = gpytorch.mlls.ExactMarginalLogLikelihood(self.likelihood, process)
        else:
            inducing = torch.linspace(0, 1, 24).unsqueeze(1)
            strategy = gpytorch.variational
            process = type("Sparse", (gpytorch.models.ApproximateGP,), {"forward": forward})(
                None)
            process.variational_strategy = strategy.VariationalStrategy(
                process, inducing, strategy.CholeskyVariationalDistribution(24))
            self.objective = gpytorch.mlls.VariationalELBO(self.likelihood, process, 96)
        process.mean, process.kernel = mean, kernel
        self.process = process


def likelihood(model: nn.Module, random: torch.Generator) -> Tensor:
    """The process is called, what it belongs to is not. Its targets are data of its own, which
    cannot be drawn again."""
    import gpytorch

    torch.rand(1, generator=random)
    with gpytorch.settings.cholesky_jitter(1e-3):
        return -model.objective(model.process(model.x), model.y)


# ---- Builders ------------------------------------------------------------------------------------


def hub(config: str, kind: str, **settings: Any) -> Callable[[], nn.Module]:
    """A model of transformers: its configuration's class, and its own or an Auto class."""
    def build() -> nn.Module:
        package = importlib.import_module("transformers")
        made = getattr(package, config)(**settings)
        model = getattr(package, kind)
        return model.from_config(made) if kind.startswith("Auto") else model(made)
    return build


SIZES = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 4,
         "num_attention_heads": 4, "intermediate_size": 2 * WIDTH, "pad_token_id": 0,
         "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 128}
EXPERTS = {"num_key_value_heads": 2, "num_experts_per_tok": 2, "num_local_experts": 4,
           "output_router_logits": True, "attention_dropout": 0.1}
BOTH = {"vocab_size": VOCABULARY, "d_model": WIDTH, "encoder_layers": 4, "decoder_layers": 4,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 128,
        "decoder_ffn_dim": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "decoder_start_token_id": 1}
SPEECH = {**SIZES, "conv_dim": (32, 32, 32), "conv_stride": (5, 4, 2), "conv_kernel": (10, 4, 4),
          "num_feat_extract_layers": 3, "num_conv_pos_embeddings": 16, "layerdrop": 0.3,
          "num_conv_pos_embedding_groups": 4, "mask_time_prob": 0.3, "mask_time_length": 2,
          "ctc_zero_infinity": True}
SIGHT = {"hidden_size": WIDTH, "num_hidden_layers": 4, "num_attention_heads": 4,
         "intermediate_size": 128, "image_size": 32, "patch_size": 8, "num_labels": CLASSES,
         "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}


def causal(config: str, **settings: Any) -> Callable[[], nn.Module]:
    return hub(config, "AutoModelForCausalLM", **{**SIZES, **settings})


def masked(config: str, **settings: Any) -> Callable[[], nn.Module]:
    return hub(config, "AutoModelForMaskedLM", **{**SIZES, **settings})


def checkpointed(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def built() -> nn.Module:
        model = build()
        model.gradient_checkpointing_enable()
        return model
    return built


def adapted(build: Callable[[], nn.Module], **settings: Any) -> Callable[[], nn.Module]:
    """By LoRA of peft."""
    def built() -> nn.Module:
        import peft

        return peft.get_peft_model(build(), peft.LoraConfig(r=4, lora_dropout=0.1, **settings))
    return built


def of(module: str, name: str, *given: Any, **settings: Any) -> Callable[[], nn.Module]:
    """A class or a function of a package."""
    def build() -> nn.Module:
        return getattr(importlib.import_module(module), name)(*given, **settings)
    return build


def timm(name: str, **settings: Any) -> Callable[[], nn.Module]:
    return of("timm", "create_model", name, num_classes=CLASSES, **settings)


def distilled() -> nn.Module:
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": WIDTH, "num_heads": 4}
    name = "vit_tiny_patch16_224"
    return Distilled(timm(name, depth=3, **sizes)(),
                     timm(name, depth=3, drop_rate=0.1, **sizes)(), "attn.proj")


def x_transformer(layers: str, wrapper: Any = None, **settings: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        package = importlib.import_module("x_transformers")
        model = package.TransformerWrapper(
            num_tokens=VOCABULARY, max_seq_len=LENGTH, emb_dropout=0.1,
            attn_layers=getattr(package, layers)(dim=WIDTH, depth=4, heads=4, attn_dropout=0.1,
                                                 ff_dropout=0.1, **settings))
        return getattr(package, wrapper)(model) if wrapper else model
    return build


def gnn(name: str, **settings: Any) -> Callable[[], nn.Module]:
    return of("torch_geometric.nn", name, 32, WIDTH, 4, CLASSES, dropout=0.2, **settings)


def bonds(positions: Tensor, molecules_of: Tensor) -> tuple[Tensor, Tensor]:
    """All pairs of atoms of a molecule, and their distances: radius_graph() takes pyg-lib."""
    same = molecules_of[:, None] == molecules_of
    ends = same.fill_diagonal_(False).nonzero().t()
    return ends, (positions[ends[0]] - positions[ends[1]]).norm(dim=1)


def deep_gcn() -> nn.Module:
    from torch_geometric import nn as geometric

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(32, WIDTH)
            self.layers = nn.ModuleList(
                geometric.DeepGCNLayer(geometric.GENConv(WIDTH, WIDTH), nn.LayerNorm(WIDTH),
                                       nn.ReLU(), dropout=0.1) for _ in range(4))
            self.outer = nn.Linear(WIDTH, CLASSES)

        def forward(self, x: Tensor, ends: Tensor) -> Tensor:
            x = self.inner(x)
            for layer in self.layers:
                x = layer(x, ends)
            return self.outer(x)
    return Deep()


def flow(kind: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        from nflows import distributions, flows, nn as networks, transforms

        def network(inner: int, outer: int) -> nn.Module:
            return networks.nets.ResidualNet(inner, outer, WIDTH, dropout_probability=0.1)

        mask = torch.tensor([1, -1] * 4)
        made = {
            "maf": lambda: transforms.MaskedAffineAutoregressiveTransform(8, WIDTH),
            "coupling": lambda: transforms.AffineCouplingTransform(mask, network),
            "spline": lambda: transforms.PiecewiseRationalQuadraticCouplingTransform(
                mask, network, tails="linear", tail_bound=3.0)}[kind]
        steps = [step for _ in range(4) for step in (made(), transforms.ReversePermutation(8))]
        return flows.Flow(transforms.CompositeTransform(steps), distributions.StandardNormal([8]))
    return build


# ---- The list ------------------------------------------------------------------------------------

GPT2 = causal("GPT2Config")
LLAMA = causal("LlamaConfig", attention_dropout=0.1)
T5 = hub("T5Config", "AutoModelForSeq2SeqLM", vocab_size=VOCABULARY, d_model=WIDTH, d_kv=16,
         d_ff=128, num_layers=3, num_heads=4, decoder_start_token_id=0)
VIT = hub("ViTConfig", "ViTForImageClassification", **SIGHT)

MODELS = [
    Model("gpt2", "transformers", GPT2, language),
    Model("gpt2, checkpoints", "transformers", checkpointed(GPT2), language),
    Model("gpt-neox", "transformers", causal("GPTNeoXConfig", hidden_dropout=0.1), language),
    Model("llama", "transformers", LLAMA, language),
    Model("llama, checkpoints", "transformers", checkpointed(LLAMA), language),
    Model("mistral", "transformers", causal("MistralConfig", num_key_value_heads=2), language),
    Model("qwen3", "transformers", causal("Qwen3Config", num_key_value_heads=2, head_dim=16),
          language),
    Model("gemma2", "transformers", causal("Gemma2Config", num_key_value_heads=2, head_dim=16),
          language),
    Model("phi3", "transformers", causal("Phi3Config", resid_pdrop=0.1), language),
    Model("bloom", "transformers", causal("BloomConfig", n_layer=4, n_head=4, hidden_dropout=0.1),
          language),
    Model("falcon", "transformers", causal("FalconConfig", hidden_dropout=0.1), language),
    Model("opt, layers dropped", "transformers", causal(
        "OPTConfig", ffn_dim=128, word_embed_proj_dim=WIDTH, layerdrop=0.3), language),
    Model("mixtral", "transformers", causal("MixtralConfig", **EXPERTS), language),
    Model("qwen3-moe", "transformers", causal(
        "Qwen3MoeConfig", **{**EXPERTS, "num_experts": 4, "head_dim": 16,
                             "moe_intermediate_size": WIDTH}), language),
    Model("gpt-oss", "transformers", causal("GptOssConfig", head_dim=16, **EXPERTS), language),
    Model("mamba", "transformers", causal("MambaConfig", state_size=8), language),
    Model("mamba2", "transformers", causal(
        "Mamba2Config", state_size=8, num_heads=8, head_dim=16, n_groups=1, chunk_size=16),
        language),
    Model("rwkv", "transformers", causal("RwkvConfig", attention_hidden_size=WIDTH), language),
    Model("deepseek", "transformers", causal(
        "DeepseekV3Config", q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, v_head_dim=8,
        qk_nope_head_dim=8, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
        moe_intermediate_size=32, first_k_dense_replace=1), language),
    Model("xlnet", "transformers", hub(
        "XLNetConfig", "XLNetLMHeadModel", vocab_size=VOCABULARY, d_model=WIDTH, n_layer=4,
        n_head=4, d_inner=128), language),
    Model("bert", "transformers", masked("BertConfig"), language),
    Model("roberta", "transformers", masked("RobertaConfig"), language),
    Model("albert", "transformers", masked(
        "AlbertConfig", embedding_size=32, hidden_dropout_prob=0.1), language),
    Model("deberta", "transformers", masked(
        "DebertaV2Config", relative_attention=True, pos_att_type=["p2c", "c2p"]), language),
    Model("distilbert", "transformers", hub(
        "DistilBertConfig", "DistilBertForMaskedLM", vocab_size=VOCABULARY, dim=WIDTH, n_layers=4,
        n_heads=4, hidden_dim=128), language),
    Model("longformer", "transformers", masked("LongformerConfig", attention_window=16), language),
    Model("big bird", "transformers", masked(
        "BigBirdConfig", attention_type="block_sparse", block_size=4, num_random_blocks=2),
        language),
    Model("t5", "transformers", T5, translation),
    Model("bart, layers dropped", "transformers", hub(
        "BartConfig", "BartForConditionalGeneration", encoder_layerdrop=0.3,
        decoder_layerdrop=0.3, max_position_embeddings=128, **BOTH), translation),
    Model("whisper, layers dropped", "transformers", hub(
        "WhisperConfig", "WhisperForConditionalGeneration", encoder_layerdrop=0.3,
        decoder_layerdrop=0.3, num_mel_bins=16, max_source_positions=64,
        max_target_positions=64, **BOTH), whisper),
    Model("wav2vec2, layers dropped", "transformers", hub(
        "Wav2Vec2Config", "Wav2Vec2ForCTC", **SPEECH), speech),
    Model("hubert, layers dropped", "transformers", hub(
        "HubertConfig", "HubertForCTC", **SPEECH), speech),
    Model("vit", "transformers", VIT, images(32)),
    Model("swin", "transformers", hub(
        "SwinConfig", "SwinForImageClassification", image_size=32, patch_size=2, embed_dim=24,
        depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=CLASSES), images(32)),
    Model("segformer", "transformers", hub(
        "SegformerConfig", "SegformerForImageClassification", hidden_sizes=[16, 32, 48, 64],
        num_labels=CLASSES), images(64)),
    Model("convnext", "transformers", hub(
        "ConvNextConfig", "ConvNextForImageClassification", hidden_sizes=[16, 32, 48, 64],
        depths=[1, 1, 2, 1], drop_path_rate=0.1, num_labels=CLASSES), images(64)),
    Model("videomae", "transformers", hub(
        "VideoMAEConfig", "VideoMAEForPreTraining", **{
            **SIGHT, "num_frames": 4, "tubelet_size": 2, "decoder_num_hidden_layers": 2,
            "decoder_num_attention_heads": 4, "decoder_hidden_size": 32,
            "decoder_intermediate_size": WIDTH}), video),
    Model("clip", "transformers", hub(
        "CLIPConfig", "CLIPModel", projection_dim=32, text_config={
            **SIZES, "attention_dropout": 0.1}, vision_config={**SIGHT}), clip),
    Model("gpt2, lora", "peft", adapted(GPT2), language),
    Model("llama, dora", "peft", adapted(LLAMA, use_dora=True), language),
    Model("t5, lora", "peft", adapted(T5), translation),
    Model("vit, lora", "peft", adapted(VIT, target_modules="all-linear"), images(32)),
    Model("unet", "diffusers", of(
        "diffusers", "UNet2DModel", sample_size=32, block_out_channels=(32, 64),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"), dropout=0.1, norm_num_groups=8),
        denoising),
    Model("unet, conditional", "diffusers", of(
        "diffusers", "UNet2DConditionModel", sample_size=16, block_out_channels=(32, 64),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), dropout=0.1,
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), cross_attention_dim=32,
        attention_head_dim=8, norm_num_groups=8, layers_per_block=1), conditional),
    Model("dit", "diffusers", of(
        "diffusers", "DiTTransformer2DModel", sample_size=16, num_layers=4, in_channels=4,
        num_attention_heads=4, attention_head_dim=16, dropout=0.1, num_embeds_ada_norm=CLASSES),
        diffusion_transformer),
    Model("pixart", "diffusers", of(
        "diffusers", "PixArtTransformer2DModel", sample_size=16, num_layers=4, in_channels=4,
        out_channels=4, num_attention_heads=4, attention_head_dim=16, cross_attention_dim=WIDTH,
        caption_channels=WIDTH, dropout=0.1), pixart),
    Model("vae", "diffusers", of(
        "diffusers", "AutoencoderKL", block_out_channels=(16, 32), norm_num_groups=8,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2),
        variational),
    Model("vq", "diffusers", of(
        "diffusers", "VQModel", block_out_channels=(16, 32), norm_num_groups=8,
        num_vq_embeddings=32, down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2), quantized),
    Model("resnet", "timm", timm("test_resnet", drop_rate=0.1), images(64)),
    Model("efficientnet", "timm", timm("test_efficientnet", drop_rate=0.1, drop_path_rate=0.2),
          images(64)),
    Model("mobilenet", "timm", timm("mobilenetv3_small_050", drop_rate=0.1), images(32)),
    Model("deit, layers dropped", "timm", timm(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, depth=4, drop_rate=0.1,
        drop_path_rate=0.3), images(32)),
    Model("mixer", "timm", of(
        "timm.models.mlp_mixer", "MlpMixer", num_classes=CLASSES, img_size=64, patch_size=16,
        num_blocks=4, embed_dim=128, drop_rate=0.1), images(64)),
    Model("convnext, paths dropped", "timm", timm("test_convnext", drop_path_rate=0.2), images(64)),
    Model("densenet", "timm", timm("densenet121", growth_rate=8, drop_rate=0.1), images(32)),
    Model("vit, features distilled", "timm", distilled, distillation),
    Model("decoder", "x-transformers", x_transformer(
        "Decoder", "AutoregressiveWrapper", rotary_pos_emb=True), returned),
    Model("decoder, layers dropped", "x-transformers", x_transformer(
        "Decoder", "AutoregressiveWrapper", layer_dropout=0.3, use_rmsnorm=True, ff_glu=True),
        returned),
    Model("encoder", "x-transformers", x_transformer("Encoder"), encoded),
    Model("encoder and decoder", "x-transformers", of(
        "x_transformers", "XTransformer", dim=WIDTH, enc_num_tokens=VOCABULARY, enc_depth=3,
        enc_heads=4, enc_max_seq_len=LENGTH, dec_num_tokens=VOCABULARY, dec_depth=3, dec_heads=4,
        dec_max_seq_len=LENGTH), sequences),
    Model("gcn", "torch-geometric", gnn("GCN"), graph),
    Model("gat", "torch-geometric", gnn("GAT", heads=4), graph),
    Model("sage", "torch-geometric", gnn("GraphSAGE"), graph),
    Model("gin", "torch-geometric", gnn("GIN", norm="batch_norm"), graph),
    Model("deep gcn", "torch-geometric", deep_gcn, graph),
    Model("schnet", "torch-geometric", of(
        "torch_geometric.nn.models", "SchNet", hidden_channels=WIDTH, num_filters=WIDTH,
        num_interactions=3, interaction_graph=bonds), molecules),
    Model("exact process", "gpytorch", lambda: Process("exact"), likelihood),
    Model("sparse process", "gpytorch", lambda: Process("sparse"), likelihood),
    Model("masked autoregressive flow", "nflows", flow("maf"), density),
    Model("coupling flow", "nflows", flow("coupling"), density),
    Model("spline flow", "nflows", flow("spline"), density),
    Model("solved equation", "torchdiffeq", lambda: Solved(
        "odeint", method="dopri5", rtol=1e-4, atol=1e-4), points),
    Model("solved equation, fixed steps", "torchdiffeq", lambda: Solved(
        "odeint", method="rk4", options={"step_size": 0.1}), points),
    Model("solved equation, adjoint", "torchdiffeq", lambda: Solved(
        "odeint_adjoint", method="rk4", options={"step_size": 0.1}), points),
]
