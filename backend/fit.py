"""Whether an engine is the one this server is set up for: asked once, before it is used.

Everything that can be seen from outside is looked at: model, flags, context length, vocabulary,
tokenizer. What does not fit is told with what to change. What an engine does not tell (SGLang's
Rust front shows no flags, a router no context length) is never taken for a fault.
"""

import uuid

from backend.chat_template import Message
from backend.config import Config
from backend.description import RESERVED_TOKENS, EngineDescription
from backend.engine import Engine
from backend.errors import EngineMismatch, EngineRejected, SetupError, UnusableLogprobs
from backend.protocol import Call
from backend.sglang.flags import FlagRefused, require_harmless
from backend.token_ids import TokenIds
from backend.tokenizer import ChatTokenizer

LOOK_SECONDS = 30.0
"""How long to wait for an engine that is asked what it is: a fresh SGLang may compile something for
the first call."""

HOPELESS = (SetupError, EngineRejected, UnusableLogprobs)
"""What keeps an engine from ever being used, if it shows when the engine is first looked at."""
_PROBE: tuple[Message, ...] = (
    {"role": "user", "content": "Straße №5, 1 234,50 €:\n\n\t«Где?» 東京タワー 👩‍👧  don't"},
    {"role": "user", "content": "  And  then?\r\n"},
)


async def require_fit(
    engine: Engine, tokenizer: ChatTokenizer, config: Config, *, deadline: float
) -> EngineDescription:
    """Ask an engine what it is, and check that it fits settings and tokenizer.

    Args:
        engine: which knows its vocabulary's size from `tokenizer`.
        tokenizer: what inputs are made with.
        config: model name and longest input.
        deadline: of all questions together; loop time in seconds.

    Raises:
        EngineMismatch: it does not fit, and will not until somebody changes something.
        EngineError: it cannot be asked (yet).
    """
    described = await require_described(engine, config, deadline=deadline)
    await _require_vocabulary(engine, tokenizer, config, deadline)
    await _require_tokenizer(engine, tokenizer, config, deadline)
    return described


async def require_described(
    engine: Engine, config: Config, *, deadline: float
) -> EngineDescription:
    """Ask an engine what it is, one real call included, and check that it fits the settings.

    Args and errors are those of `require_fit`.
    """
    described = await engine.describe(deadline=deadline)
    _require_model(described, config)
    _require_flags(described, config)
    _require_length(described, config)
    return described


def why_hopeless(error: Exception, config: Config) -> str:
    """Say, for whoever runs the server, why a first look at an engine ended for good.

    Args:
        error: one of `HOPELESS`.
        config: names the engine's address.
    """
    if isinstance(error, SetupError):
        return str(error)
    advice = ""
    if isinstance(error, UnusableLogprobs):
        advice = (
            " It must be SGLang 0.5.19 or later with sound weights; where only numbers are wrong, "
            "another --moe-runner-backend may help."
        )
    return f"The engine at {config.backend_url} cannot be used. {error}{advice}"


def caveats(described: EngineDescription, config: Config) -> list[str]:
    """Say what could not be seen of an engine that fits as far as it can be seen."""
    url, found = config.backend_url, list[str]()
    if described.front == "rust" and config.backend_api_key is not None:
        found.append(
            "SGLang's Rust front ignores OPENJEV_BACKEND_API_KEY: whoever reaches "
            f"{url} can use the engine."
        )
    if described.max_input_tokens is None:
        found.append(
            f"{url} does not tell the context length of what is behind it. It must be at least "
            f"{config.max_input_tokens + RESERVED_TOKENS} tokens there "
            f"(OPENJEV_MAX_INPUT_TOKENS and {RESERVED_TOKENS} more)."
        )
    return found


def _require_model(described: EngineDescription, config: Config) -> None:
    if described.model != config.served_model_name:
        raise EngineMismatch(
            f"The engine at {config.backend_url} serves {described.model!r}, but this server is "
            f"set up for {config.served_model_name!r}. Correct OPENJEV_PROFILE, "
            "OPENJEV_SERVED_MODEL_NAME or OPENJEV_BACKEND_URL."
        )


def _require_flags(described: EngineDescription, config: Config) -> None:
    try:
        require_harmless(dict.fromkeys(described.flags, ()))
    except FlagRefused as refused:
        raise EngineMismatch(
            f"{refused} The engine at {config.backend_url} runs with it: start that without."
        ) from refused


def _require_length(described: EngineDescription, config: Config) -> None:
    longest = described.max_input_tokens
    if longest is not None and longest < config.max_input_tokens:
        raise EngineMismatch(
            f"The engine at {config.backend_url} takes inputs of fewer than {longest} tokens, but "
            f"OPENJEV_MAX_INPUT_TOKENS is {config.max_input_tokens}. Set that to {longest} or "
            "less, or start the engine with memory for more and with --context-length "
            f"{config.max_input_tokens + RESERVED_TOKENS}."
        )


async def _require_vocabulary(
    engine: Engine, tokenizer: ChatTokenizer, config: Config, deadline: float
) -> None:
    """Ask for our largest id as a *label*: as an input, one that is too large would kill SGLang."""
    name = f"openjev.vocabulary.{uuid.uuid4().hex}"
    call = Call(TokenIds.of([0]), [tokenizer.vocabulary_size - 1], name)
    try:
        await engine.label_logprobs([call], deadline=deadline, routing_key=name)
    except EngineRejected as error:
        raise EngineMismatch(
            f"The model of the engine at {config.backend_url} knows fewer than the "
            f"{tokenizer.vocabulary_size} tokens of the tokenizer of {tokenizer.name}. Correct "
            "OPENJEV_PROFILE or OPENJEV_MODEL, so that both belong to one model."
        ) from error


async def _require_tokenizer(
    engine: Engine, tokenizer: ChatTokenizer, config: Config, deadline: float
) -> None:
    theirs = await engine.tokenize(tokenizer.template.render(_PROBE), deadline=deadline)
    turn = tokenizer.render(_PROBE)
    if theirs is not None and theirs != tokenizer.encode([*turn.before, *turn.after]):
        raise EngineMismatch(
            f"The engine at {config.backend_url} turns a text into other tokens than the tokenizer "
            f"of {tokenizer.name}. Correct OPENJEV_PROFILE, OPENJEV_MODEL or OPENJEV_REVISION, so "
            "that both belong to one model."
        )
