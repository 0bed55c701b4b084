"""Which models this server has, as the routes beside the evaluation report them."""

from datetime import UTC, datetime
from typing import Any

from backend.config import Config

ALIAS = "jev-latest"
OWNER = "openjev"
# A caller's results depend on the wording and the readouts as much as on the weights, so this is
# the date of the release that brought them, not of the weights.
RELEASED = datetime(2026, 11, 29, tzinfo=UTC)


def is_served(name: str, config: Config) -> bool:
    """Whether an evaluation may ask for this model: the served id, or any `jev-` name."""
    return name == config.served_model_name or name.startswith("jev-")


def models_body(config: Config, readout_version: str | None) -> dict[str, Any]:
    """List the names under which evaluations are served, in TypeSafe's and in OpenAI's form.

    Args:
        config: the effective settings.
        readout_version: of the verified readout; `None` while there is none.
    """
    served = config.served_model_name
    described = {
        ALIAS: f"The model served here: {served}.",
        served: f"Profile {config.profile}, answering typed questions with probabilities.",
    }
    version = {"x_readout_version": readout_version} if readout_version else {}
    return {
        "models": [
            {
                "name": name,
                "description": description,
                "release_date": RELEASED.date().isoformat(),
                **version,
            }
            for name, description in described.items()
        ],
        "object": "list",
        "data": [model_body(name) for name in described],
    }


def model_body(name: str) -> dict[str, Any]:
    """Describe one model in OpenAI's form."""
    created = int(RELEASED.timestamp())
    return {"id": name, "object": "model", "created": created, "owned_by": OWNER}
