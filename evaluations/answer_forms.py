"""Which form of answer the model gives: marker, label form and labels, measured at the start.

After `Answer:` some models put their probability on the letter with a space before it, after
`Answer:` and a line break on the bare letter. Asking for the wrong form renormalises noise, so all
forms are measured on a fixed question when the service starts. Where the model answers in the
bracket that options have, too, that form is taken: there it finds labels of two letters, which it
misses otherwise (docs/decisions/wording.md). Else it is the form with the most probability.
"""

import logging
import math
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from backend.config import Config
from backend.engine import Engine
from backend.errors import SetupError, TokenizerError
from backend.protocol import Call
from backend.token_ids import TokenIds
from backend.tokenizer import ChatTokenizer, OpenTurn, Piece
from evaluations.labels import LETTERS, Label, labels_for, verified_labels
from evaluations.prompts import render_state
from evaluations.question_text import option_count, question_text
from evaluations.questions import NoulQuestion
from evaluations.readout import Readout, readout_version
from evaluations.wording import DEFAULT_WORDING, Wording

logger = logging.getLogger(__name__)

UNIFORM_SHARE = 0.01
"""The least label mass, as a share of what the labels would get if all tokens were equally likely.

A model that answers puts thousands of times the uniform mass on its labels and a random one about
as much as uniform, so this catches only nonsense: labels the model cannot produce at all.
"""
LOW_MASS = 0.1
"""Below this label mass answers are rough, which is worth a warning."""

_PROBE_STATE = "It is raining."
_PROBE = NoulQuestion("probe", "Does the text speak of rain?")
# What may stand before a question, and what may follow; a merge across would show in one of them.
_BEFORE = ("x", "7", ".", ":", "。", "\u00e9", "e\u0301", "🙂", " ", "\n", "\r\n", "\t", ">")


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """One way to ask for a label.

    Attributes:
        name: for the log.
        after_marker: what is added to the wording's marker.
        label_prefix: what the label's token begins with.
    """

    name: str
    after_marker: str
    label_prefix: str


FORMS = (
    AnswerForm("bracketed", " [", ""),
    AnswerForm("spaced", "", " "),
    AnswerForm("bare", "\n", ""),
)
"""The first is taken unless the model hardly answers in it."""
PREFERRED_SHARE = 0.5
"""The least mass of the first form, as a share of the heaviest one's, for which it is taken."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An answer form with the labels that hold in it.

    Attributes:
        form: the form.
        marker: the whole text that opens the answer.
        labels: as many as are wanted, and if possible as many pairs besides the letters.
    """

    form: AnswerForm
    marker: str
    labels: tuple[Label, ...]


def candidates(
    tokenizer: ChatTokenizer, *, count: int, wording: Wording = DEFAULT_WORDING
) -> list[Candidate]:
    """Find the answer forms in which enough labels are single tokens. CPU work, for a thread.

    Args:
        tokenizer: the model's.
        count: labels wanted.
        wording: what is said around the caller's texts.

    Raises:
        TokenizerError: there is none, or question and prefix cannot be encoded apart.
    """
    prove_boundary(tokenizer, wording)
    after = render_state(_PROBE_STATE, tokenizer, wording).after
    found = [
        Candidate(
            form,
            wording.marker + form.after_marker,
            verified_labels(
                _plain_end(after) + wording.marker + form.after_marker,
                form.label_prefix,
                LETTERS + count,
                encode_texts=tokenizer.encode_texts,
                decode=tokenizer.decode,
            ),
        )
        for form in FORMS
    ]
    enough = [candidate for candidate in found if len(candidate.labels) >= count]
    if not enough:
        most = max(len(candidate.labels) for candidate in found)
        raise TokenizerError(
            f"The tokenizer of {tokenizer.name} has only {most} labels that are one token, but "
            f"OPENJEV_MAX_ANSWERS is {count}. Set it to at most {most}, or use another model."
        )
    return enough


