"""GPT-2 of the transformers library."""

from transformers import GPT2Config, GPT2LMHeadModel, set_seed

from benchmarks.job import Workload


def gpt2(work: Workload) -> GPT2LMHeadModel:
    """The workload's model, with PyTorch's fused attention (the library's default)."""
    set_seed(1)
    config = GPT2Config(
        vocab_size=work.vocabulary,
        n_positions=work.sequence,
        n_embd=work.hidden,
        n_layer=work.layers,
        n_head=work.heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config)
    assert model.config._attn_implementation == "sdpa"
    return model
