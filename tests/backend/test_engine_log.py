"""Lines as the real engines write them."""

import logging

import pytest

from backend.engine_log import Phase, phase_of, read_line

ACCESS = '127.0.0.1:54556 - "POST /generate HTTP/1.1" 200 OK'


@pytest.mark.parametrize(
    ("line", "level", "text"),
    [
        ("plain", logging.INFO, "plain"),
        ("ERROR broken: a part", logging.ERROR, "broken: a part"),
        ("INFORMAL line", logging.INFO, "INFORMAL line"),
        ("INFO", logging.INFO, "INFO"),
        ("[2026-11-30 00:30:01] Load weight begin.", logging.INFO, "Load weight begin."),
        ("[2026-11-30 00:30:01 TP3] KV Cache", logging.INFO, "TP3 KV Cache"),
        ("[2026-11-30 00:30:01 DP1 TP0] WARNING: slow", logging.WARNING, "DP1 TP0 slow"),
        ("[not a time] text", logging.INFO, "[not a time] text"),
        (
            "[2026-11-30 00:27:58] ERROR:    [Errno 98] address already in use",
            logging.ERROR,
            "[Errno 98] address already in use",
        ),
        (
            "\x1b[2m2026-11-30T00:30:02.57Z\x1b[0m \x1b[33m WARN\x1b[0m \x1b[2mopenai\x1b[0m: no",
            logging.WARNING,
            "openai: no",
        ),
        ("a\x1b]0;title\x07b\x08c", logging.INFO, "a]0;titlebc"),
        ("tabs\tstay", logging.INFO, "tabs\tstay"),
    ],
)
def test_time_level_and_control_characters_are_taken_off(line, level, text):
    assert read_line(line) == (level, text)


@pytest.mark.parametrize(
    ("line", "level"),
    [
        (f"[2026-11-30 00:27:59] INFO:     {ACCESS}", logging.DEBUG),
        (f"2026-11-30T00:30:04.02Z  INFO sglang_server::api_server::log: {ACCESS}", logging.DEBUG),
        (f"INFO:     {ACCESS.replace('200 OK', '503 Unavailable')}", logging.INFO),
        ("[2026-11-30 00:27:59] Prefill batch, #new-seq: 1, #new-token: 13", logging.DEBUG),
        ("[2026-11-30 00:27:59] Decode batch, #running-req: 1", logging.DEBUG),
    ],
)
def test_what_is_written_for_every_request_is_for_debugging(line, level):
    assert read_line(line)[0] == level


@pytest.mark.parametrize(
    ("text", "phase"),
    [
        ("Using model weights format ['*.safetensors']", Phase.DOWNLOADING),
        ("Found local HF snapshot for Qwen/Qwen3-8B at /hub; skipping", Phase.LOADING),
        ("Multi-thread loading shards:  33% Completed | 1/3 [00:05<00:10]", Phase.LOADING),
        ("DP1 TP0 Loading safetensors checkpoint shards:   0% Completed", Phase.LOADING),
        ("Loading weights from qwen.gguf", Phase.LOADING),
        ("Capture decode CUDA graph begin. backend=full, bs=[1, 2]", Phase.CAPTURING),
        ("Running FlashInfer autotune with cache: /cache", Phase.CAPTURING),
        ("Uvicorn running on http://127.0.0.1:31101 (Press CTRL+C to quit)", Phase.WARMING_UP),
        ("SGLANG_RUST_SERVER enabled, Rust server listen on 127.0.0.1:31101", Phase.WARMING_UP),
        ("The server is fired up and ready to roll!", Phase.CHECKING),
        ("Engine ready: tiny.gguf, 1 MB of weights, 2 threads", Phase.CHECKING),
        ("Load weight begin. avail mem=21.49 GB", None),
        ("Load weight end. elapsed=0.22 s, type=Qwen3ForCausalLM", None),
        ("Disable prefill CUDA graph because cuda_graph_config resolved", None),
        ("server_args={'model_path': 'Loading weights from', 'disable_autotune': 1}", None),
    ],
)
def test_phases_are_recognised_by_the_line_they_begin_with(text, phase):
    assert phase_of(text) is phase
