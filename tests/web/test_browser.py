"""A browser on a real `vmgpu serve` with a simulated host: what a person sees, without ever loading the page again."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.factories import A_KEY, ADMIN_TOKEN

CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SOON = 60_000  # a simulated VM takes seconds; two shared cores may take longer

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="needs the distribution's Chromium"),
]


class Service:
    """A `vmgpu serve` of its own, which can be stopped and started again at the same address."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.bind = f"127.0.0.1:{free.getsockname()[1]}"
        self.url = f"http://{self.bind}"
        self.rest = httpx.Client(
            base_url=f"{self.url}/api/v1", headers={"Authorization": f"Bearer {ADMIN_TOKEN}"}, timeout=60
        )

    def start(self) -> None:
        """Start it, and wait until it answers."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("VMGPU_")}
        env |= {
            "VMGPU_DATA_DIR": str(self.folder / "data"),
            "VMGPU_BIND": self.bind,
            "VMGPU_ADMIN_TOKEN": ADMIN_TOKEN,
        }
        with (self.folder / "serve.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(Path(sys.executable).with_name("vmgpu")), "serve"], env=env, stdout=log, stderr=log
            )
        until = time.monotonic() + 60
        while time.monotonic() < until:
            assert self._process.poll() is None, (self.folder / "serve.log").read_text()
            try:
                if httpx.get(f"{self.url}/healthz").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.1)
        raise AssertionError("vmgpu serve did not answer within a minute")

    def stop(self) -> float:
        """Ask it to end; the answer is how many seconds that took."""
        began = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(timeout=60)
        return time.monotonic() - began

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """A call by REST, as the first admin."""
        answer = self.rest.request(method, path, json=body)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def sign_in(self, page: Page, name: str) -> None:
        """Open a one-time link, and press its button."""
        page.goto(self.ask("POST", f"/users/{name}/link")["url"])
        page.get_by_role("button", name="Sign in").click()
        expect(page).to_have_url(f"{self.url}/")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A service with one simulated A100, half of which is a flavor, and a person with a key."""
    running = Service(tmp_path)
    running.start()
    try:
        running.ask("POST", "/hosts", {"name": "sim", "uri": "fake://1xA100-40GB"})
        running.ask("POST", "/flavors", {"name": "half", "vcpus": 2, "memory": "4g", "disk": "10g", "fgpu": "0.5"})
        running.ask("POST", "/users", {"name": "anna"})
        running.ask("POST", "/keys?user=anna", {"keys": A_KEY})
        yield running
    finally:
        running.rest.close()
        running.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that fails the test where its own scripts or its policy complain."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    complaints: list[str] = []
    opened.on("pageerror", lambda bad: complaints.append(str(bad)))
    opened.on("console", lambda said: complaints.append(said.text) if "Security Policy" in said.text else None)
    yield opened
    context.close()
    assert complaints == []


def test_a_waiting_vm_starts_by_itself_when_another_is_released(service: Service, page: Page, tmp_path: Path) -> None:
    service.sign_in(page, "anna")
    page.evaluate("window.same = true")
    page.get_by_role("link", name="Request VMs").click()
    form = page.get_by_role("dialog")
    expect(form).to_contain_text("3g.20gb on A100-40GB: 50 % of memory, 43 % of compute")
    form.get_by_label("Name").fill("s{n}")
    form.get_by_label("How many").fill("3")
    form.get_by_label("Image").select_option(label="base")
    form.get_by_role("button", name="Request").click()
    expect(form).to_be_hidden()
    expect(page.locator("#toasts")).to_contain_text("s1 to s3 are requested")

    for name in ("s1", "s2"):
        expect(_vm(page, name)).to_have_attribute("data-state", "running", timeout=SOON)
        expect(page.locator("#fleet .slice").filter(has_text=name)).to_contain_text("3g.20gb")
    waiting = page.locator("#queue").locator("[data-vm=s3]")
    expect(waiting).to_have_attribute("data-state", "pending")
    expect(waiting).to_contain_text("position 1")
    expect(page.locator("#queue")).to_contain_text(
        re.compile(r"Both places for 3g\.20gb .* are taken; it starts by itself")
    )
    expect(page.locator("#fleet")).to_contain_text("simulated")
    expect(page.locator("#fleet")).to_contain_text("0 of 8 cells free")
    page.screenshot(path=tmp_path / "two-run-one-waits.png", full_page=True)

    page.get_by_role("link", name="Release s1").click()
    expect(form).to_contain_text("This cannot be undone")
    form.get_by_role("button", name="Release").click()
    expect(_vm(page, "s3")).to_have_attribute("data-state", "running", timeout=SOON)
    expect(_vm(page, "s1")).to_have_count(0, timeout=SOON)
    expect(page.locator("#queue")).to_have_count(0)
    expect(page.locator("#news")).to_contain_text(re.compile("s3 is |s1 is "))
    assert page.evaluate("window.same") is True  # nothing was loaded again


