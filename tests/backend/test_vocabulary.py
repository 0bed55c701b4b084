"""Tokenizers built from GGUF metadata and checkpoints, and those that are refused."""

from pathlib import Path

import pytest
import tiktoken
from hypothesis import given

from backend.embedded.gguf import GgufFile
from backend.errors import TokenizerError
from backend.tokenizer import ChatTokenizer
from backend.vocabulary import LLAMA3_PIECES, vocabulary_from_gguf, vocabulary_from_pretrained
from tests.support.hard_texts import hard_texts
from tests.support.independent import independent_encoding
from tests.support.tiny_gguf import write_tiny_gguf


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    path = tmp_path_factory.mktemp("llama") / "tiny.gguf"
    write_tiny_gguf(path, architecture="llama", metadata={"tokenizer.ggml.pre": "llama-bpe"})
    return ChatTokenizer(vocabulary_from_gguf(path))


@pytest.fixture(scope="session")
def llama_reference(tiny_gguf: Path) -> tiktoken.Encoding:
    return independent_encoding(tiny_gguf, LLAMA3_PIECES)


@given(hard_texts)
def test_llama_vocabulary_agrees_with_an_independent_implementation(
    llama: ChatTokenizer, llama_reference: tiktoken.Encoding, text: str
) -> None:
    (ids,) = llama.encode_texts([text])
    assert ids == llama_reference.encode(text, disallowed_special=())
    assert llama.decode(ids) == text


def test_smollm_splits_digits_and_keeps_combining_accents(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "x.gguf", metadata={"tokenizer.ggml.pre": "smollm"})
    tokenizer = ChatTokenizer(vocabulary_from_gguf(path))
    (ids,) = tokenizer.encode_texts(["the 12\n\ne\u0301"])
    assert [tokenizer.decode([number]) for number in ids[:6]] == ["the", " ", "1", "2", "\n", "\n"]
    assert tokenizer.decode(ids) == "the 12\n\ne\u0301"


def test_template_gets_the_names_of_special_tokens(tiny_gguf: Path, tmp_path: Path) -> None:
    path = write_tiny_gguf(
        tmp_path / "x.gguf",
        metadata={"tokenizer.ggml.padding_token_id": 0, "tokenizer.ggml.bos_token_id": 10**6},
    )
    assert vocabulary_from_gguf(path).template.variables == {
        "eos_token": "<|im_end|>",
        "pad_token": "\u0100",
    }


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"tokenizer.ggml.pre": "martian"}, "'martian'"),
        ({"tokenizer.ggml.model": "llama"}, "'llama' / 'qwen2'"),
        ({"tokenizer.ggml.merges": "none"}, "incomplete"),
        ({"tokenizer.ggml.token_type": 3}, "incomplete"),
        ({"tokenizer.chat_template": 1}, "no chat template"),
    ],
)
def test_gguf_whose_tokenizer_cannot_be_built_is_refused(
    tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch, metadata: dict[str, object], said: str
) -> None:
    whole = GgufFile(tiny_gguf)
    whole.metadata |= metadata
    monkeypatch.setattr("backend.vocabulary.GgufFile", lambda path: whole)
    with pytest.raises(TokenizerError, match=said) as refused:
        vocabulary_from_gguf(tiny_gguf)
    assert str(tiny_gguf) in str(refused.value)


def test_damaged_merges_are_refused(tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = GgufFile(tiny_gguf)
    whole.metadata["tokenizer.ggml.merges"] = ["nosuchtoken neither"]
    monkeypatch.setattr("backend.vocabulary.GgufFile", lambda path: whole)
    with pytest.raises(TokenizerError, match="damaged"):
        vocabulary_from_gguf(tiny_gguf)


def test_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(TokenizerError, match="GGUF"):
        vocabulary_from_gguf(path)


def test_checkpoint_without_a_chat_template_is_refused(tiny_gguf: Path, tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast(tokenizer_object=vocabulary_from_gguf(tiny_gguf).tokenizer)
    fast.save_pretrained(tmp_path)
    with pytest.raises(TokenizerError, match="chat template"):
        vocabulary_from_pretrained(tmp_path)
