"""What vLLM downloads for a request, it downloads by our rules. No engine: only its own media code."""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import io
from collections.abc import Generator
from typing import Any

import pytest

from app.engine.media import MediaRules
from app.engine.vllm_library import guard_media, parse
from app.errors import SettingsInvalid
from tests.requirement import without
from tests.web import Quiet, served

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore"),  # torch and vLLM warn while they are imported, in our process
]


@pytest.fixture(autouse=True)
def _vllm() -> None:
    if importlib.util.find_spec("vllm") is None:
        without("vLLM is not installed (`make setup`)")


def _png() -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.new("RGB", (3, 2), (255, 0, 0)).save(stream, "PNG")
    return stream.getvalue()


class _Pictures(Quiet):
    def do_GET(self) -> None:
        moved = self.path == "/moved"
        self.send_response(302 if moved else 200)
        if moved:
            self.send_header("location", "http://169.254.169.254/latest/meta-data/")
        self.end_headers()
        self.wfile.write(b"" if moved else _png())


@pytest.fixture
def pictures() -> Generator[str]:
    with served(_Pictures) as port:
        yield f"http://127.0.0.1:{port}"


def connector(**rules: Any) -> Any:
    """As vLLM's chat code makes it for each request, with everything allowed that its own flags could allow."""
    guard_media(MediaRules(**rules))
    from vllm import envs
    from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY

    return MEDIA_CONNECTOR_REGISTRY.load(
        envs.VLLM_MEDIA_CONNECTOR, media_io_kwargs=None, allowed_local_media_path="/", allowed_media_domains=None
    )


HOME = {"private_hosts": frozenset({"127.0.0.1"})}


async def test_data_url_passes() -> None:
    url = "data:image/png;base64," + base64.b64encode(_png()).decode()
    assert (await connector().fetch_image_async(url)).size == (3, 2)


async def test_picture_of_an_allowed_host_arrives(pictures: str) -> None:
    assert (await connector(**HOME).fetch_image_async(f"{pictures}/a.png")).size == (3, 2)
    assert (await asyncio.to_thread(connector(**HOME).fetch_image, f"{pictures}/a.png")).size == (3, 2)


@pytest.mark.parametrize("kind", ["image", "audio", "video"])
@pytest.mark.parametrize("url", ["/a.png", "/moved", "file:///etc/hostname", "http://10.0.0.1/a", "http://[::1]/a"])
async def test_forbidden_url_is_the_requests_fault(pictures: str, kind: str, url: str) -> None:
    from vllm.exceptions import VLLMValidationError

    rules = HOME if url == "/moved" else {}
    url = pictures + url if url.startswith("/") else url
    with pytest.raises(VLLMValidationError, match=r"open internet|not read"):
        await getattr(connector(**rules), f"fetch_{kind}_async")(url)
    with pytest.raises(VLLMValidationError, match=r"open internet|not read"):
        await asyncio.to_thread(getattr(connector(**rules), f"fetch_{kind}"), url)


async def test_size_limit_holds(pictures: str) -> None:
    from vllm.exceptions import VLLMValidationError

    with pytest.raises(VLLMValidationError, match="larger than the limit"):
        await connector(max_bytes=20, **HOME).fetch_image_async(f"{pictures}/a.png")


def test_local_files_cannot_be_allowed() -> None:
    with pytest.raises(SettingsInvalid, match="--allowed-local-media-path"):
        parse("some-model", ["--allowed-local-media-path", "/"])