def test_news_leave_dialogs_details_and_focus_alone(service: Service, page: Page) -> None:
    _request(service, "s{n}", 2)
    service.sign_in(page, "anna")
    for name in ("s1", "s2"):
        expect(_vm(page, name)).to_have_attribute("data-state", "running", timeout=SOON)
    _vm(page, "s2").locator("summary").click()
    page.get_by_role("link", name="Extend s2").click()
    field = page.get_by_role("dialog").get_by_label("Longer by")
    field.fill("37m")
    service.ask("POST", "/vms/anna/s1/release")
    expect(_vm(page, "s1")).to_have_count(0, timeout=SOON)
    expect(field).to_be_focused()
    expect(field).to_have_value("37m")
    expect(_vm(page, "s2").locator("details")).to_have_attribute("open", "")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(page.get_by_role("link", name="Extend s2")).to_be_focused()


def test_a_long_list_is_narrowed_while_one_types(service: Service, page: Page) -> None:
    service.sign_in(page, "anna")
    field = page.get_by_label("Find VMs by name or owner")
    expect(page.locator("#vms")).to_contain_text("There are no VMs yet")
    expect(field).to_be_hidden()  # there is nothing to look through
    _request(service, "lab-{n}", 6)
    _request(service, "exam-{n}", 6)
    waiting = page.locator("#queue [data-vm]")
    expect(waiting).to_have_count(10, timeout=SOON)
    field.press_sequentially("exam-3")
    expect(waiting).to_have_count(1)
    expect(field).to_be_focused()
    expect(page.locator("#queue-title")).to_have_text("Queue 1 of 10")
    expect(page.locator("#news")).not_to_contain_text("is gone")
    service.ask("POST", "/vms/anna/exam-4/release")  # news come, and leave what is looked for as it is
    expect(page.locator("#queue-title")).to_have_text("Queue 1 of 9", timeout=SOON)
    expect(field).to_have_value("exam-3")
    expect(field).to_be_focused()
    field.fill("")
    expect(waiting).to_have_count(9)


def test_what_is_refused_is_said_in_the_dialog(service: Service, page: Page) -> None:
    service.sign_in(page, "anna")
    page.get_by_role("link", name="Request VMs").click()
    form = page.get_by_role("dialog")
    form.get_by_label("Name").fill("No Good")
    form.get_by_role("button", name="Request").click()
    expect(form.get_by_role("alert")).to_contain_text("small letters")
    expect(form.get_by_label("Name")).to_be_focused()
    form.get_by_label("Name").fill("good")
    form.get_by_role("button", name="Request").click()
    expect(form).to_be_hidden()
    expect(_vm(page, "good")).to_be_visible()


def test_a_long_form_keeps_its_buttons_in_sight_on_a_phone(service: Service, browser: Browser, tmp_path: Path) -> None:
    for number in range(8):
        size = {"name": f"f{number}", "vcpus": 2, "memory": "4g", "disk": "10g", "fgpu": "0.5"}
        service.ask("POST", "/flavors", size)
    context = browser.new_context(viewport={"width": 360, "height": 640}, has_touch=True, is_mobile=True)
    page = context.new_page()
    service.sign_in(page, "anna")
    page.get_by_role("link", name="Request VMs").click()
    form = page.get_by_role("dialog")
    for field in ("Name", "Lease"):
        form.get_by_label(field).focus()
        page.screenshot(path=tmp_path / f"{field}.png")
        for what in (form.get_by_role("button", name="Request"), form.get_by_role("link", name="Cancel")):
            expect(what).to_be_in_viewport(ratio=1)
            _is_on_top(what)
    _is_on_top(form.get_by_label("Lease"))
    context.close()


