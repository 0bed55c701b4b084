"""What the API answers, as serializers: they render it and describe it.

Numbers go out unrounded, entries in the order of the request.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any

from rest_framework import serializers

from evaluations.fields import StrictField, TypeField
from evaluations.questions import Answer, ChoiceAnswer, Evaluation, NoulAnswer, ScoreAnswer


class PlainSerializer(serializers.Serializer[Any]):
    """A serializer whose fields are the attributes of one class, and all have a value.

    Upstream looks for relations, keys and nulls at every field, which takes longer than the rest.
    """

    @cached_property
    def _written(self) -> list[tuple[str, Callable[[Any], Any], Callable[[Any], Any]]]:
        return [
            (
                name,
                field.get_attribute if isinstance(field, TypeField) else attrgetter(name),
                field.to_representation,
            )
            for name, field in self.fields.items()
        ]

    def to_representation(self, instance: Any) -> dict[str, Any]:
        """Write an object out."""
        return {name: write(read(instance)) for name, read, write in self._written}


class IndexedField(StrictField):
    """A sequence that goes out as an object with the keys `"0"`, `"1"` and so on."""

    def to_representation(self, value: Sequence[Any]) -> dict[str, Any]:
        """Number the entries."""
        return {str(index): entry for index, entry in enumerate(value)}


class LegendField(IndexedField):
    """The levels of a score, unchanged."""


class LevelProbabilitiesField(IndexedField):
    """The probability of each level."""


class OptionProbabilitiesField(StrictField):
    """The probability of each option, in the question's order."""


class ProbabilityField(StrictField):
    """A number from 0 to 1."""


class NoulAnswerSerializer(PlainSerializer):
    """The probability of yes."""

    type = TypeField("noul")
    noul = ProbabilityField(help_text="The probability of yes.")


class ChoiceAnswerSerializer(PlainSerializer):
    """The most probable option and the distribution behind it."""

    type = TypeField("choice")
    choice = serializers.CharField(help_text="The most probable option.")
    confidence = ProbabilityField(help_text="0 where all options are equally probable, 1 for one.")
    probabilities = OptionProbabilitiesField(help_text="They sum to 1.")


class ScoreAnswerSerializer(PlainSerializer):
    """The expected level and the distribution behind it."""

    type = TypeField("score")
    score = serializers.FloatField(help_text="The sum of each level's index × its probability.")
    confidence = ProbabilityField(help_text="0 where all levels are equally probable, 1 for one.")
    legend = LegendField(help_text="The levels, by index.")
    probabilities = LevelProbabilitiesField(help_text="By index; they sum to 1.")


ANSWER_SERIALIZERS: dict[str, type[serializers.Serializer[Any]]] = {
    "noul": NoulAnswerSerializer,
    "choice": ChoiceAnswerSerializer,
    "score": ScoreAnswerSerializer,
}
_WRITERS: dict[type[Answer], serializers.Serializer[Any]] = {
    NoulAnswer: NoulAnswerSerializer(),
    ChoiceAnswer: ChoiceAnswerSerializer(),
    ScoreAnswer: ScoreAnswerSerializer(),
}


class AnswersField(StrictField):
    """All answers, by question id."""

    def to_representation(self, value: Any) -> dict[str, Any]:
        """Render each answer by its class."""
        return {
            identity: _WRITERS[type(answer)].to_representation(answer)
            for identity, answer in value.items()
        }


class UsageSerializer(PlainSerializer):
    """What an evaluation cost."""

    input_tokens = serializers.IntegerField(
        help_text="Prompt tokens of the warm-up and of every question, cached ones included."
    )
    output_tokens = serializers.IntegerField(help_text="One per engine call: questions + 1.")


class EvaluationResultSerializer(PlainSerializer):
    """The answers to all questions of a request."""

    model = serializers.CharField(help_text="The model as requested.")
    answers = AnswersField()
    usage = UsageSerializer()


class ModelSerializer(serializers.Serializer[Any]):
    """One name under which evaluations are served."""

    name = serializers.CharField()
    description = serializers.CharField()
    release_date = serializers.CharField(help_text="ISO date.")
    x_readout_version = serializers.CharField(
        required=False,
        help_text="Changes with anything that shapes a probability: weights, wording, temperature.",
    )


class ModelEntrySerializer(serializers.Serializer[Any]):
    """The same in OpenAI's form."""

    id = serializers.CharField()
    object = TypeField("model")
    created = serializers.IntegerField(help_text="Unix time.")
    owned_by = serializers.CharField()


class ModelsSerializer(serializers.Serializer[Any]):
    """Every name under which evaluations are served."""

    models = ModelSerializer(many=True)
    object = TypeField("list")
    data = ModelEntrySerializer(many=True)  # type: ignore[assignment] # a field, not the property


class LimitsSerializer(serializers.Serializer[Any]):
    """What this server admits; the fields are those of `backend.config.Config`."""

    max_questions = serializers.IntegerField(help_text="Questions in one request.")
    max_answers = serializers.IntegerField(help_text="Options of a choice, levels of a score.")
    max_body_bytes = serializers.IntegerField(help_text="Body after decompression, in bytes.")
    max_input_tokens = serializers.IntegerField(
        help_text="Tokens of one branch, its one output token included."
    )
    max_total_input_tokens = serializers.IntegerField(
        help_text="Tokens of the warm-up and all branches."
    )
    max_concurrent_requests = serializers.IntegerField(
        help_text="Evaluations at once; one more is answered 529."
    )
    max_concurrent_branches = serializers.IntegerField(help_text="Engine calls; more wait.")
    request_timeout = serializers.FloatField(help_text="Seconds for a whole evaluation.")


class HealthSerializer(serializers.Serializer[Any]):
    """Whether evaluations can be answered now."""

    status = serializers.ChoiceField(choices=["ok", "starting", "unavailable"])
    startup_seconds = serializers.FloatField(allow_null=True)


class LivenessSerializer(serializers.Serializer[Any]):
    """The process serves."""

    status = serializers.ChoiceField(choices=["ok"])


@dataclass(frozen=True, slots=True)
class _Result:
    model: str
    answers: Mapping[str, Answer]
    usage: Evaluation


_RESULT = EvaluationResultSerializer()


def evaluation_body(model: str, evaluation: Evaluation) -> dict[str, Any]:
    """Build the JSON body of a finished evaluation.

    Args:
        model: as the request named it.
        evaluation: answers and cost.
    """
    return _RESULT.to_representation(_Result(model, evaluation.answers, evaluation))


def evaluation_headers(served_model: str, evaluation: Evaluation) -> dict[str, str]:
    """Build the response headers that tell what an evaluation reused and where its time went.

    Args:
        served_model: public id of the model that answered.
        evaluation: answers and cost.
    """
    timing = evaluation.timing
    steps = {"prepare": timing.prepare, "prefill": timing.prefill, "branches": timing.branches}
    headers = {
        "x-openjev-model": served_model,
        "x-openjev-prefix-tokens": str(evaluation.prefix_tokens),
        "Server-Timing": ", ".join(f"{name};dur={s * 1000:.1f}" for name, s in steps.items()),
    }
    if evaluation.cached_tokens is not None:
        headers["x-openjev-cached-tokens"] = str(evaluation.cached_tokens)
    return headers
