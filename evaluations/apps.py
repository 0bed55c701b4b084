"""The app that answers questions."""

from django.apps import AppConfig


class EvaluationsConfig(AppConfig):
    """Questions, prompts and answers."""

    name = "evaluations"
