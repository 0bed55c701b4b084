"""SGLang's flags: however they are spelt, ours are replaced and the harmful refused."""

import pytest

from backend.profiles import PROFILES
from backend.sglang.flags import FlagRefused, arguments, read_flags, require_harmless


def harmless(*words):
    flags = read_flags(words)
    require_harmless(flags)
    return flags


def test_flags_are_read_and_written_back():
    words = ["--enable-metrics", "--lora-paths", "one", "two", "--watchdog-timeout", "-1"]
    assert arguments(read_flags(words)) == words


def test_values_after_an_equals_sign_may_hold_another():
    assert read_flags(["--json-model-override-args={}", "--x=a=b"]) == {
        "--json-model-override-args": ("{}",),
        "--x": ("a=b",),
    }


def test_of_a_flag_given_twice_the_last_counts():
    assert read_flags(["--tp-size", "1", "--dtype", "half", "--tp-size=2"]) == {
        "--tp-size": ("2",),
        "--dtype": ("half",),
    }


@pytest.mark.parametrize(
    ("words", "read"),
    [
        (["--tp", "4"], {"--tp-size": ("4",)}),
        (["--tensor-parallel-size=4"], {"--tp-size": ("4",)}),
        (["--mamba-scheduler-strategy", "auto"], {"--mamba-radix-cache-strategy": ("auto",)}),
        (["--disable-piecewise-cuda-graph"], {"--cuda-graph-backend-prefill": ("disabled",)}),
        (["--kv-cache-d", "auto"], {"--kv-cache-dtype": ("auto",)}),
        (["--log-level", "info"], {"--log-level": ("info",)}),
        (["--log-level-h", "info"], {"--log-level-http": ("info",)}),
        (["--unheard-of"], {"--unheard-of": ()}),
    ],
)
def test_every_spelling_of_a_flag_is_that_flag(words, read):
    assert read_flags(words) == read


@pytest.mark.parametrize(
    ("words", "named", "advice"),
    [
        (["--disable-radix-cache"], "--disable-radix-cache", "read the whole text anew"),
        (["--disable-radix"], "--disable-radix-cache", "read the whole text anew"),
        (["--allow-auto-truncate"], "--allow-auto-truncate", "cut and judged"),
        (["--host", "0.0.0.0"], "--host", "Only the API"),  # noqa: S104 - refused
        (["--host=::"], "--host", "Only the API"),
        (["--port=1"], "--port", "--backend-port"),
        (["--model", "x"], "--model-path", "OPENJEV_MODEL"),
        (["--model-path", "x"], "--model-path", "OPENJEV_MODEL"),
        (["--revision", "x"], "--revision", "OPENJEV_REVISION"),
        (["--tokenizer-path", "x"], "--tokenizer-path", "OPENJEV_MODEL"),
        (["--served-model-name", "x"], "--served-model-name", "OPENJEV_SERVED_MODEL_NAME"),
        (["--api-key", "x"], "--api-key", "OPENJEV_BACKEND_API_KEY"),
        (["--admin-api-key", "x"], "--admin-api-key", "abort"),
        (["--config", "x.yaml"], "--config", "write its flags here"),
        (["--speculative-algorithm", "EAGLE"], "--speculative-algorithm", "speculate"),
        (["--decoupled-spec-role=drafter"], "--decoupled-spec-role", "speculate"),
        (["--skip-tokenizer-init"], "--skip-tokenizer-init", "tokenizer"),
        (["--is-embedding"], "--is-embedding", "log-probabilities"),
        (["--grpc-mode"], "--smg-grpc-mode", "HTTP"),
        (["--ssl-keyfile", "x"], "--ssl-keyfile", "TLS"),
    ],
)
def test_a_flag_that_would_break_the_product_is_refused_with_the_reason(words, named, advice):
    with pytest.raises(FlagRefused, match=rf"The SGLang flag {named} cannot be used\. ") as refused:
        harmless("--dtype", "half", *words)
    assert advice in str(refused.value)


@pytest.mark.parametrize("spelling", ["--max-queued-requests", "--max-queued"])
def test_a_queue_that_may_be_full_is_only_for_the_front_that_says_so(spelling):
    flags = read_flags([spelling, "8"])
    require_harmless(flags, frontend="python")
    with pytest.raises(FlagRefused, match=r"--max-queued-requests .* never answers .* --frontend"):
        require_harmless(flags, frontend="rust")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_host_on_loopback_is_harmless(host):
    assert harmless("--host", host) == {"--host": (host,)}


def test_a_value_before_any_flag_is_told():
    with pytest.raises(FlagRefused, match=r"'0\.8' is no flag"):
        read_flags(["0.8"])


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_profiles_have_only_harmless_flags(profile):
    harmless(*profile.sglang_flags)
