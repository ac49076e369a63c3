"""Parts of a measurement that are kept on the way, so that an experiment which is killed goes on where it was."""

import json
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from segue.errors import InputError
from segue.lab.experiment import Results, Setting
from segue.lab.record import read_object, write_text
from segue.lab.sources import digest_here


def kept(setting: Setting, module: str, what: Results, make: Callable[[], Any]) -> Any:
    """What the module's code made of `what`, all that decides it, on the setting's corpus: now, unless it already was.

    `module` is the caller's `__name__`.
    """
    decisive = json.dumps(
        [what, setting.corpus.header.checksums, module, digest_here(module)], sort_keys=True
    )
    path = setting.output / "runs" / f"{sha256(decisive.encode()).hexdigest()[:16]}.json"
    if path.is_file():
        values = read_object(path)
        if "made" not in values:
            raise InputError(
                f"{path} should hold what was made; found {', '.join(values) or 'nothing'}; remove it"
            )
        return values["made"]
    made = make()
    write_text(path, json.dumps({"of": what, "made": made}) + "\n")
    return made
