"""The smoke test: does a server answer as the contract says, and do its answers make sense?

It speaks to any server of this API over HTTP and knows nothing of the engine behind it.
"""

import time
from collections.abc import Callable

import httpx

from evaluations.smoke.checks import checks
from evaluations.smoke.report import Report
from evaluations.smoke.session import Session, SmokeError

__all__ = ["Report", "run"]


def run(client: httpx.Client, *, timeout: float, say: Callable[[str], None]) -> Report:
    """Put a server through the smoke test.

    Args:
        client: bound to the server's base URL, with the API key if one is needed.
        timeout: seconds for everything, waiting for the server included.
        say: tells whoever waits what is waited for; one line.

    Returns:
        The report; a server that never answers is in its `error`, not an exception.
    """
    report = Report(url=str(client.base_url))
    session = Session(client, time.monotonic() + timeout, say)
    try:
        for check in checks(session, report):
            report.checks.append(check)
    except SmokeError as error:
        report.error = str(error)
    except httpx.HTTPError as error:
        report.error = f"The connection broke: {type(error).__name__} {error}"
    except (KeyError, TypeError, AttributeError) as error:
        report.error = f"An answer is not of the contract's form: {type(error).__name__} {error}"
    return report
