"""Everything that shapes how a question is put to the model and how its answer is read.

Which form of answer that is, is found out by `evaluations.answer_forms`. No I/O.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property

from backend.config import Config
from backend.tokenizer import ChatTokenizer
from evaluations.labels import Label, labels_for
from evaluations.prompts import Prompt, build_prompt
from evaluations.questions import EvaluationRequest
from evaluations.suffixes import Suffixes
from evaluations.wording import Wording


@dataclass(frozen=True)  # no slots: what is worked out once is kept beside the fields
class Readout:
    """How questions are put to the model and its answers read, proven for one tokenizer.

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
    def _suffixes(self) -> Suffixes:
        return Suffixes(
            self.tokenizer,
            self.wording,
            self.marker,
            labels_for=lambda count: self._texts_and_ids(count)[0],
        )

    @cached_property
    def _texts_and_ids(self) -> Callable[[int], tuple[tuple[str, ...], tuple[int, ...]]]:
        return cache(self._given_out)

    def _given_out(self, count: int) -> tuple[tuple[str, ...], tuple[int, ...]]:
        labels = labels_for(self.labels, count)
        return tuple(label.text for label in labels), tuple(label.token_id for label in labels)

    def prompt(self, request: EvaluationRequest, *, limit: int) -> Prompt:
        """Show a request to the model; arguments and errors are those of `build_prompt`."""
        return build_prompt(
            request,
            tokenizer=self.tokenizer,
            suffixes=self._suffixes,
            wording=self.wording,
            limit=limit,
        )

    def label_ids(self, count: int) -> Sequence[int]:
        """The token ids of the labels of a question with `count` options, in their order."""
        return self._texts_and_ids(count)[1]


def readout_version(
    tokenizer: ChatTokenizer,
    config: Config,
    *,
    wording: Wording,
    marker: str,
    labels: Sequence[Label],
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
        "marker": marker,
        "labels": [asdict(label) for label in labels],
        "temperature": config.temperature,
    }
    canonical = json.dumps(shaped_by, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]
