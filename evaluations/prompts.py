"""How a request is shown to the model: one shared prefix, and one suffix per question.

The state's messages are rendered once, with one more user turn that says what to do. Up to there
everything is the prefix; each question, the end of that turn and the marker are a suffix. The two
are encoded apart and give the same ids as the whole text encoded at once. Ids and keys of the
caller's never reach the model. No I/O; CPU work, for a thread.
"""

from bisect import bisect_left
from typing import Any, NamedTuple

from backend.chat_template import TemplateRefused
from backend.token_ids import TokenIds
from backend.tokenizer import ChatTokenizer, OpenTurn, TooManyTokens
from evaluations.admission import question_too_long, state_too_long
from evaluations.exceptions import Fault, InvalidRequest
from evaluations.question_text import characters, contents
from evaluations.questions import Content, EvaluationRequest
from evaluations.suffixes import Suffixes
from evaluations.transcripts import messages_of, transcript_of
from evaluations.wording import Wording


class Prompt(NamedTuple):
    """The token ids of a request.

    Attributes:
        prefix_ids: shared by all questions.
        suffix_ids: by question, in the request's order.
    """

    prefix_ids: TokenIds
    suffix_ids: tuple[TokenIds, ...]


def build_prompt(
    request: EvaluationRequest,
    *,
    tokenizer: ChatTokenizer,
    suffixes: Suffixes,
    wording: Wording,
    limit: int,
) -> Prompt:
    """Render and encode a request.

    Args:
        request: what is asked.
        tokenizer: the model's.
        suffixes: writes and encodes the questions.
        wording: what is said around the state.
        limit: tokens of prefix plus suffix; texts far over it are not encoded to their end.

    Raises:
        InvalidRequest: the messages cannot be shown, or the state or a question is far too long.
    """
    turn = render_state(request.state, tokenizer, wording)
    try:
        prefix_ids = TokenIds.of(tokenizer.encode(turn.before, limit=limit))
    except TooManyTokens as error:
        raise InvalidRequest([state_too_long(error.counted, limit)]) from None
    faults: list[Fault] = []
    suffix_ids: list[TokenIds] = []
    for question in request.questions:
        try:
            suffix_ids.append(suffixes.encode(question, turn.after, limit=limit))
        except TooManyTokens as error:
            faults.append(question_too_long(question.id, error.counted, limit))
    if faults:
        raise InvalidRequest(faults)
    return Prompt(prefix_ids, tuple(suffix_ids))


def length(request: EvaluationRequest) -> float:
    """Count the characters of a request's texts; infinite where one is structured content."""
    return characters([request.state]) + sum(
        characters(contents(question)) for question in request.questions
    )


def render_state(state: Content, tokenizer: ChatTokenizer, wording: Wording) -> OpenTurn:
    """Render a state and the task; the user's turn stays open for a question.

    Raises:
        InvalidRequest: the state's messages are malformed, or the model's template refuses them.
    """
    messages = messages_of(state)
    task = {"role": "user", "content": wording.task}
    try:
        return tokenizer.render([*messages, task])
    except TemplateRefused as error:
        raise InvalidRequest([_refused_message(state, messages, task, tokenizer, error)]) from None


def _refused_message(
    state: Content,
    messages: list[dict[str, Any]],
    task: dict[str, Any],
    tokenizer: ChatTokenizer,
    error: TemplateRefused,
) -> Fault:
    def fails(count: int) -> bool:
        try:
            tokenizer.render([*messages[:count], task])
        except TemplateRefused:
            return True
        return False

    # A message that breaks the template breaks it for every longer transcript, too.
    count = bisect_left(range(1, len(messages) + 1), True, key=fails)
    index = min(count, len(messages) - 1)
    transcript = transcript_of(state)
    loc = ("state",) if transcript is None else (*transcript[1], index)
    return Fault(
        "bad_message",
        loc,
        f"Message {index} cannot be shown by the model's chat template: {error}. Check its role, "
        "its place in the chat and its tool calls.",
    )