def test_the_page_outlives_a_restart_of_the_service(service: Service, page: Page) -> None:
    service.sign_in(page, "anna")
    expect(page.locator("#vms")).to_contain_text("There are no VMs yet")
    assert service.stop() < 4  # the open stream holds nothing up: after 5 s it would be cut off
    service.start()
    _request(service, "late", 1)
    expect(_vm(page, "late")).to_have_attribute("data-state", "running", timeout=SOON)


def test_it_fits_every_screen(service: Service, browser: Browser, tmp_path: Path) -> None:
    _request(service, "a-rather-long-name-for-a-machine-{n}", 3)
    for width in (360, 768, 1280):
        for scheme in ("light", "dark"):
            _look(service, browser, width, scheme, tmp_path / f"{width}-{scheme}")


def test_it_works_without_scripts(service: Service, browser: Browser) -> None:
    context: BrowserContext = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    service.sign_in(page, "anna")
    page.get_by_role("link", name="Request VMs").click()
    page.get_by_label("Name").fill("Wrong Name")
    page.get_by_role("button", name="Request").click()
    expect(page.get_by_role("alert")).to_contain_text("small letters")
    page.get_by_label("Name").fill("plain")
    page.get_by_role("button", name="Request").click()
    expect(page).to_have_url(f"{service.url}/")
    expect(_vm(page, "plain")).to_be_visible()
    _vm(page, "plain").locator("summary").click()  # while it waits, all but its line is folded away
    page.get_by_role("link", name="Release plain").click()
    page.get_by_role("button", name="Release").click()
    expect(page).to_have_url(f"{service.url}/")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading")).to_contain_text("You are not signed in")
    context.close()


def _vm(page: Page, name: str) -> Any:
    return page.locator(f"[data-vm={name}]")


def _is_on_top(one: Any) -> None:
    assert one.evaluate(
        """(one) => {
            const { left, top, width, height } = one.getBoundingClientRect();
            return one.contains(document.elementFromPoint(left + width / 2, top + height / 2));
        }"""
    )


def _request(service: Service, name: str, count: int) -> None:
    body = {"name": name, "count": count, "flavor": "half", "image": "base", "owner": "anna"}
    service.ask("POST", "/vms", body)


def _look(service: Service, browser: Browser, width: int, scheme: Any, pictures: Path) -> None:
    pictures.mkdir()
    phone = width == 360
    context = browser.new_context(
        viewport={"width": width, "height": 740}, color_scheme=scheme, has_touch=phone, is_mobile=phone
    )
    page = context.new_page()
    service.sign_in(page, "anna")
    expect(page.locator("[data-state=running]")).to_have_count(2, timeout=SOON)
    _fits(page, pictures / "page.png")
    for summary in page.locator("summary").all():
        summary.click()
    _fits(page, pictures / "details.png")
    expect(page.locator("#queue b")).to_have_count(1)
    # names of one request differ at their end: it must not be cut off
    assert page.locator("#queue b").evaluate_all("all => all.every((one) => one.scrollWidth <= one.clientWidth)")
    for verb in ("Release", "Extend", "Snapshot", "Stop"):
        page.get_by_role("link", name=re.compile(f"^{verb} a-rather.*-1$")).click()
        expect(page.get_by_role("dialog")).to_be_visible()
        _fits(page, pictures / f"{verb}.png", full_page=False)
        page.get_by_role("dialog").locator("[data-close]").click()
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground))) < 300) is (scheme == "dark")
    context.close()


def _fits(page: Page, picture: Path, *, full_page: bool = True) -> None:
    page.screenshot(path=picture, full_page=full_page)
    assert page.evaluate("document.documentElement.scrollWidth") <= page.evaluate(
        "document.documentElement.clientWidth"
    )
    # what a finger presses; a link inside a sentence is as high as its line
    small = page.evaluate(
        """() => [...document.querySelectorAll(".button, button, summary, input:not([type=radio]), select, .choice")]
            .filter((one) => one.checkVisibility() && one.getBoundingClientRect().height < 43.5)
            .map((one) => one.outerHTML.slice(0, 120))"""
    )
    assert small == []
