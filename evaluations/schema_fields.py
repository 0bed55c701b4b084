"""What the serializers cannot say about themselves in the API's description.

Shapes of the strict fields with the limits in effect, the two unions with their discriminator, the
Bearer scheme, the error bodies. Loaded for its effect: drf-spectacular finds extensions by class.
"""

from typing import Any

from django.conf import settings
from drf_spectacular.extensions import (
    OpenApiAuthenticationExtension,
    OpenApiSerializerFieldExtension,
)
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import (
    Direction,
    PolymorphicProxySerializer,
    extend_schema_field,
    extend_schema_serializer,
)
from rest_framework import serializers

from evaluations import answers, fields
from evaluations import serializers as requests
from evaluations.authentication import BearerAuthentication

Fragment = dict[str, Any]

_CONTENT_TYPES = ["string", "object", "array"]
_CONTENT: Fragment = {"type": _CONTENT_TYPES}
_DESCRIPTION: Fragment = {"type": [*_CONTENT_TYPES, "null"]}
_PROBABILITY: Fragment = {"type": "number", "minimum": 0, "maximum": 1}
_PROBABILITIES: Fragment = {"type": "object", "additionalProperties": _PROBABILITY}

QUESTION = PolymorphicProxySerializer(
    component_name="Question",
    serializers=dict(requests.QUESTION_SERIALIZERS),
    resource_type_field_name="type",
)
ANSWER = PolymorphicProxySerializer(
    component_name="Answer",
    serializers=dict(answers.ANSWER_SERIALIZERS),
    resource_type_field_name="type",
)

for _field, _fragment in {
    fields.ContentField: _CONTENT,
    fields.ModelField: {"type": "string", "minLength": 1},
    fields.NoulCriteriaField: {
        "type": "object",
        "properties": {"true": _DESCRIPTION, "false": _DESCRIPTION},
    },
    answers.ProbabilityField: _PROBABILITY,
    answers.OptionProbabilitiesField: _PROBABILITIES,
    answers.LevelProbabilitiesField: _PROBABILITIES,
    answers.LegendField: {"type": "object", "additionalProperties": _CONTENT},
}.items():
    extend_schema_field(_fragment)(_field)

for _serializer, _name in {
    requests.EvaluationSerializer: "EvaluationRequest",
    requests.NoulSerializer: "NoulQuestion",
    requests.ChoiceSerializer: "ChoiceQuestion",
    requests.ScoreSerializer: "ScoreQuestion",
    answers.NoulAnswerSerializer: "NoulAnswer",
    answers.ChoiceAnswerSerializer: "ChoiceAnswer",
    answers.ScoreAnswerSerializer: "ScoreAnswer",
}.items():
    extend_schema_serializer(component_name=_name, exclude_fields=["assets"])(_serializer)


class TypeFieldExtension(OpenApiSerializerFieldExtension):
    """A tag is a constant, which the discriminators need and enumerations cannot say."""

    target_class = fields.TypeField

    def map_serializer_field(self, auto_schema: AutoSchema, direction: Direction) -> Fragment:
        """Describe the field."""
        return {"type": "string", "const": self.target.tag}


class QuestionsFieldExtension(OpenApiSerializerFieldExtension):
    """Question id → question."""

    target_class = requests.QuestionsField

    def map_serializer_field(self, auto_schema: AutoSchema, direction: Direction) -> Fragment:
        """Describe the field, with the limit in effect."""
        return {
            "type": "object",
            "minProperties": 1,
            "maxProperties": settings.OPENJEV.max_questions,
            "propertyNames": {"minLength": 1},
            "additionalProperties": auto_schema.resolve_serializer(QUESTION, direction).ref,
        }


class OptionsFieldExtension(OpenApiSerializerFieldExtension):
    """Option → description."""

    target_class = fields.OptionsField

    def map_serializer_field(self, auto_schema: AutoSchema, direction: Direction) -> Fragment:
        """Describe the field, with the limit in effect."""
        return {
            "type": "object",
            "minProperties": 2,
            "maxProperties": settings.OPENJEV.max_answers,
            "propertyNames": {"minLength": 1},
            "additionalProperties": _DESCRIPTION,
        }


class LevelsFieldExtension(OpenApiSerializerFieldExtension):
    """The levels of a scale."""

    target_class = fields.LevelsField

    def map_serializer_field(self, auto_schema: AutoSchema, direction: Direction) -> Fragment:
        """Describe the field, with the limit in effect."""
        return {
            "type": "array",
            "minItems": 2,
            "maxItems": settings.OPENJEV.max_answers,
            "items": _CONTENT,
        }


class AnswersFieldExtension(OpenApiSerializerFieldExtension):
    """Question id → answer."""

    target_class = answers.AnswersField

    def map_serializer_field(self, auto_schema: AutoSchema, direction: Direction) -> Fragment:
        """Describe the field."""
        return {
            "type": "object",
            "additionalProperties": auto_schema.resolve_serializer(ANSWER, direction).ref,
        }


class BearerExtension(OpenApiAuthenticationExtension):
    """The key of the public API, where the server has one."""

    target_class = BearerAuthentication
    name = "bearer"

    def get_security_definition(self, auto_schema: AutoSchema) -> Fragment:
        """Describe the scheme."""
        return {
            "type": "http",
            "scheme": "bearer",
            "description": "Needed when the server runs with `OPENJEV_API_KEY`.",
        }


class ErrorMessageSerializer(serializers.Serializer[Any]):
    """What went wrong, as a sentence."""

    message = serializers.CharField()
    type = serializers.CharField()


class ErrorDetailSerializer(serializers.Serializer[Any]):
    """The same, where the hosted service has it."""

    error_type = serializers.CharField()
    message = serializers.CharField()


class ErrorSerializer(serializers.Serializer[Any]):
    """Every error but a 422."""

    error = ErrorMessageSerializer()
    detail = ErrorDetailSerializer()


@extend_schema_field({"type": "array", "items": {"type": ["string", "integer"]}})
class LocationField(fields.StrictField):
    """The path to what is wrong, from `body` on."""


class FaultSerializer(serializers.Serializer[Any]):
    """One thing that is wrong with a request."""

    type = serializers.CharField()
    loc = LocationField()
    msg = serializers.CharField()
    input = serializers.JSONField(required=False, help_text="What was found, in short.")


class RequestErrorSerializer(serializers.Serializer[Any]):
    """A 422 lists every fault."""

    error = ErrorMessageSerializer()
    detail = FaultSerializer(many=True)
