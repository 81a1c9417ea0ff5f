"""Settings whose values are text of a properties file, as the broker and its store have them."""

import re
from typing import Any, get_args

from pydantic import BaseModel, ValidationInfo, field_validator


class TextSettings(BaseModel):
    """A section of settings. What only Python takes for a number, and an empty value without a meaning, are refused."""

    @field_validator("*", mode="before")
    @classmethod
    def _check_text(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, str):
            return value
        field = cls.model_fields[info.field_name or ""]
        default = field.get_default(call_default_factory=True)
        if not value.strip() and (default is None or default):  # an empty path would be the current directory
            raise ValueError("it is empty; leave the line out for the default")
        if {int, float} & {field.annotation, *get_args(field.annotation)} and is_pythons_number(value):
            raise ValueError(f"{value!r} is no number")
        return value


def is_pythons_number(text: str) -> bool:
    """Whether the text, such as 1_0, is a number in Python but not in a properties file."""
    return re.fullmatch(r"\s*[+-]?\d[\d.]*_[\d._]*\s*", text) is not None
