"""The cache of partial measurements: an experiment that was killed continues from the parts that are in it."""

import json
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from segue.errors import InputError
from segue.lab.experiment import Results, Setting
from segue.lab.record import read_object, write_text
from segue.lab.source_digest import digest_here


def cached(setting: Setting, module: str, inputs: Results, compute: Callable[[], Any]) -> Any:
    """The value of `compute()`, from the cache if it is there.

    The key is a digest of `inputs`, of the corpus and of the code of `module` (the caller's `__name__`). `inputs` must
    hold everything else that the value depends on.
    """
    key = json.dumps([inputs, setting.corpus.header.checksums, module, digest_here(module)], sort_keys=True)
    path = setting.output / "runs" / f"{sha256(key.encode()).hexdigest()[:16]}.json"
    if path.is_file():
        values = read_object(path)
        if "made" not in values:
            raise InputError(
                f"{path} should hold the key 'made'; it holds {', '.join(values) or 'nothing'}; remove it"
            )
        return values["made"]
    value = compute()
    write_text(path, json.dumps({"of": inputs, "made": value}) + "\n")
    return value
