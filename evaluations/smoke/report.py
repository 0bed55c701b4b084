"""What the smoke test saw, and the verdict that follows from it."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Check:
    """One statement about the server.

    Attributes:
        name: what should be true.
        kind: `mechanics` is the service, `meaning` the model.
        passed: whether it is true.
        found: what was seen.
    """

    name: str
    kind: Literal["mechanics", "meaning"]
    passed: bool
    found: str


@dataclass(slots=True)
class Report:
    """What the smoke test saw; times in seconds, Server-Timing in milliseconds."""

    url: str
    model: str | None = None
    wait: float | None = None
    startup_seconds: float | None = None
    latency_cold: float | None = None
    latency_warm: float | None = None
    server_timing: dict[str, float] = field(default_factory=dict)
    prefix_tokens: int | None = None
    cached_tokens: int | None = None
    usage: dict[str, int] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    error: str | None = None

    @property
    def faults(self) -> list[str]:
        """What is wrong with the service: mechanics that failed, and why the test ended early."""
        failed = [c for c in self.checks if c.kind == "mechanics" and not c.passed]
        faults = [f"It is not so that {c.name} ({c.found})." for c in failed]
        return faults if self.error is None else [*faults, self.error]

    @property
    def verdict(self) -> Literal["ok", "rough", "failed"]:
        """`failed`: the service is broken; `rough`: it works, but the model answers nonsense."""
        if self.faults:
            return "failed"
        return "ok" if all(c.passed for c in self.checks) else "rough"

    def as_json(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return {"verdict": self.verdict, **asdict(self)}
