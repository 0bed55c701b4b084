"""How a question is written: its instructions, then one option to a line behind its label.

A choice's keys are the caller's business and stay hidden, unless an option has no description.
Further lines of any text are indented, so that none can pass for an option of its own. Pure.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from math import inf

from evaluations.questions import (
    ChoiceQuestion,
    Content,
    NoulQuestion,
    Question,
    ScoreQuestion,
)
from evaluations.transcripts import Loc, content_text
from evaluations.wording import Wording

_INDENT = "   "


def question_text(question: Question, wording: Wording, labels: Sequence[str]) -> str:
    """Write a question and its options.

    Args:
        question: what is asked; its id is not shown.
        wording: what is said around the caller's texts.
        labels: texts of the labels, one for each option.

    Raises:
        InvalidRequest: a text is nested too deeply to be written out.
    """
    loc: Loc = ("questions", question.id)
    asked = _text(question.instructions, (*loc, "instructions"))
    options: Iterable[str]
    if isinstance(question, NoulQuestion):
        default, options = wording.asks_noul, _sides(question, asked, wording, loc)
    elif isinstance(question, ChoiceQuestion):
        default, options = wording.asks_choice, _choices(question, loc)
    else:
        default, options = wording.asks_score, _levels(question, wording, loc)
    template = wording.option if len(labels[0]) == 1 else wording.option_of_many
    lines = [wording.question + _indented(asked or default)]
    lines += [
        template.format(label=label, text=_indented(text))
        for label, text in zip(labels, options, strict=True)
    ]
    return "\n".join(lines)


def contents(question: Question) -> tuple[Content | None, ...]:
    """Everything a question shows: its kind, then its texts; alike only where what is shown is."""
    if isinstance(question, NoulQuestion):
        return ("noul", question.instructions, question.true, question.false)
    if isinstance(question, ChoiceQuestion):
        return ("choice", question.instructions, *chain.from_iterable(question.options.items()))
    return ("score", question.instructions, *question.levels)


def characters(shown: Iterable[Content | None]) -> float:
    """Count the characters of texts; infinite where one is structured content."""
    total: float = 0
    for content in shown:
        if isinstance(content, str):
            total += len(content)
        elif content is not None:
            return inf
    return total


def option_count(question: Question) -> int:
    """How many labels a question needs."""
    if isinstance(question, NoulQuestion):
        return 2
    return len(question.options if isinstance(question, ChoiceQuestion) else question.levels)


def _sides(
    question: NoulQuestion, asked: str | None, wording: Wording, loc: Loc
) -> tuple[str, str]:
    yes = _text(question.true, (*loc, "criteria", "true"))
    no = _text(question.false, (*loc, "criteria", "false"))
    if asked is None:  # then only the described side says what the question is about
        yes = yes or wording.other_holds
        no = no or wording.other_holds
    return (
        wording.yes_described.format(text=yes) if yes else wording.yes,
        wording.no_described.format(text=no) if no else wording.no,
    )


def _choices(question: ChoiceQuestion, loc: Loc) -> list[str]:
    return [
        _text(description, (*loc, "criteria")) or key
        for key, description in question.options.items()
    ]


def _levels(question: ScoreQuestion, wording: Wording, loc: Loc) -> list[str]:
    count = len(question.levels)
    return [
        _text(level, (*loc, "criteria", number - 1))
        or wording.level.format(number=number, count=count)
        for number, level in enumerate(question.levels, start=1)
    ]


def _text(content: Content | None, loc: Loc) -> str | None:
    """Write content out; `None` where it says nothing: null, or text with nothing visible."""
    if content is None or (isinstance(content, str) and not content.strip()):
        return None
    return content_text(content, loc)


def _indented(text: str) -> str:
    return f"\n{_INDENT}".join(text.splitlines())
