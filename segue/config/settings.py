"""The base of all settings: closed, frozen, checked when they are built, with errors of one line."""

from difflib import get_close_matches
from reprlib import Repr
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from segue.errors import ConfigError
from segue.renamed import new_name

SHORT = Repr()
"""Prints a wrong value in one short line, however long or deeply nested it is."""
SHORT.maxstring = SHORT.maxother = SHORT.maxlong = 80


class Settings(BaseModel):
    """Immutable settings without unknown keys or infinite numbers; errors are one line."""

    # Checks are prepared when settings of a kind are first built: most commands use few of the kinds.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    def __init__(self, /, **values: Any) -> None:
        for name in type(self).model_fields.keys() & values.keys():
            _check_fits(f"{type(self).__name__}: {name}", values[name])
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(explained(type(self), error)) from None


def _check_fits(name: str, value: Any) -> None:
    """Refuse integers of more than 64 bits. (Python's have no limit, and may take for ever to print.)"""
    for number in value if isinstance(value, list | tuple) else (value,):
        if isinstance(number, int) and not -(2**63) <= number < 2**63:
            raise ConfigError(f"{name} should be a number of 64 bits; found a longer one")


def explained(kind: type[BaseModel], error: ValidationError) -> str:
    """Pydantic's report as one line: `TrainConfig has no 'stpes'; did you mean 'steps'?`"""
    details = [d for d in error.errors(include_url=False) if d["type"] != "default_factory_not_called"]
    return "; ".join(_complaint(kind, detail) for detail in details)


def _complaint(kind: type[BaseModel], detail: Any) -> str:
    name = ".".join(str(part) for part in detail["loc"])
    match detail["type"]:
        case "extra_forbidden":
            near = new_name(name) or next(iter(get_close_matches(name, kind.model_fields, n=1)), None)
            hint = (
                f"did you mean '{near}'?"
                if near in kind.model_fields
                else f"it has {', '.join(kind.model_fields)}"
            )
            return f"{kind.__name__} has no '{name}'; {hint}"
        case "missing":
            return f"{kind.__name__} needs '{name}'"
        case "value_error":
            return f"{kind.__name__}: {detail['ctx']['error']}"
        case "union_tag_invalid":
            tag, known = detail["ctx"]["tag"], detail["ctx"]["expected_tags"]
            return f"{kind.__name__}: {name}.kind should be one of {known}; found '{tag}'"
    wanted = detail["msg"].removeprefix("Input should be ")
    return f"{kind.__name__}: {name} should be {wanted}; found {SHORT.repr(detail['input'])}"
