"""The page at /, in a real browser: a recording goes in, words appear, are heard, and go out as files."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import RATE, ClickBackend, click_model, clicks, write_wav
from http_support import CLICKS, Site, serving, until
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from support import CHROMEDRIVER, CHROMIUM, data, golden

from transduce.server.settings import Settings
from transduce.transcriber import load_model

pytestmark = pytest.mark.browser

OPTIONS = (
    # A headless browser that runs as root and talks to nobody but the page's server.
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    # Its microphone beeps, and nobody is asked whether it may.
    *("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"),
    *("--autoplay-policy=no-user-gesture-required", "--window-size=1000,900"),
)
RECORDING = data("audio/u01.wav")
WORDS = golden("nemo-hybrid")["utterances"][1]["text"].split()


class Page:
    """What a person sees and does."""

    def __init__(self, driver: webdriver.Chrome, folder: Path) -> None:
        self.driver = driver
        self.folder = folder
        """Where downloads go."""

    def find(self, name: str) -> WebElement:
        return self.driver.find_element(By.ID, name)

    def texts(self, selector: str) -> list[str]:
        return [element.text for element in self.driver.find_elements(By.CSS_SELECTOR, selector)]

    @property
    def words(self) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, ".word")

    @property
    def state(self) -> str:
        return str(self.driver.execute_script("return document.body.dataset.state"))

    def player(self, name: str) -> Any:
        return self.driver.execute_script(f"return document.getElementById('player').{name}")

    def choose(self, path: Path) -> None:
        self.find("file").send_keys(str(path))

    def until(self, holds: Callable[[], bool]) -> None:
        until(holds, seconds=20.0)

    def until_done(self) -> None:
        self.until(lambda: self.state == "done")

    def download(self, name: str) -> str:
        """Press a download's button; the content of the file that it gives."""
        self.driver.find_element(By.CSS_SELECTOR, f"[data-document={name}]").click()
        self.until(lambda: [path.suffix for path in self.folder.iterdir()] == [f".{name}"])
        (path,) = self.folder.iterdir()
        content = path.read_text(encoding="utf-8")
        path.unlink()
        return content

    def press(self, *keys: str) -> None:
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def complaints(self) -> list[str]:
        """What the browser itself found wrong: scripts, security policy, files not found."""
        log: list[dict[str, Any]] = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in log if entry["level"] in ("SEVERE", "WARNING")]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for argument in (*OPTIONS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(CHROMEDRIVER))
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with load_model("demo") as model, serving(model, Settings(drain_seconds=2.0)) as site:
        yield site


@pytest.fixture
def open_page(driver: webdriver.Chrome, tmp_path: Path) -> Callable[[Site], Page]:
    folder = tmp_path / "downloads"
    folder.mkdir()
    behavior = {"behavior": "allow", "downloadPath": str(folder)}
    driver.execute_cdp_cmd("Browser.setDownloadBehavior", behavior)

    def opened(site: Site) -> Page:
        driver.get(site.url)
        driver.execute_script("sessionStorage.clear()")
        driver.get_log("browser")  # type: ignore[no-untyped-call]
        return Page(driver, folder)

    return opened


@pytest.fixture
def page(open_page: Callable[[Site], Page], site: Site) -> Page:
    return open_page(site)


def expected_starts(site: Site) -> list[float]:
    answer = site.transcribe(
        RECORDING.read_bytes(), ("timestamp_granularities[]", "word"), response_format="verbose_json"
    )
    return [word["start"] for word in answer.json["words"]]


def test_a_file_becomes_words_that_can_be_heard_and_downloaded(page: Page, site: Site) -> None:
    page.until(lambda: page.find("model").text == "demo")
    page.choose(RECORDING)
    page.until_done()
    assert [word.text for word in page.words] == WORDS
    assert page.find("status").text == f"{len(WORDS)} words, 0:06"
    assert page.find("name").text == "u01.wav"
    starts = expected_starts(site)
    page.words[4].click()
    page.until(lambda: page.texts(".now") == [WORDS[4]])
    assert starts[4] <= page.player("currentTime") < starts[4] + 2
    for name in ("txt", "srt", "vtt"):
        response_format = "text" if name == "txt" else name
        expected = site.transcribe(RECORDING.read_bytes(), response_format=response_format).text
        assert page.download(name) == expected
    assert page.complaints() == []


def test_the_keyboard_is_enough(page: Page, site: Site) -> None:
    page.press(Keys.TAB)
    assert page.driver.switch_to.active_element == page.find("choose")
    page.choose(RECORDING)
    page.until_done()
    page.driver.execute_script("arguments[0].focus({focusVisible: true})", page.find("transcript"))
    page.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert page.texts(".cursor") == [WORDS[2]]
    page.press(Keys.ENTER)
    page.until(lambda: page.texts(".now") == [WORDS[2]])
    page.press(Keys.SPACE)
    page.until(lambda: page.player("paused"))
    assert expected_starts(site)[2] <= page.player("currentTime")
    page.press(Keys.END)
    assert page.texts(".cursor") == WORDS[-1:]
    page.press(Keys.HOME, Keys.ARROW_LEFT)
    assert page.texts(".cursor") == WORDS[:1]


