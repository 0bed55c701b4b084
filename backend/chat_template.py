"""Render a model's own chat template over messages whose text nobody trusts.

Templates are programs: they compare, strip and glue the strings they are given. So every string of
the caller's that is, or could become part of, a control token (`<|im_start|>` …) is taken out
before rendering and stands as a random placeholder meanwhile; every control token found in the
rendered text is therefore the template's own. Nothing here knows token ids.
"""

import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from itertools import count
from typing import Any, TypeAlias

Message: TypeAlias = Mapping[str, Any]

# Values templates compare with their own constants; hiding them would change what is rendered.
_COMPARED_KEYS = frozenset({"role", "type"})

_SECRET = secrets.token_bytes(32)
_numbers = count()


class TemplateRefused(Exception):
    """The template cannot render these messages; the message says why, as far as it is known."""


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A chat template and what it is rendered with.

    Attributes:
        source: the Jinja program of the model's publisher.
        variables: the names of special tokens it may use (`bos_token` …) and their texts.
    """

    source: str
    variables: Mapping[str, str]

    def render(self, messages: Sequence[Message]) -> str:
        """Render `messages` and open the assistant's turn, thinking off.

        Raises:
            TemplateRefused: the template raised, in whatever way.
        """
        try:
            rendered: str = _program(self.source)(
                list(messages),
                tools=None,
                documents=None,
                add_generation_prompt=True,
                enable_thinking=False,
                **self.variables,
            )
        except RecursionError:
            raise TemplateRefused("it is nested too deeply") from None
        except Exception as error:  # a template can fail in any way Python can
            raise TemplateRefused(_reason(error)) from error
        return rendered


@cache
def _program(source: str) -> Callable[..., str]:
    """Compile a template as transformers does, for messages that are plain JSON.

    Its own `render_jinja_template`, with which the tests compare, also takes images, tools and
    objects of any kind apart at every call, which takes longer than to render a chat.
    """
    # Its import costs a second and a notice about missing torch that helps nobody here.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers.utils import chat_template_utils

    program = chat_template_utils._compile_jinja_template(source)
    program.globals = dict(program.globals)  # Jinja goes through all of them at every rendering

    def render(messages: list[dict[str, Any]], **variables: Any) -> str:
        aliased = chat_template_utils._alias_reasoning_fields(messages)
        return str(program.render(messages=aliased, **variables))

    return render


def _reason(error: Exception) -> str:
    from jinja2 import TemplateError

    if isinstance(error, TemplateError) and error.message:
        return error.message.strip().rstrip(".")
    return f"it ends in {type(error).__name__}"


class ControlStrings:
    """The texts of a tokenizer's control tokens, and how to find them in other text."""

    def __init__(self, texts: Iterable[str]) -> None:
        # The longest first, so that a token wins over another one that begins it.
        self.texts = tuple(sorted(set(texts), key=lambda text: (-len(text), text)))
        self._pattern = re.compile("|".join(map(re.escape, self.texts)) or "(?!)")
        self._separator = re.compile(f"({self._pattern.pattern})")
        self._starts = frozenset(text[:n] for text in self.texts for n in range(1, len(text)))
        self._ends = frozenset(text[n:] for text in self.texts for n in range(1, len(text)))
        self._first = frozenset(text[0] for text in self.texts)
        self._last = frozenset(text[-1] for text in self.texts)
        self._longest = max(map(len, self.texts), default=0)

    def split(self, text: str) -> list[str]:
        """Cut `text` into plain text and control strings, alternating; plain text comes first."""
        return self._separator.split(text)

    def conceal(self, text: str, placeholders: "Placeholders", *, compared: bool = False) -> str:
        """Put placeholders where `text` is, or could be glued into, a control string.

        Args:
            text: a string of the caller's.
            placeholders: keep what is taken out.
            compared: the template may compare the string with constants; a plain word is left.
        """
        if compared and text.isidentifier():
            return text
        if len(text) < self._longest and any(text in control for control in self.texts):
            return placeholders.keep(text)
        head, tail = self._head(text), self._tail(text)
        end = max(head, len(text) - tail)
        middle = self._pattern.sub(lambda found: placeholders.keep(found[0]), text[head:end])
        return placeholders.keep(text[:head]) + middle + placeholders.keep(text[end:])

    def _head(self, text: str) -> int:
        """How many characters at the beginning are the longest end of a control string."""
        if self._last.isdisjoint(text[: self._longest]):
            return 0  # nearly every text
        return next((n for n in self._lengths(text) if text[:n] in self._ends), 0)

    def _tail(self, text: str) -> int:
        """How many characters at the end are the longest beginning of a control string."""
        if self._first.isdisjoint(text[-self._longest :]):
            return 0
        return next((n for n in self._lengths(text) if text[-n:] in self._starts), 0)

    def _lengths(self, text: str) -> range:
        return range(min(len(text), self._longest), 0, -1)


class Placeholders:
    """What was taken out of the caller's strings during one rendering."""

    def __init__(self) -> None:
        # a caller cannot have known it, whatever was seen of earlier ones
        number = b"%d" % next(_numbers)
        self._nonce = f"x{blake2b(number, key=_SECRET, digest_size=16).hexdigest()}x"
        self._kept: list[str] = []
        self.slot = f"{self._nonce}slotx"
        """Stands for a text that is not known yet."""

    def keep(self, text: str) -> str:
        """Take `text` out; the answer stands for it. Empty text stays."""
        if not text:
            return ""
        self._kept.append(text)
        return f"{self._nonce}{len(self._kept) - 1}x"

    def restore(self, rendered: str) -> str:
        """Put everything back that was taken out.

        Raises:
            TemplateRefused: the template cut a placeholder apart, so text would be lost.
        """
        beginning = self._nonce[:16]
        if beginning not in rendered.lower():
            return rendered
        # Templates may capitalise a name.
        pattern = re.compile(f"{self._nonce}([0-9]+)x", re.IGNORECASE)
        if beginning in pattern.sub("", rendered).lower():
            raise TemplateRefused("it cuts text apart that must stay whole")
        return pattern.sub(lambda found: self._kept[int(found[1])], rendered)


def conceal_messages(
    messages: Sequence[Message], controls: ControlStrings, placeholders: Placeholders
) -> list[dict[str, Any]]:
    """Copy `messages` with every string of the caller's made safe to render."""
    try:
        return [_concealed(message, controls, placeholders) for message in messages]
    except RecursionError:
        raise TemplateRefused("it is nested too deeply") from None


def _concealed(
    value: Any, controls: ControlStrings, placeholders: Placeholders, *, compared: bool = False
) -> Any:
    if isinstance(value, str):
        return controls.conceal(value, placeholders, compared=compared)
    if isinstance(value, Mapping):
        return {
            _concealed(key, controls, placeholders, compared=True): _concealed(
                item, controls, placeholders, compared=key in _COMPARED_KEYS
            )
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_concealed(item, controls, placeholders) for item in value]
    return value
