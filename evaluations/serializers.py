"""What a request may say: one definition for validation, the API's description and the page.

A request comes in as JSON values and leaves as `EvaluationRequest`, or as an `InvalidRequest` that
lists every fault. Whether a model is served and how many tokens there are is decided elsewhere.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from django.conf import settings
from rest_framework import serializers

from evaluations.exceptions import Fault, InvalidRequest
from evaluations.fields import (
    ContentField,
    FieldFaults,
    LevelsField,
    ModelField,
    NoulCriteriaField,
    OptionsField,
    StrictField,
    TypeField,
    count_faults,
    wrong_type,
)
from evaluations.questions import (
    ChoiceQuestion,
    EvaluationRequest,
    NoulQuestion,
    Question,
    ScoreQuestion,
)
from evaluations.quoting import echoed, found, shortened
from evaluations.transcripts import messages_of, transcript_of

_INSTRUCTIONS = "What is asked: text, or structured content that the model reads as JSON."


class ObjectSerializer(serializers.Serializer[Any]):
    """A serializer that reports all faults with their paths and ignores unknown fields.

    It keeps nothing of a request, so one instance serves all of them.
    """

    @cached_property
    def _read(self) -> list[tuple[str, Any]]:
        return list(self.fields.items())

    def run_validation(self, data: Any = None) -> dict[str, Any]:
        """Read an object.

        Args:
            data: a JSON object.

        Returns:
            Every field's value; `None` where an optional one is absent or null.

        Raises:
            FieldFaults: everything that is wrong with it.
        """
        values: dict[str, Any] = {}
        faults: list[Fault] = []
        for name, field in self._read:
            try:
                values[name] = _value_of(field, name, data)
            except FieldFaults as error:
                faults += error.under(name)
        if not faults:
            faults += self.faults_between(values)
        if faults:
            raise FieldFaults(*faults)
        return values

    def faults_between(self, values: Mapping[str, Any]) -> Iterator[Fault]:
        """Find what is wrong with fields that are right one by one."""
        yield from ()


def _value_of(field: Any, name: str, data: Mapping[str, Any]) -> Any:
    if name not in data:
        if field.required:
            message = f"`{name}` is missing. It must be {field.must_be}."
            raise FieldFaults(Fault("missing", (), message))
        return None
    if data[name] is None and field.allow_null:
        return None
    return field.to_internal_value(data[name])


class NoulSerializer(ObjectSerializer):
    """A yes-or-no question. It needs instructions, or a description of yes or of no."""

    type = TypeField("noul")
    instructions = ContentField(required=False, allow_null=True, help_text=_INSTRUCTIONS)
    criteria = NoulCriteriaField(
        required=False, allow_null=True, help_text="What counts as yes and what as no."
    )

    def faults_between(self, values: Mapping[str, Any]) -> Iterator[Fault]:
        """A question must ask something."""
        sides = (values["criteria"] or {}).values()
        if values["instructions"] is None and all(side is None for side in sides):
            message = "It has neither `instructions` nor a description of `true` or `false`."
            yield Fault("missing", (), message)

    def question(self, identity: str, values: Mapping[str, Any]) -> NoulQuestion:
        """Build the question from what `run_validation` returned."""
        sides = values["criteria"] or {}
        return NoulQuestion(identity, values["instructions"], sides.get("true"), sides.get("false"))


class ChoiceSerializer(ObjectSerializer):
    """One of several options, which `criteria` maps to their descriptions."""

    type = TypeField("choice")
    instructions = ContentField(required=False, allow_null=True, help_text=_INSTRUCTIONS)
    criteria = OptionsField(help_text="Option → description; null where the label says it all.")

    def question(self, identity: str, values: Mapping[str, Any]) -> ChoiceQuestion:
        """Build the question from what `run_validation` returned."""
        return ChoiceQuestion(identity, values["criteria"], values["instructions"])


class ScoreSerializer(ObjectSerializer):
    """A place on an ordered scale, whose levels `criteria` describes."""

    type = TypeField("score")
    instructions = ContentField(required=False, allow_null=True, help_text=_INSTRUCTIONS)
    criteria = LevelsField(help_text="The levels, from the lowest to the highest.")

    def question(self, identity: str, values: Mapping[str, Any]) -> ScoreQuestion:
        """Build the question from what `run_validation` returned."""
        return ScoreQuestion(identity, values["criteria"], values["instructions"])


QUESTION_SERIALIZERS: dict[str, type[NoulSerializer | ChoiceSerializer | ScoreSerializer]] = {
    "noul": NoulSerializer,
    "choice": ChoiceSerializer,
    "score": ScoreSerializer,
}
_READERS = {tag: serializer() for tag, serializer in QUESTION_SERIALIZERS.items()}
_SERVED = "'noul', 'choice' and 'score'"


class QuestionsField(StrictField):
    """All questions of a request, by id."""

    must_be = "an object that maps each question's id to the question"

    def to_internal_value(self, data: Any) -> tuple[Question, ...]:
        """Read every question; each fault names its question."""
        if not isinstance(data, dict):
            raise self.refused(data)
        faults = list(
            count_faults(data, 1, settings.OPENJEV.max_questions, "question", "questions")
        )
        questions: list[Question] = []
        for identity, value in data.items() if not faults else ():
            try:
                questions.append(_question(identity, value))
            except FieldFaults as error:
                prefix = f"Question {shortened(identity)!r}: "
                faults += error.under(identity, prefix=prefix)
        if faults:
            raise FieldFaults(*faults)
        return tuple(questions)


def _question(identity: str, value: Any) -> Question:
    if not identity:
        raise FieldFaults(Fault("empty", (), "The id is empty. It must be a non-empty string."))
    if not isinstance(value, dict):
        raise FieldFaults(wrong_type("The question", "an object with a `type`", value))
    if "type" not in value:
        message = f"`type` is missing. It must be one of {_SERVED}."
        raise FieldFaults(Fault("missing", ("type",), message))
    tag = value["type"]
    reader = _READERS.get(tag) if isinstance(tag, str) else None
    if reader is None:
        message = (
            f"`type` is {found(tag)}, but this server takes text only and answers questions of "
            f"the types {_SERVED}."
        )
        raise FieldFaults(Fault("unknown_type", ("type",), message, echoed(tag)))
    try:
        return reader.question(identity, reader.run_validation(value))
    except FieldFaults as error:
        raise FieldFaults(*error.under(tag)) from None


class AssetsField(StrictField):
    """Images and other files, which this server does not take; clients send null for none."""

    must_be = "null or absent: this server takes text only, no images, audio or video"

    def to_internal_value(self, data: Any) -> None:
        """Accept what holds nothing."""
        if data:
            raise self.refused(data)


class EvaluationSerializer(ObjectSerializer):
    """A state, and the questions to answer about it."""

    model = ModelField(help_text="`jev-latest`, any other `jev-` name, or the served model's id.")
    state = ContentField(
        help_text="What is judged: text, a chat transcript (a list of messages) or any JSON."
    )
    questions = QuestionsField(help_text="Question id → question. Answers come under the same ids.")
    assets = AssetsField(required=False, allow_null=True)


_EVALUATION = EvaluationSerializer()


def read_evaluation(body: Any) -> EvaluationRequest:
    """Validate a parsed body.

    Args:
        body: JSON values, as `evaluations.strict_json` returns them.

    Raises:
        InvalidRequest: lists every fault.
    """
    if not isinstance(body, dict):
        raise InvalidRequest([wrong_type("The body", "a JSON object", body)])
    faults: list[Fault] = []
    values: dict[str, Any] = {}
    try:
        values = _EVALUATION.run_validation(body)
    except FieldFaults as error:
        faults += error.faults
    faults += _transcript_faults(body.get("state"))
    if faults:
        raise InvalidRequest(faults)
    return EvaluationRequest(values["model"], values["state"], values["questions"])


def _transcript_faults(state: Any) -> Sequence[Fault]:
    if transcript_of(state) is None:
        return ()
    try:
        messages_of(state)
    except InvalidRequest as error:
        return error.faults
    return ()
