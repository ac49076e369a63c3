"""Parts of a measurement that are kept on the way, so that an experiment which is killed goes on where it was."""

import json
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import segue
from segue.lab.experiment import Results, Setting
from segue.lab.record import write_text


def kept(setting: Setting, what: Results, make: Callable[[], Any]) -> Any:
    """What was made of `what`, all that decides it, on the setting's corpus: now, unless it already was."""
    decisive = json.dumps([what, setting.corpus.header.checksums, segue.__version__], sort_keys=True)
    path = setting.output / "runs" / f"{sha256(decisive.encode()).hexdigest()[:16]}.json"
    if path.is_file():
        return json.loads(path.read_text(encoding="utf-8"))["made"]
    made = make()
    write_text(path, json.dumps({"of": what, "made": made}) + "\n")
    return made
