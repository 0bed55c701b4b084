"""A scriptable stand-in for SGLang on a loopback port.

It speaks the native protocol in the shapes seen on real servers and can play every fault a client
must survive (`faults.py` is the catalogue). In a test (fixture `fake_engine` in
`tests/conftest.py`)::

    fake_engine.play(Fault.NAN)                     # every call to /generate from now on
    fake_engine.play(Fault.HANG, times=1)           # only the next one
    fake_engine.play(Fault.ABORTED, when=lambda call: call.rid.endswith(".0002"))
    fake_engine.play(Fault.NAN, among=3)            # not before 3 calls are being answered
    fake_engine.play(Fault.NONE)                    # well-behaved again
    fake_engine.broken["/health"] = Fault.RESET     # any other route
    fake_engine.hang()                              # no route answers any more, then ...
    await fake_engine.die()                         # ... every connection and the port are gone
    await fake_engine.revive()                      # another one on the same port

    fake_engine.calls        # every /generate that arrived, as `Call`
    fake_engine.aborts       # rids posted to /abort_request
    fake_engine.disconnects  # rids of calls whose connection was closed before the answer
    fake_engine.running      # calls being answered now; `peak` is the most there ever were
    fake_engine.killed_by    # what arrived that would have killed the real engine

Log-probabilities are a log-softmax over pseudo-random logits that depend on nothing but the input
ids, so `FakeEngine.logprobs(ids)` says what any call must answer. `bias[label_id] = 5.0` makes
label ids heavy. Cached tokens behave like a radix cache with pages of `page` tokens.

`python -m tests.support.fake_engine --port N` runs one as a process; see `__main__.py`.
"""

from tests.support.fake_engine.engine import FakeEngine, serve_fake_engine
from tests.support.fake_engine.faults import Call, Fault

__all__ = ["Call", "FakeEngine", "Fault", "serve_fake_engine"]
