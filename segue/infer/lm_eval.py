"""lm-eval's tasks for our language models: log-likelihoods of texts and continuations, and generation.

A text of any length is read as one stream with memory, every token once; nothing is cut into windows. What has no
context is read behind a newline, or else an end of text (as `segue generate` begins without a prompt).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from segue.checkpoint import Bundle, load
from segue.errors import InputError
from segue.infer.evaluate import surprises
from segue.infer.reader import Reader
from segue.infer.sample import Sampling
from segue.infer.session import Session
from segue.progress import Report, silent
from segue.text.corpus import Split, Stream
from segue.text.tokenizer import END_OF_TEXT, LINE_ENDS, Tokenizer, start_ids

try:
    from lm_eval import simple_evaluate
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
    from lm_eval.models.utils import normalize_gen_kwargs
    from lm_eval.tasks import TaskManager
except ImportError:
    raise InputError("lm-eval's tasks need the eval extra: pip install 'segue-lm[eval]'") from None


@register_model("segue")
class SegueLM(LM):
    """A language model of segue as lm-eval asks it. `pretrained` is a bundle, or the folder of one or of a run."""

    def __init__(
        self,
        pretrained: Bundle | str | Path,
        *,
        device: str = "cpu",
        seed: int = 0,
        report: Report = silent,
        **_: Any,  # lm-eval's own: batch_size, max_batch_size
    ) -> None:
        super().__init__()
        bundle = pretrained if isinstance(pretrained, Bundle) else load(pretrained)
        if bundle.tokenizer is None:
            raise InputError("this bundle has no tokenizer, so it cannot read text; import it with --vocab")
        bundle.model.to(device)
        self._bundle, self._tokenizer, self._seed, self._report = bundle, bundle.tokenizer, seed, report
        self._before = start_ids(bundle.tokenizer)
        self._empty = bundle.session()

    def loglikelihood_rolling(self, requests: Sequence[Any], **_: Any) -> list[float]:
        """The log-likelihood of each text, read with the segments and the memory of `segue eval`."""
        return [self._rolling(*request.args) for request in self._each("texts", requests)]

    def loglikelihood(self, requests: Sequence[Any], **_: Any) -> list[tuple[float, bool]]:
        """The log-likelihood of each continuation of a context, and whether greedy search would choose it."""
        answers, known, session = [], None, self._empty
        for request in self._each("continuations", requests):
            context, continuation = pair_ids(self._tokenizer, *request.args)
            context = context or self._before
            if context != known:  # the choices of a question have one context, which is read once
                known, session = context, self._empty.fork()
                session.read(context)
            answers.append(_continued(session.reader, continuation))
        return answers

    def generate_until(self, requests: Sequence[Any], **_: Any) -> list[str]:
        """A continuation of each context, up to a text that ends it."""
        texts = []
        for number, request in enumerate(self._each("generations", requests)):
            context, settings = request.args
            texts.append(self._generated(context, settings, self._seed + number))
        return texts

    def _rolling(self, text: str) -> float:
        ids = np.array([*self._before, *self._tokenizer.encode(text.encode())], dtype=np.int64)
        total = len(ids) - len(self._before)
        if not total:
            return 0.0
        split = Split(begin=0, end=len(ids), bytes=len(text.encode()), words=0, documents=1)
        stream = Stream(ids, np.zeros(1, dtype=np.int64), split, self._tokenizer)
        nats = surprises(self._bundle.model, stream, self._bundle.reading, len(ids) - 1)
        scored = np.concatenate([part.cpu().numpy() for part in nats])
        return -float(scored[len(self._before) - 1 :].sum())

    def _generated(self, context: str, settings: dict[str, Any], seed: int) -> str:
        known = normalize_gen_kwargs(settings)
        session = self._empty.fork()
        _begin(session, context, self._before)
        sampling = Sampling(
            temperature=known["temperature"] if known["do_sample"] else 0,
            top_k=known.get("top_k") or 0,
            top_p=known.get("top_p") or 1,
        )
        ends = [
            name for name in END_OF_TEXT if name not in LINE_ENDS and self._tokenizer.id_of(name) is not None
        ]
        stops = [*known["until"], *ends]
        return "".join(session.stream(known["max_gen_toks"], sampling, seed=seed, stop=stops))

    def _each(self, what: str, requests: Sequence[Any]) -> Iterator[Any]:
        for done, request in enumerate(requests, start=1):
            yield request
            self._report(what, done, len(requests))


def pair_ids(tokenizer: Tokenizer, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """The ids of a context and its continuation, cut as one text; spaces between them belong to the continuation."""
    spaces = len(context) - len(context.rstrip())
    before = context[: len(context) - spaces]
    whole = [int(one) for one in tokenizer.encode((context + continuation).encode())]
    first = [int(one) for one in tokenizer.encode(before.encode())]
    return whole[: len(first)], whole[len(first) :]


def evaluate_tasks(
    model: SegueLM, tasks: Sequence[str], *, include_path: Path | None = None, **settings: Any
) -> dict[str, Any]:
    """lm-eval's results of these tasks; `include_path` is a folder with tasks of one's own."""
    manager = _tasks(tasks, include_path)
    try:
        results = simple_evaluate(model=model, tasks=list(tasks), task_manager=manager, **settings)
    except (OSError, ImportError) as error:  # of a task whose data are elsewhere
        reason = str(error).splitlines()[0]
        raise InputError(f"the data of {', '.join(tasks)} could not be read: {reason}") from None
    assert results is not None, "there is one process"
    return dict(results)


def _tasks(names: Sequence[str], include_path: Path | None) -> TaskManager:
    """The known tasks: those of the folder alone if it has all of them, since looking through lm-eval's takes long."""
    for others in (False, True) if include_path is not None else (True,):
        try:
            folder = None if include_path is None else str(include_path)
            manager = TaskManager(include_path=folder, include_defaults=others)
            unknown = [name for name in names if not manager.match_tasks([name])]
        except Exception as error:  # whatever a YAML file that is none may raise
            raise InputError(
                f"the tasks of {include_path} could not be read: {error}".splitlines()[0]
            ) from None
        if not unknown:
            return manager
    where = f"in {include_path} or " if include_path is not None else ""
    raise InputError(
        f"there is no task {', '.join(unknown)} {where}among lm-eval's; name its folder with --include-path"
    )


def metrics(results: dict[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Task, metric and value of lm-eval's results. (Its own table depends on the version of a library.)"""
    for task, values in results["results"].items():
        for key, value in values.items():
            name, _, kind = key.partition(",")
            if kind and isinstance(value, int | float):
                yield task, name if kind == "none" else f"{name} ({kind})", float(value)


def _begin(session: Session, context: str, before: list[int]) -> None:
    ids = session.tokenizer.encode(context.encode())
    session.read(ids if len(ids) else before)


def _continued(reader: Reader, ids: Sequence[int]) -> tuple[float, bool]:
    """The log-likelihood of ids behind what was read, and whether each of them is the likeliest."""
    total, greedy = 0.0, True
    for place, number in enumerate(ids):
        reader = reader if place == 0 else reader.advance(torch.tensor([ids[place - 1]]))
        logprobs = reader.logprobs()[0]
        total += float(logprobs[number])
        greedy = greedy and int(logprobs.argmax()) == number
    return total, greedy
