"""Which implementation encodes plain text: the faster one only where it is there and agrees."""

import logging
import sys
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from backend.plain_encoder import PROBES, plain_encoder, probe_texts

TEXTS = ["Is it so?", "", " 12\n"]


@pytest.fixture(scope="module")
def plain() -> Tokenizer:
    """Trained on the spot, and as picky about spaces and digits as a real one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(probe_texts(), trainer)
    return tokenizer


@pytest.fixture
def install(monkeypatch):
    """Put something in the place of fastokens."""

    def put(encode, *, take_over=lambda json: None):
        class FastTokenizer:
            @staticmethod
            def from_json_str(json):
                take_over(json)
                return FastTokenizer()

            def encode(self, text, add_special_tokens):
                return SimpleNamespace(ids=encode(text))

        monkeypatch.setitem(sys.modules, "fastokens", SimpleNamespace(Tokenizer=FastTokenizer))

    return put


def exactly(plain: Tokenizer, text: str) -> list[int]:
    return plain.encode(text, add_special_tokens=False).ids


def test_without_fastokens_the_tokenizer_itself_encodes(plain, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastokens", None)
    assert plain_encoder(plain, "x")(TEXTS) == [exactly(plain, text) for text in TEXTS]


def test_a_faster_one_that_agrees_is_used(plain, install, caplog):
    asked = []

    def encode(text):
        asked.append(text)
        return exactly(plain, text)

    install(encode)
    with caplog.at_level(logging.INFO):
        encoder = plain_encoder(plain, "x")
    assert len(asked) == PROBES
    assert "agrees" in caplog.text
    assert encoder(TEXTS) == [exactly(plain, text) for text in TEXTS]
    assert asked[PROBES:] == TEXTS


@pytest.mark.parametrize("among", [0, PROBES // 2, PROBES - 1])
def test_a_single_difference_rules_it_out(plain, install, caplog, among):
    odd = probe_texts()[among]
    install(lambda text: exactly(plain, text) + [0] * (text == odd))
    encoder = plain_encoder(plain, "tiny/model")
    assert "tiny/model" in caplog.text
    assert encoder([odd]) == [exactly(plain, odd)]


def test_one_that_fails_is_not_used(plain, install):
    install(lambda text: 1 // 0)
    assert plain_encoder(plain, "x")(TEXTS) == [exactly(plain, text) for text in TEXTS]


def test_one_that_cannot_take_the_tokenizer_over_is_not_used(plain, install):
    install(lambda text: [], take_over=lambda json: 1 // 0)
    assert plain_encoder(plain, "x")(TEXTS) == [exactly(plain, text) for text in TEXTS]


def test_it_is_handed_the_whole_tokenizer(plain, install):
    handed = []
    install(lambda text: exactly(plain, text), take_over=handed.append)
    plain_encoder(plain, "x")
    assert Tokenizer.from_str(handed[0]).encode("Is it so?").ids == plain.encode("Is it so?").ids


def test_probes_are_the_same_every_time_and_differ_from_each_other():
    assert probe_texts() == probe_texts()
    assert len(set(probe_texts())) > 0.9 * PROBES
