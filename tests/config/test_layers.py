"""Settings come from flags, YAML, presets and defaults, in this order; mistakes are placed."""

from pathlib import Path

import pytest

from megalith.config.flags import load_run, parse_run
from megalith.errors import MegalithError

MEGATRON = """--tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 --num-layers 24
    --hidden-size 2048 --num-attention-heads 16 --micro-batch-size 4 --global-batch-size 256
    --seq-length 2048 --max-position-embeddings 2048 --train-iters 500000 --lr-decay-iters 320000
    --save checkpoints --load checkpoints --data-path my_data --vocab-file vocab.txt
    --merge-file merges.txt --data-impl mmap --split 949,50,1 --distributed-backend nccl
    --lr 0.00015 --min-lr 1.0e-5 --lr-decay-style cosine --weight-decay 1e-2 --clip-grad 1.0
    --lr-warmup-fraction .01 --checkpoint-activations --log-interval 100 --save-interval 10000
    --eval-interval 1000 --eval-iters 10 --fp16""".split()


def _yaml(folder: Path, text: str) -> list[str]:
    (folder / "run.yaml").write_text(text)
    return ["--config", str(folder / "run.yaml")]


def test_megatron_command_line_means_what_it_says() -> None:
    config = load_run(MEGATRON, "gpt", 8).config
    assert config.model.ffn_hidden_size == 8192 and config.model.kv_channels == 128
    assert config.tokenizer.tokenizer_type == "GPT2BPETokenizer"
    assert config.tokenizer.vocab_file == "vocab.txt"
    assert config.training.recompute_granularity == "full"
    assert config.training.recompute_method == "uniform"
    assert config.precision.params_dtype == "float16"
    assert config.optimizer.lr_decay_iters == 320000 and config.optimizer.lr_warmup_fraction == 0.01
    assert config.data.split == "949,50,1" and config.data.data_path == ("my_data",)
    assert config.checkpoint.load == config.checkpoint.save == "checkpoints"
    assert config.model.attention_dropout == 0.1


def test_accumulation_steps_set_the_global_batch() -> None:
    words = " ".join(MEGATRON).replace("--global-batch-size 256", "--gradient-accumulation-steps 3")
    assert load_run(words.split(), "gpt", 8).config.training.global_batch_size == 3 * 4 * 8
    with pytest.raises(MegalithError, match="is a global batch of 96, but --global-batch-size is"):
        load_run([*MEGATRON, "--gradient-accumulation-steps", "3"], "gpt", 8)


def test_underscores_and_equal_signs_are_read() -> None:
    config = parse_run(["--num_layers=3", "--hidden_size", "8"]).config
    assert (config.model.num_layers, config.model.hidden_size) == (3, 8)


def test_flags_beat_yaml_beats_preset_beats_default(tmp_path: Path) -> None:
    yaml = _yaml(tmp_path, "preset: tiny-gpt2\nhidden_size: 48\nnum_layers: 5\n")
    model = parse_run([*yaml, "--num-layers", "7"]).config.model
    tiny = parse_run(["--preset", "tiny-gpt2"]).config.model
    assert (model.num_layers, model.hidden_size) == (7, 48)
    assert model.num_attention_heads == tiny.num_attention_heads
    assert parse_run([]).config.model.init_method_std == 0.02


def test_weaker_rival_of_a_given_setting_gives_way(tmp_path: Path) -> None:
    yaml = _yaml(tmp_path, "train_iters: 10\nbf16: true\n")
    config = parse_run([*yaml, "--train-samples", "50", "--fp16"]).config
    assert config.training.train_iters is None and config.training.train_samples == 50
    assert config.precision.fp16 and not config.precision.bf16


def test_yaml_takes_flags_of_other_spelling(tmp_path: Path) -> None:
    yaml = _yaml(tmp_path, "layernorm-epsilon: 1.0e-6\nno_save_optim: true\nsplit: 9,1\n")
    config = parse_run(yaml).config
    assert config.model.norm_epsilon == 1e-6 and not config.checkpoint.save_optim
    assert config.data.split == "9,1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "seed: 1\nnum_layer: 3",
            r"run.yaml:2: num_layer is no setting; the nearest is num_layers",
        ),
        ("num_layers: many", r"run.yaml:1: num_layers"),
        ("seed: 1\nseed: 2", r"run.yaml:2: seed stands there twice"),
        ("- 1", r"must hold lines of the form"),
        ("a: [", r"is no valid YAML"),
        ("num_experts: 8", r"--num-experts 8: no mixture of experts"),
    ],
)
def test_yaml_mistakes_name_file_and_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(MegalithError, match=message):
        parse_run(_yaml(tmp_path, text))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--num-layer 3", "unknown flag --num-layer: the nearest known one is --num-layers"),
        ("--xyzzy", "unknown flag --xyzzy: see --help"),
        ("--num-layers three", "--num-layers"),
        ("--num-layers", "--num-layers"),
        ("--normalization BatchNorm", "LayerNorm, RMSNorm"),
        ("stray --seed 1", "the words 'stray' belong to no flag"),
        ("--preset gpt2-124", "the nearest is gpt2-124m"),
        ("--config nowhere.yaml", "nowhere.yaml: cannot read"),
        ("--fp16=maybe", "--fp16"),
    ],
)
def test_mistakes_in_flags_are_told(words: str, message: str) -> None:
    with pytest.raises(MegalithError, match=message):
        parse_run(words.split())


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(MegalithError) as caught:
        parse_run("--num-layer 3 --num-experts 4 --hidden-size x".split())
    assert str(caught.value).startswith("3 problems with the settings:")
