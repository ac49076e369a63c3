"""The encoder-decoder against torch's own, and the laws of its masks."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from segue.config import Seq2SeqConfig
from segue.errors import InputError
from segue.nn.positions import interleaved_sinusoids, sinusoids
from segue.nn.seq2seq import Seq2Seq
from support import some_tokens

VOCAB = 13


def config_of(**changes: object) -> Seq2SeqConfig:
    small = {
        "vocab": VOCAB,
        "width": 8,
        "heads": 2,
        "feedforward": 12,
        "encoder_layers": 2,
        "decoder_layers": 2,
    }
    return Seq2SeqConfig(**{**small, **changes})


def build(**changes: object) -> Seq2Seq:
    torch.manual_seed(0)
    model = Seq2Seq(config_of(**changes)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


configs = st.fixed_dictionaries(
    {
        "norm": st.sampled_from(["post", "pre"]),
        "encoding": st.sampled_from(["sinusoidal", "xl"]),
        "source_vocab": st.sampled_from([0, VOCAB]),
    }
)


def read(model: Seq2Seq, source: Tensor, target: Tensor, lengths: Tensor | None = None) -> Tensor:
    hidden, _ = model(target, model.start(source, lengths))
    return hidden


def copy_attention(ours: nn.Module, theirs: nn.MultiheadAttention) -> None:
    weight = torch.cat([ours.query.weight, ours.key_value.weight])
    bias = torch.cat([ours.query.bias, ours.key_value.bias])
    theirs.load_state_dict(
        {
            "in_proj_weight": weight,
            "in_proj_bias": bias,
            "out_proj.weight": ours.out.weight,
            "out_proj.bias": ours.out.bias,
        }
    )


def copy_block(ours: nn.Module, theirs: nn.Module) -> None:
    copy_attention(ours.attention, theirs.self_attn)
    norms = [ours.attention_norm, ours.feed_forward_norm]
    if hasattr(ours, "cross"):
        copy_attention(ours.cross, theirs.multihead_attn)
        norms.insert(1, ours.cross_norm)
    for number, norm in enumerate(norms, 1):
        getattr(theirs, f"norm{number}").load_state_dict(norm.state_dict())
    theirs.linear1.load_state_dict(ours.feed_forward.inner.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.outer.state_dict())


def torchs(model: Seq2Seq) -> tuple[nn.TransformerEncoder, nn.TransformerDecoder]:
    config, pre = model.config, model.config.norm == "pre"
    shape = {"dim_feedforward": config.feedforward, "dropout": 0.0, "norm_first": pre, "dtype": torch.float64}
    shape["activation"] = {"relu": F.relu, "swish": F.silu, "gelu": F.gelu}[config.activation]
    final = pre or config.final_norm
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(config.width, config.heads, **shape),
        config.encoder_layers,
        nn.LayerNorm(config.width, dtype=torch.float64) if final else None,
        enable_nested_tensor=False,
    )
    decoder = nn.TransformerDecoder(
        nn.TransformerDecoderLayer(config.width, config.heads, **shape),
        config.decoder_layers,
        nn.LayerNorm(config.width, dtype=torch.float64) if final else None,
    )
    for ours, theirs in zip(
        [*model.encoder, *model.decoder], [*encoder.layers, *decoder.layers], strict=True
    ):
        copy_block(ours, theirs)
    if final:
        encoder.norm.load_state_dict(model.encoder_norm.state_dict())
        decoder.norm.load_state_dict(model.decoder_norm.state_dict())
    return encoder, decoder


@pytest.mark.parametrize(
    "changes",
    [
        {"norm": "post"},
        {"norm": "pre"},
        {"final_norm": True, "activation": "gelu"},
        {"activation": "swish", "sinusoids": "concatenated"},
    ],
)
def test_torchs_own_gives_the_same_and_the_same_gradients(changes: dict[str, object]) -> None:
    model = build(**changes)
    encoder, decoder = torchs(model)
    source, target, lengths = some_tokens(3, 5), some_tokens(3, 4, 1), torch.tensor([5, 2, 3])
    padded = torch.arange(5) >= lengths[:, None]

    def placed(tokens: Tensor) -> Tensor:
        order = sinusoids if model.config.sinusoids == "concatenated" else interleaved_sinusoids
        places = order(torch.arange(tokens.size(1)), 8, torch.float64)
        return (model.vocabulary.embed(tokens) + places).transpose(0, 1)

    mask = nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64)
    memory = encoder(placed(source), src_key_padding_mask=padded)
    wanted = decoder(placed(target), memory, tgt_mask=mask, memory_key_padding_mask=padded).transpose(0, 1)
    found = read(model, source, target, lengths)
    assert_close(found, wanted)
    weight = torch.linspace(-1, 1, found.numel(), dtype=torch.float64).view_as(found)
    table = model.vocabulary.tables[0]
    ours, theirs = (
        torch.autograd.grad((out * weight).sum(), [table, *inner], retain_graph=True)
        for out, inner in (
            (found, [model.encoder[0].feed_forward.inner.weight, model.decoder[0].cross.out.weight]),
            (wanted, [encoder.layers[0].linear1.weight, decoder.layers[0].multihead_attn.out_proj.weight]),
        )
    )
    assert_close(ours, theirs)
    ours = torch.autograd.grad((found * weight).sum(), model.encoder[0].attention.key_value.bias)[0]
    theirs = torch.autograd.grad((wanted * weight).sum(), encoder.layers[0].self_attn.in_proj_bias)[0]
    assert_close(ours, theirs[8:])


@given(configs, st.integers(1, 6), st.integers(0, 4))
def test_padding_changes_nothing(changes: dict[str, object], length: int, more: int) -> None:
    model = build(**changes)
    source, target = some_tokens(1, length), some_tokens(1, 4, 1)
    wanted = read(model, source, target)
    rubbish = torch.cat([source, some_tokens(1, more, 2)], dim=1)
    assert_close(read(model, rubbish, target, torch.tensor([length])), wanted)
    longer = torch.cat([target, some_tokens(1, more, 3)], dim=1)
    memory = model.start(source)
    hidden, after = model(longer, memory, lengths=torch.tensor([4]))
    assert_close(hidden[:, :4], wanted)
    assert not hidden[:, 4:].any()
    following = some_tokens(1, 2, 4)
    assert_close(model(following, after)[0], model(following, model(target, memory)[1])[0])


@given(configs, st.permutations(range(4)))
def test_the_order_of_sentences_changes_nothing(changes: dict[str, object], order: list[int]) -> None:
    model = build(**changes)
    source, target, lengths = some_tokens(4, 5), some_tokens(4, 3, 1), torch.tensor([5, 1, 0, 3])
    wanted = read(model, source, target, lengths)
    assert wanted.isfinite().all()
    assert_close(read(model, source[order], target[order], lengths[order]), wanted[order])


@given(configs, st.integers(1, 5))
def test_later_target_tokens_change_nothing_before_them(changes: dict[str, object], cut: int) -> None:
    model = build(**changes)
    source, target = some_tokens(2, 4), some_tokens(2, 6, 1)
    other = torch.cat([target[:, :cut], some_tokens(2, 6 - cut, 2)], dim=1)
    assert_close(read(model, source, other)[:, :cut], read(model, source, target)[:, :cut])


@given(configs, st.lists(st.integers(1, 5), unique=True).map(sorted))
def test_where_a_target_is_cut_makes_no_difference(changes: dict[str, object], cuts: list[int]) -> None:
    model = build(**changes)
    source, target, lengths = some_tokens(2, 5), some_tokens(2, 6, 1), torch.tensor([5, 2])
    with torch.no_grad():
        wanted = read(model, source, target, lengths)
        memory, pieces = model.start(source, lengths), []
        for piece in torch.tensor_split(target, cuts, dim=1):
            hidden, memory = model(piece, memory)
            pieces.append(hidden)
        assert_close(torch.cat(pieces, dim=1), wanted)
        chosen = memory.select([1, 0, 1])
        more = some_tokens(2, 1, 5)
        assert_close(model(more[[1, 0, 1]], chosen)[0], model(more, memory)[0][[1, 0, 1]])


def test_the_published_sizes() -> None:
    for width, heads, inner, wanted in (
        (512, 8, 2048, 63_082_496),
        (1024, 16, 4096, 176_357_376 + 37_888_000),
    ):
        with torch.device("meta"):
            model = Seq2Seq(Seq2SeqConfig(vocab=37_000, width=width, heads=heads, feedforward=inner))
        assert sum(parameter.numel() for parameter in model.parameters()) == wanted


def test_sines_and_cosines_take_turns() -> None:
    place = torch.tensor(3.0, dtype=torch.float64)
    wanted = torch.stack([place.sin(), place.cos(), (place / 100).sin(), (place / 100).cos()])
    assert_close(interleaved_sinusoids(torch.tensor(3), 4, torch.float64), wanted)


def test_what_cannot_be_read_is_refused() -> None:
    model = build()
    with pytest.raises(InputError, match="2 sentences and the target 3"):
        model(some_tokens(3, 2), model.start(some_tokens(2, 4)))
    with pytest.raises(InputError, match="empty"):
        model.start(torch.zeros(2, 0, dtype=torch.int64))
