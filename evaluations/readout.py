"""How answers are read off the model: marker, label form and labels, proven for this tokenizer.

After `Answer:` some models put their probability on the letter with a space before it, after
`Answer:` and a line break on the bare letter. Asking for the wrong form renormalises noise, so all
forms are measured on a fixed question when the service starts. Where the model answers in the
bracket that options have, too, that form is taken: there it finds labels of two letters, which it
misses otherwise (docs/decisions/wording.md). Else it is the form with the most probability.
"""

import hashlib
import json
import logging
import math
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from itertools import takewhile

from backend.config import Config
from backend.engine import Engine
from backend.errors import TokenizerError
from backend.tokenizer import ChatTokenizer, OpenTurn, Piece
from evaluations.labels import LETTERS, Label, labels_for, verified_labels
from evaluations.prompts import render_state, suffix_pieces
from evaluations.question_text import option_count
from evaluations.questions import NoulQuestion
from evaluations.suffixes import Suffixes
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


@dataclass(frozen=True)  # no slots: what is worked out once is kept beside the fields
class Readout:
    """Everything that shapes how a question is put to the model and its answer read.

    Attributes:
        tokenizer: the model's.
        wording: what is said around the caller's texts.
        marker: opens the assistant's answer.
        labels: proven at the end of that marker, in the order they are given out.
        label_mass: probability the model put on the labels of the probe.
        version: short hash of all of this and of the model.
    """

    tokenizer: ChatTokenizer
    wording: Wording
    marker: str
    labels: tuple[Label, ...]
    label_mass: float
    version: str

    @cached_property
    def suffixes(self) -> Suffixes:
        """Encodes questions, and remembers them."""
        return Suffixes(self.tokenizer)

    @cached_property
    def _chosen(self) -> Callable[[int], tuple[tuple[str, ...], tuple[int, ...]]]:
        return cache(self._choose)

    def _choose(self, count: int) -> tuple[tuple[str, ...], tuple[int, ...]]:
        labels = labels_for(self.labels, count)
        return tuple(label.text for label in labels), tuple(label.token_id for label in labels)

    def label_texts(self, count: int) -> Sequence[str]:
        """The labels of a question with `count` options, as the options show them."""
        return self._chosen(count)[0]

    def label_ids(self, count: int) -> Sequence[int]:
        """The same labels as token ids."""
        return self._chosen(count)[1]


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
    client: Engine,
    config: Config,
    *,
    deadline: float,
    wording: Wording = DEFAULT_WORDING,
) -> Readout:
    """Ask the model the probe in every form and take one it answers in.

    Args:
        found: what `candidates` returned.
        tokenizer: the model's.
        client: the engine.
        config: names the model.
        deadline: of all calls together; loop time in seconds.
        wording: what is said around the caller's texts.

    Raises:
        TokenizerError: the model answers in none of them.
        EngineError: a call failed.
    """
    turn = render_state(_PROBE_STATE, tokenizer, wording)
    masses = [
        await _label_mass(candidate, turn, tokenizer, client, deadline, wording)
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
    version = readout_version(chosen, tokenizer, config, wording)
    return Readout(tokenizer, wording, chosen.marker, chosen.labels, mass, version)


async def _label_mass(
    candidate: Candidate,
    turn: OpenTurn,
    tokenizer: ChatTokenizer,
    client: Engine,
    deadline: float,
    wording: Wording,
) -> float:
    labels = labels_for(candidate.labels, option_count(_PROBE))
    texts = [label.text for label in labels]
    suffix = suffix_pieces(_PROBE, turn, wording=wording, marker=candidate.marker, labels=texts)
    # several servers may start at once on one engine, which knows its calls by these names
    name = f"openjev.probe.{uuid.uuid4().hex}"
    answer = await client.label_logprobs(
        tokenizer.encode([*turn.before, *suffix]),
        [label.token_id for label in labels],
        rid=name,
        deadline=deadline,
        routing_key=name,
    )
    return math.fsum(map(math.exp, answer.logprobs))


def readout_version(
    chosen: Candidate, tokenizer: ChatTokenizer, config: Config, wording: Wording
) -> str:
    """Hash everything that shapes a probability: 12 hexadecimal digits.

    Weights that `OPENJEV_MODEL` names count by that name: what a local path holds is not looked at.
    """
    weights = config.selected.weights
    shaped_by = {
        "model": config.model or (weights.sha256 if weights else config.served_model_name),
        "revision": config.revision,
        "template": tokenizer.template.source,
        "variables": dict(tokenizer.template.variables),
        "wording": asdict(wording),
        "marker": chosen.marker,
        "labels": [asdict(label) for label in chosen.labels],
        "temperature": config.temperature,
    }
    canonical = json.dumps(shaped_by, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]
