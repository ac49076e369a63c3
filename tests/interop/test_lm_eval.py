"""lm-eval asks our models, and gets what `segue eval` and sessions compute: `make test-interop` has the library."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hf_models import LANGUAGE, language_bundle

from segue.infer.evaluate import evaluate
from segue.interop.hf_folder import export_hf
from segue.progress import silent
from segue.text.corpus import open_corpus
from segue.text.prepare import PrepareConfig, prepare
from segue.text.sources import from_files
from segue.text.tokenizer import ByteTokenizer

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]
TEXT = Path(os.__file__).read_text()[:1500] + "naïve 今天 🙂\n"
TASK = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: {kind}
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
"""
TASKS = {
    "my_texts": ("loglikelihood_rolling", "metric_list: [{metric: bits_per_byte}]\n"),
    "my_choices": ("multiple_choice", 'doc_to_choice: ["yes", "no"]\nmetric_list: [{metric: acc}]\n'),
    "my_answers": (
        "generate_until",
        "generation_kwargs: {until: ['e'], max_gen_toks: 8, do_sample: false}\nmetric_list: [{metric: exact_match}]\n",
    ),
}


def task_folder(folder: Path, answers: dict[str, Any]) -> Path:
    folder.mkdir()
    for name, (kind, more) in TASKS.items():
        row = {"question": "" if name == "my_texts" else "Is it so?", "answer": answers[name]}
        data = folder / f"{name}.jsonl"
        data.write_text(json.dumps(row) + "\n")
        (folder / f"{name}.yaml").write_text(TASK.format(name=name, kind=kind, data=data) + more)
    return folder


def asked(*arguments: str) -> Any:
    return SimpleNamespace(args=arguments)


def bits_of_eval(bundle: Any, text: str, folder: Path) -> float:
    """What `segue eval` prints for the text. It does not score the first token of a stream, here a newline."""
    (folder / "text.txt").write_text("\n" + text)
    source = from_files("text", [folder / "text.txt"])
    prepare(source, folder / "corpus", PrepareConfig(valid=0, test=0), silent)
    return evaluate(
        bundle.model, open_corpus(folder / "corpus").stream("train"), bundle.reading
    ).bits_per_byte


def ran(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    quiet = {"HF_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False, env=os.environ | quiet
    )


@pytest.mark.parametrize("kind", LANGUAGE)
def test_likelihoods_are_those_of_a_session(kind: str) -> None:
    pytest.importorskip("lm_eval")
    from segue.infer.lm_eval import SegueLM

    bundle = language_bundle(kind)
    model = SegueLM(bundle)
    pairs = [("One and one", " is two"), ("One and one", " is three"), ("One and one ", "is two"), ("", "x")]
    answers = model.loglikelihood([asked(*pair) for pair in pairs])
    for (context, continuation), (found, _) in zip(pairs, answers, strict=True):
        session, before = bundle.session(), context.rstrip()
        session.feed(before or "\n")  # a space at the end belongs to the continuation
        wanted = -sum(session.feed(context[len(before) :] + continuation))
        assert found == pytest.approx(wanted, abs=1e-4)
    assert answers[0] == answers[2]
    settings = {"until": ["\n"], "max_gen_toks": 12, "do_sample": False}
    (said,) = model.generate_until([asked("One and one", settings)])
    session = bundle.session()
    session.feed("One and one")
    assert said == session.generate(12, temperature=0, stop=["\n"])
    likeliest = session_choice(bundle, "One and one", 3)
    assert model.loglikelihood([asked("One and one", likeliest)])[0][1] or "\ufffd" in likeliest
    assert model.loglikelihood_rolling([asked("")]) == [0.0]


def session_choice(bundle: Any, context: str, count: int) -> str:
    session = bundle.session()
    session.feed(context)
    return str(session.generate(count, temperature=0))


@pytest.mark.parametrize("kind", ["xl", "without memory", "recurrent"])
def test_a_rolling_likelihood_is_that_of_segue_eval(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    from segue.infer.lm_eval import SegueLM

    bundle = language_bundle(kind)
    (found,) = SegueLM(bundle).loglikelihood_rolling([asked(TEXT)])
    bits = -found / len(TEXT.encode()) / 0.6931471805599453
    assert bits == pytest.approx(bits_of_eval(bundle, TEXT, tmp_path), abs=1e-6)


def test_the_command_runs_tasks_of_a_folder(tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    bundle = language_bundle("xl")
    bundle.save(tmp_path / "bundle")
    answer = session_choice(bundle, "Is it so?", 8).split("e")[0]
    tasks = task_folder(tmp_path / "tasks", {"my_texts": TEXT, "my_choices": 0, "my_answers": answer})
    command = ("-m", "segue", "lm-eval", str(tmp_path / "bundle"), "--include-path", str(tasks))
    done = ran(tmp_path, *command, "--json", "--tasks", ",".join(TASKS))
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    found = results["my_texts"]["bits_per_byte,none"]
    assert found == pytest.approx(bits_of_eval(bundle, TEXT, tmp_path), abs=1e-6)
    assert results["my_answers"]["exact_match,none"] == 1
    assert results["my_choices"]["acc,none"] in (0, 1)
    (tasks / "my_texts.jsonl").unlink()
    wrong = ran(tmp_path, *command, "--tasks", "my_texts")
    assert wrong.returncode == 1
    assert "segue: the data of my_texts could not be read: Unable to find" in wrong.stderr


def test_the_stock_command_opens_our_folder(tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    bundle = language_bundle("recurrent")  # whose reading has no seams, so that all ways agree
    export_hf(bundle, tmp_path / "hf")
    tasks = task_folder(tmp_path / "tasks", {"my_texts": TEXT, "my_choices": 0, "my_answers": ""})
    start = "import segue.hf; from lm_eval.__main__ import cli_evaluate; cli_evaluate()"
    done = ran(
        tmp_path, "-c", start, "run", "--model", "hf", "--device", "cpu", "--tasks", "my_texts,my_choices",
        "--model_args", f"pretrained={tmp_path / 'hf'},prefix_token_id=10,max_length=8192",
        "--include_path", str(tasks), "--output_path", str(tmp_path / "out"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (written,) = (tmp_path / "out").rglob("results_*.json")
    found = json.loads(written.read_text())["results"]["my_texts"]["bits_per_byte,none"]
    assert found == pytest.approx(bits_of_eval(bundle, TEXT, tmp_path), abs=1e-5)


def test_texts_that_are_no_unicode_are_refused_by_their_tokenizer() -> None:
    pytest.importorskip("lm_eval")
    from segue.infer.lm_eval import pair_ids

    assert pair_ids(ByteTokenizer(), "  ", "x") == ([], [32, 32, 120])
    assert pair_ids(ByteTokenizer(), "a", "") == ([97], [])