def prove_boundary(tokenizer: ChatTokenizer, wording: Wording) -> None:
    """Check that the tokenizer never merges across the place where prefix and suffix meet.

    Raises:
        TokenizerError: it does.
    """
    for text in _BEFORE:
        for task in (wording.task, text + wording.task):
            before, after = task, wording.question + text
            apart = [ids for part in tokenizer.encode_texts([before, after]) for ids in part]
            if tokenizer.encode_texts([before + after])[0] != apart:
                raise TokenizerError(
                    f"The tokenizer of {tokenizer.name} merges the end of the task with the "
                    "question after it, so that a state could not be shared by questions. Use "
                    "another model."
                )


def _plain_end(pieces: Sequence[Piece]) -> str:
    """The text after the last control token."""
    ending = takewhile(lambda piece: isinstance(piece, str), reversed(pieces))
    return "".join(reversed([str(piece) for piece in ending]))


async def choose_readout(
    found: Sequence[Candidate],
    tokenizer: ChatTokenizer,
    engine: Engine,
    config: Config,
    *,
    deadline: float,
    wording: Wording = DEFAULT_WORDING,
) -> Readout:
    """Ask the model the probe in every form and take one it answers in.

    Args:
        found: what `candidates` returned.
        tokenizer: the model's.
        engine: the engine.
        config: names the model.
        deadline: of all calls together; loop time in seconds.
        wording: what is said around the caller's texts.

    Raises:
        TokenizerError: the model answers in none of them.
        SetupError: the longest input allowed is too short for any.
        EngineError: a call failed.
    """
    turn = render_state(_PROBE_STATE, tokenizer, wording)
    masses = [
        await _label_mass(candidate, turn, tokenizer, engine, config, deadline, wording)
        for candidate in found
    ]
    mass, heaviest = masses[0], max(masses)
    if found[0].form is not FORMS[0] or mass < PREFERRED_SHARE * heaviest:
        mass = heaviest
    chosen = found[masses.index(mass)]
    named = ", ".join(f"{c.form.name} {m:.3g}" for c, m in zip(found, masses, strict=True))
    logger.info("Label mass on the probe: %s; taking %s.", named, chosen.form.name)
    if mass < UNIFORM_SHARE * 2 / tokenizer.vocabulary_size:
        raise TokenizerError(
            f"The model puts a probability of {mass:.2g} on the labels of a simple question, which "
            f"is next to none: the tokenizer of {tokenizer.name} does not belong to it, or it "
            "cannot answer in this form. Use another model."
        )
    if mass < LOW_MASS:
        logger.warning("The model hardly answers with labels (mass %.2g): expect noise.", mass)
    version = readout_version(
        tokenizer, config, wording=wording, marker=chosen.marker, labels=chosen.labels
    )
    return Readout(tokenizer, wording, chosen.marker, chosen.labels, mass, version)


async def _label_mass(
    candidate: Candidate,
    turn: OpenTurn,
    tokenizer: ChatTokenizer,
    engine: Engine,
    config: Config,
    deadline: float,
    wording: Wording,
) -> float:
    labels = labels_for(candidate.labels, option_count(_PROBE))
    texts = [label.text for label in labels]
    asked = question_text(_PROBE, wording, texts)
    input_ids = tokenizer.encode([*turn.before, asked, *turn.after, candidate.marker])
    if len(input_ids) >= config.max_input_tokens:
        raise SetupError(
            f"OPENJEV_MAX_INPUT_TOKENS is {config.max_input_tokens}, but even a simple question "
            f"takes {len(input_ids)} tokens, most of them for instructions. Raise it."
        )
    # several servers may start at once on one engine, which knows its calls by these names
    name = f"openjev.probe.{uuid.uuid4().hex}"
    call = Call(TokenIds.of(input_ids), [label.token_id for label in labels], name)
    (answer,) = await engine.label_logprobs([call], deadline=deadline, routing_key=name)
    return math.fsum(map(math.exp, answer.logprobs))
