"""The app that runs the model."""

from django.apps import AppConfig


class BackendConfig(AppConfig):
    """Registers the checks of the `OPENJEV_*` settings."""

    name = "backend"

    def ready(self) -> None:
        """Importing the module registers its checks."""
        from backend import checks  # noqa: F401