def test_a_file_can_be_dropped(page: Page) -> None:
    content = list(RECORDING.read_bytes())
    page.driver.execute_script(
        "const files = new DataTransfer();"
        "files.items.add(new File([new Uint8Array(arguments[0])], 'dropped.wav'));"
        "const options = {dataTransfer: files, bubbles: true, cancelable: true};"
        "document.dispatchEvent(new DragEvent('drop', options));",
        content,
    )
    page.until_done()
    assert page.find("name").text == "dropped.wav"
    assert [word.text for word in page.words] == WORDS


def test_the_microphone_can_be_recorded(page: Page) -> None:
    page.find("record").click()
    page.until(lambda: page.state == "recording")
    assert page.find("record-label").text == "Stop recording"
    page.driver.execute_async_script("setTimeout(arguments[0], 1500)")
    page.find("record").click()
    page.until_done()
    assert page.find("name").text == "Recording"
    assert page.find("status").text.endswith(("0:01", "0:02", "No speech was heard."))
    assert not page.find("error").is_displayed()


def test_confidence_is_shown_by_colour_and_can_be_hidden(
    open_page: Callable[[Site], Page], tmp_path: Path
) -> None:
    class Unsure(ClickBackend):
        def recognize(self, waveforms: Any) -> Any:
            found = super().recognize(waveforms)
            for hypothesis in found:
                hypothesis.log_probs[:] = [-0.01, -0.2, -0.5, -2.0][: len(hypothesis)]
            return found

    path = write_wav(tmp_path / "a.wav", clicks(2, {0.2: 0, 0.4: 1, 0.6: 2, 0.8: 3}))
    with serving(click_model(Unsure()), CLICKS) as site:
        page = open_page(site)
        page.choose(path)
        page.until_done()
        levels = [word.get_attribute("class") for word in page.words]
        colours = {word.value_of_css_property("color") for word in page.words}
        page.find("shade").click()
        plain = {word.value_of_css_property("color") for word in page.words}
    assert levels == ["word sure", "word likely", "word unsure", "word doubtful"]
    assert len(colours) == 4
    assert len(plain) == 1


def test_segments_arrive_while_the_rest_is_still_recognised(
    open_page: Callable[[Site], Page], tmp_path: Path
) -> None:
    """The engine waits behind half of the recording until words of that half are on the page."""
    seen: Future[None] = Future()
    num_samples = 0

    def fault(waveforms: Any) -> None:
        nonlocal num_samples
        num_samples += sum(len(w) for w in waveforms if w.max() > 0.05)
        if num_samples > 400 * RATE:
            seen.result(20)

    path = write_wav(tmp_path / "a.wav", clicks(600, {n + 0.5: n % 8 for n in range(600)}))
    with serving(click_model(ClickBackend(fault=fault)), CLICKS) as site:
        page = open_page(site)
        page.choose(path)
        page.until(lambda: 0 < len(page.words) < 600)
        assert page.state == "listening"
        assert "so far" in page.find("status").text
        seen.set_result(None)
        page.until_done()
        assert len(page.words) == 600


def test_stop_frees_the_server_and_keeps_what_came(open_page: Callable[[Site], Page], tmp_path: Path) -> None:
    seen: Future[None] = Future()

    def fault(waveforms: Any) -> None:
        if max(w.max() for w in waveforms) > 0.05:
            seen.result(20)

    path = write_wav(tmp_path / "a.wav", clicks(60, {n + 0.5: n % 8 for n in range(60)}))
    with serving(click_model(ClickBackend(fault=fault)), CLICKS) as site:
        page = open_page(site)
        page.choose(path)
        page.until(lambda: site.service.batcher.load().is_running)
        page.find("stop").click()
        page.until(lambda: page.state == "empty")
        seen.set_result(None)
        until(lambda: site.service.num_requests == 0)


def test_what_is_no_audio_is_said(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not audio " * 50, encoding="utf-8")
    page.choose(path)
    page.until(lambda: page.find("error").is_displayed())
    assert "notes.txt" in page.find("error").text
    assert page.find("drop").is_displayed()
    page.choose(RECORDING)
    page.until_done()
    assert not page.find("error").is_displayed()


def test_silence_is_said(page: Page, tmp_path: Path) -> None:
    page.choose(write_wav(tmp_path / "silence.wav", clicks(4, {})))
    page.until_done()
    assert page.find("status").text == "No speech was heard."


def test_a_key_is_asked_for(open_page: Callable[[Site], Page], tmp_path: Path) -> None:
    path = write_wav(tmp_path / "a.wav", clicks(1, {0.5: 1}))
    with serving(click_model(), replace(CLICKS, api_keys=("the-key",))) as site:
        page = open_page(site)
        page.driver.refresh()
        page.until(lambda: page.find("key").is_displayed())
        page.choose(path)
        page.until(lambda: page.find("key").is_displayed())
        page.find("key-value").send_keys("the-key", Keys.ENTER)
        page.until_done()
        assert [word.text for word in page.words] == ["two"]
        assert page.find("model").text == "clicks"


def test_files_of_the_page(site: Site) -> None:
    index = site.get("/")
    assert index.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'self'" in index.headers["content-security-policy"]
    assert index.headers["x-content-type-options"] == "nosniff"
    unchanged = site.get("/", {"If-None-Match": index.headers["etag"]})
    assert (unchanged.status, unchanged.body) == (304, b"")
    assert "paths" in json.loads(site.get("/openapi.json").text)
