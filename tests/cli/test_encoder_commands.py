"""`segue embed`, `similar`, `fill` and `import` of encoders, in this process, with small weights."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from typer.testing import CliRunner, Result

import segue
from encoders import small_bert, small_encoder
from segue.cli import app
from segue.config import HeadConfig
from segue.errors import SegueError
from segue.infer.similar import closest_pairs, nearest
from segue.interop.encoders import load_encoder

TEXTS = "the animal did not cross\nthe street\nuntired animal .\nthe street .\n"


def run(*words: object, given: str | bytes | None = None) -> Result:
    return CliRunner().invoke(app, [*map(str, words)], input=given, env={"SEGUE_THREADS": "1"})


def refused(*words: object, given: str | bytes | None = None) -> str:
    done = run(*words, given=given)
    assert isinstance(done.exception, SegueError), done.exception
    return str(done.exception)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    small_encoder(folder, HeadConfig(task="masked")).save(folder / "bundle")
    return folder / "bundle"


def test_embed_writes_an_array_or_lines(bundle: Path, tmp_path: Path) -> None:
    wanted = load_encoder(bundle).embed(TEXTS.splitlines()).numpy()
    done = run("embed", bundle, given=TEXTS)
    assert done.exit_code == 0, done.exception
    np.testing.assert_allclose(np.load(io.BytesIO(done.stdout_bytes)), wanted, atol=1e-6)
    (tmp_path / "texts").write_text(TEXTS)
    assert run("embed", bundle, tmp_path / "texts", "-o", tmp_path / "v.npy").exit_code == 0
    array = np.load(tmp_path / "v.npy")
    assert (array.dtype, array.shape) == (np.float32, (4, 8))
    rows = [json.loads(line) for line in run("embed", bundle, "--jsonl", given=TEXTS).stdout.splitlines()]
    assert [row["text"] for row in rows] == TEXTS.splitlines()
    np.testing.assert_allclose([row["vector"] for row in rows], wanted, atol=1e-6)


def test_embed_takes_any_layer_pooling_pairs_and_tokens(bundle: Path) -> None:
    encoder = load_encoder(bundle)
    states = encoder("the street", output_hidden_states=True).hidden_states
    assert states is not None
    done = run("embed", bundle, "--jsonl", "--tokens", "--layer", 1, given="the street\n")
    row = json.loads(done.stdout)
    assert row["tokens"] == ["[CLS]", "the", "street", "[SEP]"]
    assert_close(torch.tensor(row["vectors"]), states[1][0], atol=1e-5, rtol=0)
    done = run("embed", bundle, "--jsonl", "--pooling", "cls", "--no-normalize", given="the street\n")
    assert_close(torch.tensor(json.loads(done.stdout)["vector"]), states[-1][0, 0], atol=1e-5, rtol=0)
    done = run("embed", bundle, "--jsonl", "--pairs", given="the street\tnot .\n")
    assert json.loads(done.stdout)["text"] == ["the street", "not ."]
    wanted = encoder.embed("the street", "not .")[0]
    assert_close(torch.tensor(json.loads(done.stdout)["vector"]), wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("options", "given", "complaint"),
    [
        ([], "the\n\nstreet\n", "line 2 is empty"),
        ([], b"the\n\xff\xfe\n", "line 2 is not UTF-8"),
        ([], "", "there are no texts"),
        (
            ["--pairs"],
            "the\tstreet\nthe street\n",
            "line 2 should be two texts separated by a tab; it holds one",
        ),
        (["--pairs"], "the\tstreet\n\tthe\n", "line 2 should be two texts separated by a tab"),
        (["--pairs"], "the\tstreet\tthe\n", "line 1 should be two texts separated by a tab; it holds 3"),
        (["--tokens"], "the\n", "add --jsonl"),
        (["--layer", "3"], "the\n", "there is no layer 3"),
        (["--max-length", "4"], "the\n", "max_length should be greater than or equal to 5"),
        (["--max-length", "10"], "the\n", "max_length should be between 5 and the encoder's 9 positions"),
    ],
)
def test_bad_input_is_one_line_with_its_number(
    bundle: Path, options: list[str], given: str | bytes, complaint: str
) -> None:
    message = refused("embed", bundle, *options, given=given)
    assert complaint in message
    assert "\n" not in message


def test_a_text_that_is_too_long_is_cut_with_a_note(bundle: Path) -> None:
    done = run("embed", bundle, "--jsonl", given="the\n" + "animal " * 30 + "\n")
    assert "note: line 2 has more than 9 tokens and was cut" in done.stderr
    assert done.exit_code == 0
    done = run("embed", bundle, "--jsonl", given=("animal " * 30 + "\n") * 25)
    assert done.stderr.count("was cut") == 10
    assert "25 lines in all were cut to 9 tokens" in done.stderr


def test_similar_finds_the_nearest_and_the_closest_pairs(bundle: Path) -> None:
    lines = [
        line.split("\t")
        for line in run("similar", bundle, "--query", "the street", given=TEXTS).stdout.splitlines()
    ]
    assert lines[0] == ["1.0000", "2", "the street"]
    assert len(lines) == 4
    rows = run("similar", bundle, "--top", 2, "--json", given=TEXTS + "the street\n").stdout.splitlines()
    first = json.loads(rows[0])
    assert (first["lines"], first["texts"]) == ([2, 5], ["the street", "the street"])
    assert len(rows) == 2
    assert "a query is empty" in refused("similar", bundle, "--query", " ", given=TEXTS)
    assert "there are no texts to search" in refused("similar", bundle, "--query", "x", given="")
    assert "one text alone has no other" in refused("similar", bundle, given="the street\n")


def test_nearest_and_closest_equal_brute_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segue.infer.similar.BLOCK", 4)
    torch.manual_seed(1)
    vectors = torch.randn(11, 5, dtype=torch.float64)
    cosines = torch.nn.functional.cosine_similarity(vectors[:, None], vectors[None], dim=-1)
    for number, found in enumerate(nearest(vectors[:6], vectors, top=3)):
        wanted = sorted(range(11), key=lambda other: -float(cosines[number, other]))[:3]
        assert [near.second for near in found] == wanted
    pairs = [(float(cosines[one, other]), one, other) for one in range(11) for other in range(one + 1, 11)]
    best = sorted(pairs, reverse=True)[:7]
    assert [near[1:] for near in closest_pairs(vectors, 7)] == [pair[1:] for pair in best]
    assert closest_pairs(vectors[:1], 3) == []


def test_fill_prints_the_likeliest_pieces(bundle: Path) -> None:
    line = run("fill", bundle, "--top", 2, given="the [MASK] .\n").stdout.strip().split("\t")
    assert line[:2] == ["1", "1"]
    assert len(line) == 4
    assert "line 2 has no [MASK] to fill" in refused("fill", bundle, given="[MASK]\nthe animal\n")
    cut = "animal " * 30 + "[MASK]\n"
    assert "line 1 has its [MASK] behind the 9 tokens" in refused("fill", bundle, given=cut)


def test_fill_in_python_gives_what_the_command_prints(bundle: Path) -> None:
    printed = run("fill", bundle, "--top", 2, given="the [MASK] .\n").stdout.strip().split("\t")[2:]
    [[guesses]] = segue.load_encoder(bundle).fill(["the [MASK] ."], top=2)
    assert [f"{piece} {probability:.4f}" for piece, probability in guesses] == printed


def test_import_writes_an_encoder_bundle_and_attention_shows_it(tmp_path: Path) -> None:
    folder = small_bert(tmp_path / "bert")
    done = run("import", folder, "-o", tmp_path / "bundle")
    assert "reads 14 tokens, pooling mean, head: masked" in done.stdout, done.exception
    for path in (folder, tmp_path / "bundle"):
        done = run("attention", path, "--text", "the animal", "-o", tmp_path / "page.html")
        assert done.exit_code == 0, done.exception
        assert "layer 3" in (tmp_path / "page.html").read_text()
    assert "there is no bundle at" in refused("embed", tmp_path / "nothing", given="x\n")
    (folder / "config.json").unlink()
    assert "config.json could not be read" in refused("embed", folder, given="x\n")
