"""Fields that read JSON exactly as it is meant.

Nothing is coerced: a number is no string, `true` is no number. A field collects every fault of its
value, with paths relative to the value; whoever holds the field puts its own name in front.
Nothing in here knows a request as a whole.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from django.conf import settings
from rest_framework import serializers

from evaluations.exceptions import Fault
from evaluations.questions import Content
from evaluations.quoting import counted, echoed, found, shortened

_CONTENT = (str, list, dict)


class FieldFaults(serializers.ValidationError):
    """Django REST framework's validation error with the faults as data.

    Attributes:
        faults: their `loc` starts at the value that was read.
    """

    def __init__(self, *faults: Fault) -> None:
        super().__init__([fault.message for fault in faults])
        self.faults = faults

    def under(self, *path: str | int, prefix: str = "") -> Iterator[Fault]:
        """Give the faults as seen from a container of the value."""
        for fault in self.faults:
            yield Fault(fault.type, (*path, *fault.loc), prefix + fault.message, fault.input)


def wrong_type(subject: str, must_be: str, value: Any, *loc: str | int) -> Fault:
    """The fault of a value of the wrong JSON type."""
    message = f"{subject} must be {must_be}, but it is {found(value)}."
    return Fault("wrong_type", loc, message, echoed(value))


class StrictField(serializers.Field[Any, Any, Any, Any]):
    """A field without coercion.

    Attributes:
        must_be: completes the sentence "… must be …"; only fields that refuse something have it.
    """

    must_be: ClassVar[str]

    def refused(self, value: Any) -> FieldFaults:
        """The error for a value of the wrong type."""
        return FieldFaults(wrong_type(f"`{self.field_name}`", self.must_be, value))

    def to_representation(self, value: Any) -> Any:
        """Values go out as they came in."""
        return value


class ContentField(StrictField):
    """Text, or structured content that is shown to the model as JSON."""

    must_be = "a string, an object or an array"

    def to_internal_value(self, data: Any) -> Content:
        """Return the value untouched."""
        if not isinstance(data, _CONTENT):
            raise self.refused(data)
        return data


class ModelField(StrictField):
    """The name of a model; whether it is served is decided later."""

    must_be = "a non-empty string"

    def to_internal_value(self, data: Any) -> str:
        """Return the name untouched."""
        if not isinstance(data, str) or not data:
            raise self.refused(data)
        return data


class TypeField(StrictField):
    """The tag that tells questions, and answers, apart."""

    def __init__(self, tag: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tag = tag

    def to_internal_value(self, data: Any) -> str:
        """The tag has chosen the serializer, so it is right."""
        return self.tag

    def get_attribute(self, instance: Any) -> str:
        """Answers carry their type as their class."""
        return self.tag


class NoulCriteriaField(StrictField):
    """What counts as yes and what as no; either side may be missing."""

    must_be = "an object with `true`, `false` or both"

    def to_internal_value(self, data: Any) -> Mapping[str, Content | None]:
        """Return both sides, `None` where nothing describes one."""
        if not isinstance(data, dict):
            raise self.refused(data)
        if data and data.keys().isdisjoint({"true", "false"}):
            message = (
                "`criteria` must hold `true`, `false` or both; "
                f"it holds only {', '.join(repr(shortened(key)) for key in list(data)[:3])}."
            )
            raise FieldFaults(Fault("missing", (), message))
        sides = {side: data.get(side) for side in ("true", "false")}
        faults = [
            wrong_type(f"`criteria.{side}`", "a string, an object, an array or null", value, side)
            for side, value in sides.items()
            if value is not None and not isinstance(value, _CONTENT)
        ]
        if faults:
            raise FieldFaults(*faults)
        return sides


class OptionsField(StrictField):
    """The options of a choice: label → description, `None` where the label says it all."""

    must_be = "an object that maps each option to its description"

    def to_internal_value(self, data: Any) -> Mapping[str, Content | None]:
        """Return the options in the order of the request."""
        if not isinstance(data, dict):
            raise self.refused(data)
        faults = list(count_faults(data, 2, settings.OPENJEV.max_answers, "option"))
        if not faults:
            faults = list(_option_faults(data))
        if faults:
            raise FieldFaults(*faults)
        return data


class LevelsField(StrictField):
    """The levels of a score, from the lowest to the highest."""

    must_be = "an array of level descriptions, the lowest first"

    def to_internal_value(self, data: Any) -> tuple[Content, ...]:
        """Return the levels untouched."""
        if not isinstance(data, list):
            raise self.refused(data)
        faults = list(count_faults(data, 2, settings.OPENJEV.max_answers, "level"))
        if not faults:
            faults = [
                wrong_type(f"Level {index} of `criteria`", ContentField.must_be, level, index)
                for index, level in enumerate(data)
                if not isinstance(level, _CONTENT)
            ]
        if faults:
            raise FieldFaults(*faults)
        return tuple(data)


def count_faults(
    value: list[Any] | dict[str, Any], low: int, high: int, noun: str, field: str = "criteria"
) -> Iterator[Fault]:
    """Check how many entries a container has."""
    if not low <= len(value) <= high:
        kind = "too_few" if len(value) < low else "too_many"
        message = f"`{field}` has {counted(len(value), noun)}; {low} to {high} are allowed."
        yield Fault(kind, (), message, echoed(value))


def _option_faults(options: Mapping[str, Any]) -> Iterator[Fault]:
    for label, description in options.items():
        if not label:
            yield Fault("empty", ("",), "`criteria` has an option with an empty label.")
        if description is not None and not isinstance(description, _CONTENT):
            yield wrong_type(
                f"The description of option {shortened(label)!r}",
                "a string, an object, an array or null",
                description,
                label,
            )
