"""Records of results on disk: one JSON file per experiment, with what is needed to judge and repeat them."""

import json
import math
import os
import platform
import re
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from pydantic import NonNegativeFloat, field_validator

import segue
from segue.config import Settings
from segue.errors import ConfigError, InputError
from segue.files import write_atomically
from segue.lab.experiment import TITLES, Experiment, Results, Setting
from segue.lab.source_digest import digest_here
from segue.launch import processor


class Record(Settings):
    """What `NAME.json` holds."""

    format: Literal["segue-lab-1"] = "segue-lab-1"
    experiment: str
    version: int  # of the experiment
    sources: str = ""  # digest of the code that measured it; older records have none
    made: str
    command: str
    seconds: NonNegativeFloat
    setting: dict[str, Any]
    versions: dict[str, str]
    machine: dict[str, Any]
    results: dict[str, Any]

    @field_validator("setting")
    @classmethod
    def _has_seeds_and_data(cls, setting: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(setting.get("seeds", []), list) or not isinstance(setting.get("data", {}), dict):
            raise ValueError("'seeds' should be a list and 'data' an object")
        return setting


def record_path(output: Path, name: str) -> Path:
    return output / f"{name}.json"


def read_record(output: Path, name: str) -> Record | None:
    """The record of an experiment; None if there is none."""
    path = record_path(output, name)
    if not path.is_file():
        return None
    try:
        record = Record(**read_object(path))
    except ConfigError as error:
        raise InputError(f"{path} is no record of the lab: {error}") from None
    if record.experiment != name:
        raise InputError(f"{path} is a record of {record.experiment!r}; remove it and measure again")
    return record


def read_object(path: Path, advice: str = "remove it and measure again") -> dict[str, Any]:
    """The object in a JSON file of the lab: finite numbers, and text that can be written."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"), parse_constant=_finite, parse_float=_finite)
        json.dumps(values, ensure_ascii=False).encode()
    except OSError as error:
        raise InputError(f"{path} could not be read: {error.strerror}") from None
    except RecursionError:
        raise InputError(f"{path} is nested too deeply for a file of the lab; {advice}") from None
    except UnicodeEncodeError:
        raise InputError(f"{path} holds half a character; {advice}") from None
    except ValueError as error:
        raise InputError(f"{path} is no JSON: {error}; {advice}") from None
    if not isinstance(values, dict):
        raise InputError(f"{path} should hold an object; found {type(values).__name__}; {advice}")
    return values


def _finite(number: str) -> float:
    if not math.isfinite(value := float(number)):
        raise ValueError(f"{number} is no finite number")
    return value


def read_records(output: Path) -> dict[str, Record]:
    """All records of a folder, in the order of the page."""
    records = ((name, read_record(output, name)) for name in TITLES)
    return {name: record for name, record in records if record is not None}


def measured(experiment: Experiment, setting: Setting, command: str) -> tuple[Record, bool]:
    """The record of an experiment, and whether it was measured now: a current record is not measured again."""
    known = read_record(setting.output, experiment.name)
    if known is not None and experiment.cacheable and _current(known, experiment, setting):
        return known, False
    sources, begin = _sources(experiment), time.monotonic()
    results = experiment.measure(setting)
    record = Record(
        experiment=experiment.name,
        version=experiment.version,
        sources=sources,
        made=time.strftime("%Y-%m-%d"),
        command=command,
        seconds=round(time.monotonic() - begin, 1),
        setting=_summary(experiment, setting),
        versions=_versions(),
        machine=machine(),
        results=results,
    )
    write_text(record_path(setting.output, experiment.name), _as_json(record))
    written = read_record(setting.output, experiment.name)  # as later calls read it: JSON has no tuples
    assert written is not None
    return written, True


def _current(known: Record, experiment: Experiment, setting: Setting) -> bool:
    """Whether the record has the same setting and was measured by the same code."""
    same = known.setting == _summary(experiment, setting) and known.sources == _sources(experiment)
    return same and not version_mismatch(known, experiment)


def _summary(experiment: Experiment, setting: Setting) -> Results:
    """All of the setting that influences the results of this experiment."""
    return {**setting.summary(), **experiment.inputs(setting)}


def _sources(experiment: Experiment) -> str:
    return digest_here(f"segue.lab.{experiment.name}")


def version_mismatch(record: Record, experiment: Experiment) -> str:
    """How the version that made a record differs from this one; empty if it does not.

    Changed code alone is no mismatch: `version` says whether the experiment measures something else.
    """
    theirs = record.versions.get("segue", "unknown")
    if theirs != segue.__version__:
        return f"made by segue {theirs}, and this is {segue.__version__}"
    if record.version != experiment.version:
        return f"made by version {record.version} of the experiment, which is now at {experiment.version}"
    return ""


def write_text(path: Path, text: str) -> None:
    """Write a file atomically, and its folder if there is none."""
    make_folder(path.parent)
    write_atomically(path, text, InputError)


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, if there is none."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        kind = "a link to nowhere" if folder.is_symlink() else "no folder"
        raise InputError(f"{folder} is {kind}; choose another folder") from None
    except OSError as error:
        raise InputError(f"{folder} could not be created: {error.strerror}") from None


def _as_json(record: Record) -> str:
    text = json.dumps(record.model_dump(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return re.sub(
        r"\[[-+\d.,\seE]+\]", lambda numbers: re.sub(r"\s+", "", numbers[0]), text
    )  # a list of numbers on one line


def _versions() -> dict[str, str]:
    versions = {"segue": segue.__version__, "python": platform.python_version()}
    for name in ("torch", "numpy", "matplotlib"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def machine() -> Results:
    """The machine that the figures were measured on."""
    import torch

    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
    }
