"""The pages in a real browser: they render, send the example, and call no other host."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.loopback import free_port, wait_until_healthy

pytestmark = [pytest.mark.browser, pytest.mark.process]

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SCREENS = {"desktop": (1360, 900), "phone": (390, 844)}
EXAMPLE_IDS = set(json.loads((ROOT / "examples" / "request.json").read_text())["questions"])

if CHROMIUM is None:
    pytest.skip("Chromium is not installed (Debian: chromium)", allow_module_level=True)

from playwright.sync_api import Browser, Page, Response, expect, sync_playwright  # noqa: E402


@pytest.fixture(scope="module")
def site(tiny_gguf: Path) -> Iterator[str]:
    """The whole site under plain Daphne, in front of a stand-in for the engine."""
    engine, public = free_port(), free_port()
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("OPENJEV_")},
        "OPENJEV_BACKEND_URL": f"http://127.0.0.1:{engine}",
        "OPENJEV_MODEL": str(tiny_gguf),
        "OPENJEV_SERVED_MODEL_NAME": "tiny/fake",
    }
    engine_command = [sys.executable, "-m", "tests.support.fake_engine", "--port", str(engine)]
    engine_command += ["--served-model-name", "tiny/fake", "--context-length", "40000"]
    site_command = [sys.executable, "-m", "daphne", "-v", "0", "-b", "127.0.0.1"]
    site_command += ["-p", str(public), "openjev_site.asgi:application"]
    commands = [engine_command, site_command]
    processes = [subprocess.Popen(command, cwd=ROOT, env=environ) for command in commands]
    try:
        wait_until_healthy(f"http://127.0.0.1:{public}", processes[1])
        yield f"http://127.0.0.1:{public}"
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(10)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture(params=SCREENS)
def page(request: pytest.FixtureRequest, browser: Browser, site: str) -> Iterator[Page]:
    """A page that fails its test on a foreign request, a script error or a lost file."""
    width, height = SCREENS[request.param]
    phone = request.param == "phone"
    context = browser.new_context(
        base_url=site,
        viewport={"width": width, "height": height},
        is_mobile=phone,
        has_touch=phone,
    )
    opened = context.new_page()
    asked: list[str] = []
    wrong: list[str] = []
    opened.on("request", lambda sent: asked.append(sent.url))
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    yield opened
    context.close()
    hosts = {parts.netloc for url in asked if (parts := urlsplit(url)).scheme.startswith("http")}
    assert hosts == {urlsplit(site).netloc}
    assert wrong == []


def fits(page: Page) -> bool:
    """Whether nothing has to be scrolled sideways."""
    root = "document.documentElement"
    return bool(page.evaluate(f"{root}.scrollWidth <= {root}.clientWidth"))


def is_evaluation(response: Response) -> bool:
    return response.url.endswith("/v1/systemone") and response.request.method == "POST"


def test_scalar_sends_the_example_and_shows_the_answer(page: Page) -> None:
    page.goto("/")
    expect(page).to_have_title("OpenJev: API reference")
    expect(page.get_by_role("heading", name="OpenJev", exact=True)).to_be_visible()
    assert fits(page)
    page.get_by_role("button", name="Test Request").first.click()
    with page.expect_response(is_evaluation) as answered:
        page.get_by_role("button", name="Send").first.click()
    assert set(json.loads(answered.value.request.post_data or "")["questions"]) == EXAMPLE_IDS
    assert answered.value.status == 200
    assert set(answered.value.json()["answers"]) == EXAMPLE_IDS
    expect(page.get_by_text("probabilities").last).to_be_visible()


def test_swagger_sends_the_example_and_shows_the_answer(page: Page) -> None:
    page.goto("/docs")
    expect(page).to_have_title("OpenJev: Swagger UI")
    example = page.locator("textarea.body-param__text")
    expect(example).to_be_visible()
    assert set(json.loads(example.input_value())["questions"]) == EXAMPLE_IDS
    assert fits(page)
    with page.expect_response(is_evaluation) as answered:
        page.get_by_role("button", name="Execute").click()
    assert answered.value.status == 200
    shown = page.locator(".live-responses-table .response-col_description pre").first
    expect(shown).to_contain_text('"probabilities"')


def test_an_edited_example_is_what_is_sent(page: Page) -> None:
    page.goto("/docs")
    example = page.locator("textarea.body-param__text")
    request = json.loads(example.input_value())
    request["questions"] = {"다른 질문": {"type": "noul", "instructions": "Is it short?"}}
    example.fill(json.dumps(request, ensure_ascii=False))
    with page.expect_response(is_evaluation) as answered:
        page.get_by_role("button", name="Execute").click()
    assert list(answered.value.json()["answers"]) == ["다른 질문"]


def test_the_form_posts_and_shows_the_answer(page: Page) -> None:
    page.goto("/v1/systemone")
    body = page.locator("textarea[name=_content]")
    assert set(json.loads(body.input_value())["questions"]) == EXAMPLE_IDS
    with page.expect_response(is_evaluation) as answered:
        page.get_by_role("button", name="POST").click()
    assert answered.value.status == 200
    page.wait_for_load_state()
    expect(page.locator("pre.prettyprint").last).to_contain_text('"probabilities"')


def test_the_pages_lead_to_each_other(page: Page) -> None:
    page.goto("/")
    page.get_by_role("link", name="Swagger").click()
    expect(page).to_have_title("OpenJev: Swagger UI")
    page.get_by_role("link", name="OpenJev").first.click()
    expect(page).to_have_title("OpenJev: API reference")
    page.get_by_role("link", name="Form").click()
    expect(page).to_have_title("OpenJev: System One")
    assert fits(page)
    page.get_by_role("link", name="Reference").click()
    expect(page).to_have_title("OpenJev: API reference")
