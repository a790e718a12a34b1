"""GPT against transformers' GPT-2 and Llama, and against itself written out."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from megalith.memory.recompute import RecomputePolicy
from megalith.models.gpt import GPT
from megalith.nn.init import initialise
from megalith.nn.norm import Norm
from megalith.nn.shard import declarations
from tests.models.models import ONE_RANK, build, layout_of, model_config, random_batch

LLAMA: dict[str, Any] = {
    "position_embedding_type": "rope",
    "normalization": "RMSNorm",
    "swiglu": True,
    "add_bias_linear": False,
    "num_query_groups": 2,
    "untie_embeddings_and_output_weights": True,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "llama": LLAMA,
    "dropout": {"hidden_dropout": 0.1, "attention_dropout": 0.2},
    "rope scaled": LLAMA | {"use_rope_scaling": True, "rotary_base": 500000.0},
    "rope partial": LLAMA | {"rotary_percent": 0.5, "rotary_seq_len_interpolation_factor": 2.0},
    "rope interleaved": LLAMA | {"rotary_interleaved": True},
    "no positions": {"position_embedding_type": "none"},
    "layernorm 1p": {"apply_layernorm_1p": True},
    "qk norm": {"qk_layernorm": True},
    "qkv bias": {"add_bias_linear": False, "add_qkv_bias": True},
    "squared relu": {"squared_relu": True},
    "gated squared relu": {"squared_relu": True, "gated_linear_unit": True},
    "gated gelu": {"gated_linear_unit": True},
    "quick geglu": {"quick_geglu": True},
    "exact gelu": {"bias_gelu_fusion": False},
    "multi query": {"num_query_groups": 1},
    "wide heads": {"kv_channels": 16},
    "window": {"window_size": 5},
}


def _gradients(model: GPT) -> dict[str, torch.Tensor]:
    found = {}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        found[name], parameter.grad = parameter.grad, None
    return found


@pytest.mark.parametrize("variant", VARIANTS)
def test_chunked_loss_equals_cross_entropy_of_the_logits(variant: str) -> None:
    model = build(model_config(**VARIANTS[variant]))
    tokens, targets = random_batch(3, 16)
    layout = layout_of(3, 16)
    loss = model.loss(tokens, targets, layout)
    (loss / 41.0).backward()
    gradients = _gradients(model)
    losses = F.cross_entropy(model(tokens, layout), targets.labels, reduction="none")
    expected = (losses * targets.weights).sum()
    (expected / 41.0).backward()
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    for name, reference in _gradients(model).items():
        torch.testing.assert_close(gradients[name], reference, rtol=0, atol=1e-13, msg=name)


@pytest.mark.parametrize("variant", VARIANTS)
def test_recomputed_layers_give_the_same_gradients(variant: str) -> None:
    tokens, targets = random_batch(3, 16)
    gradients = []
    for layers in (0, 1, 2):
        model = build(model_config(**VARIANTS[variant]), recompute=RecomputePolicy(layers))
        model.loss(tokens, targets, layout_of(3, 16)).backward()
        gradients.append(_gradients(model))
    assert all(torch.equal(gradients[0][n], g[n]) for g in gradients[1:] for n in gradients[0])


@pytest.mark.parametrize("variant", sorted(set(VARIANTS) - {"gpt2", "layernorm 1p"}))
def test_every_option_changes_the_loss(variant: str) -> None:
    def loss(settings: dict[str, Any]) -> float:
        model = build(model_config(**settings))
        tokens, targets = random_batch(3, 16)
        return model.loss(tokens, targets, layout_of(3, 16)).item()

    base = LLAMA if variant.startswith("rope") else {}
    assert abs(loss(VARIANTS[variant]) - loss(base)) > 1e-8


def test_logits_equal_transformers_gpt2() -> None:
    model = build(model_config(vocab_size=64, max_position_embeddings=24))
    theirs = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=64, n_positions=24, n_embd=32, n_layer=2, n_head=4, n_inner=64,
            attn_implementation="eager",
        )
    ).double().eval()  # fmt: skip
    ours = dict(model.named_parameters())
    names = {
        "ln_1": "attention_norm", "ln_2": "mlp_norm", "attn.c_attn": "attention.qkv",
        "attn.c_proj": "attention.output", "mlp.c_fc": "mlp.up", "mlp.c_proj": "mlp.down",
    }  # fmt: skip
    state = {
        "transformer.wte.weight": ours["word_embedding.weight"],
        "lm_head.weight": ours["word_embedding.weight"],
        "transformer.wpe.weight": ours["position_embedding.weight"],
        "transformer.ln_f.weight": ours["final_norm.weight"],
        "transformer.ln_f.bias": ours["final_norm.bias"],
    }
    for layer in range(2):
        for theirs_name, our_name in names.items():
            for kind in ("weight", "bias"):
                value = ours[f"layers.{layer}.{our_name}.{kind}"]
                value = value.t() if value.dim() == 2 else value
                state[f"transformer.h.{layer}.{theirs_name}.{kind}"] = value
    theirs.load_state_dict(state, strict=False)
    tokens, _ = random_batch(3, 16)
    logits = theirs(tokens.view(3, 16)).logits.view(48, -1)
    torch.testing.assert_close(model(tokens, layout_of(3, 16)), logits, rtol=0, atol=1e-10)


def test_logits_equal_transformers_llama() -> None:
    model = build(model_config(**LLAMA, vocab_size=64, rotary_base=5000.0), torch.float32)
    theirs = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16,
            rms_norm_eps=1e-5, rope_parameters={"rope_theta": 5000.0, "rope_type": "default"},
            attn_implementation="eager",
        )
    ).eval()  # fmt: skip
    ours = dict(model.named_parameters())
    state = {
        "model.embed_tokens.weight": ours["word_embedding.weight"],
        "lm_head.weight": ours["output.weight"],
        "model.norm.weight": ours["final_norm.weight"],
    }
    for layer in range(2):

        def weight(name: str, layer: int = layer) -> torch.Tensor:
            return ours[f"layers.{layer}.{name}.weight"]

        prefix = f"model.layers.{layer}"
        qkv = weight("attention.qkv").split((32, 16, 16))
        for name, part in zip("qkv", qkv, strict=True):
            state[f"{prefix}.self_attn.{name}_proj.weight"] = part
        gate, up = weight("mlp.up").chunk(2)
        state[f"{prefix}.self_attn.o_proj.weight"] = weight("attention.output")
        state[f"{prefix}.mlp.gate_proj.weight"] = gate
        state[f"{prefix}.mlp.up_proj.weight"] = up
        state[f"{prefix}.mlp.down_proj.weight"] = weight("mlp.down")
        state[f"{prefix}.input_layernorm.weight"] = weight("attention_norm")
        state[f"{prefix}.post_attention_layernorm.weight"] = weight("mlp_norm")
    assert not theirs.load_state_dict(state, strict=False).missing_keys
    tokens, _ = random_batch(3, 16)
    logits = theirs(tokens.view(3, 16)).logits.view(48, -1)
    torch.testing.assert_close(model(tokens, layout_of(3, 16)), logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("untied", [False, True])
def test_vocabulary_padding_changes_nothing(untied: bool) -> None:
    losses, gradients = [], []
    for padded in (257, 258, 260, 384):
        model = build(
            model_config(
                vocab_size=257,
                padded_vocab_size=padded,
                untie_embeddings_and_output_weights=untied,
            )
        )
        tokens, targets = random_batch(3, 16, vocabulary=257)
        loss = model.loss(tokens, targets, layout_of(3, 16))
        loss.backward()
        losses.append(loss.item())
        found = _gradients(model)
        table = found["word_embedding.weight"]
        assert table.shape[0] == padded and not table[257:].any()
        assert not model.word_embedding.weight[257:].any()
        assert model(tokens, layout_of(3, 16)).shape[1] == 257
        gradients.append({n: g[:257] if n.endswith("g.weight") else g for n, g in found.items()})
    assert len(set(losses)) == 1
    assert torch.equal(gradients[0]["word_embedding.weight"], gradients[3]["word_embedding.weight"])


def test_all_masked_targets_give_zero_loss_and_gradient() -> None:
    model = build(model_config())
    tokens, targets = random_batch(3, 16)
    targets.weights.zero_()
    loss = model.loss(tokens, targets, layout_of(3, 16))
    loss.backward()
    assert loss.item() == 0.0
    assert all(not g.any() for g in _gradients(model).values())


def test_initial_values_do_not_depend_on_dtype_or_on_other_parameters() -> None:
    small, large = build(model_config()), build(model_config(num_layers=3), torch.float32)
    name = "layers.1.attention.qkv.weight"
    first, second = small.get_parameter(name), large.get_parameter(name)
    assert torch.equal(first.float(), second)


def test_initial_values_have_the_declared_spread() -> None:
    model = GPT(model_config(hidden_size=256, kv_channels=64), torch.float32, 1)
    initialise(model, 1, ONE_RANK)
    for name, declaration in declarations(model).items():
        initial, values = declaration.initial, model.get_parameter(name)
        if initial.distribution == "normal":
            real = values[: declaration.spec.global_shape[0]]
            assert abs(real.std().item() / initial.value - 1.0) < 0.05, name
        else:
            assert torch.all(values == initial.value), name


def test_another_seed_gives_other_values() -> None:
    first, second = (GPT(model_config(), torch.float32, 1) for _ in range(2))
    initialise(first, 1, ONE_RANK)
    initialise(second, 2, ONE_RANK)
    weight = "layers.0.mlp.up.weight"
    assert not torch.equal(first.get_parameter(weight), second.get_parameter(weight))


def test_gain_stored_minus_one_is_the_same_norm() -> None:
    plain, shifted = build(model_config()), build(model_config(apply_layernorm_1p=True))
    for module in shifted.modules():
        if isinstance(module, Norm):
            assert module.weight.abs().max() < 0.5
    tokens, targets = random_batch(3, 16)
    losses = [m.loss(tokens, targets, layout_of(3, 16)) for m in (plain, shifted)]
    torch.testing.assert_close(*losses, rtol=1e-13, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_narrow_dtypes_stay_near_float64(dtype: torch.dtype) -> None:
    tokens, targets = random_batch(3, 16)
    reference, model = build(model_config()), build(model_config(), dtype)
    expected = reference.loss(tokens, targets, layout_of(3, 16))
    loss = model.loss(tokens, targets, layout_of(3, 16))
    expected.backward()
    loss.backward()
    assert loss.dtype == torch.float32
    tolerance = 8.0 * torch.finfo(dtype).eps
    assert abs(loss.item() / expected.item() - 1.0) < tolerance
    for name, gradient in _gradients(model).items():
        wanted = reference.get_parameter(name).grad
        assert wanted is not None
        error = (gradient.double() - wanted).norm() / wanted.norm()
        assert error < 10.0 * tolerance, name
