from __future__ import annotations

import pytest
from sqlalchemy import update

from app.domain.batch import Batch, BatchStatus
from app.domain.file import Purpose
from app.errors import InvalidRequest, NotFound, StateConflict
from app.service.batches import BatchService, allowed_window
from app.service.files import FileService
from app.settings import LimitSettings
from app.store.db import Database
from app.store.tables import batches as batch_rows
from tests.unit.service.scenes import upload


async def create(batches: BatchService, input_file_id: str, *, project_id: str = "team") -> Batch:
    return await batches.create(
        project_id,
        endpoint="/v1/embeddings",
        input_file_id=input_file_id,
        completion_window="24h",
        metadata={"a": "b"},
        output_expires_after_seconds=3600,
    )


async def test_create_starts_validating(batches: BatchService, files: FileService) -> None:
    file = await upload(files)
    batch = await create(batches, file.id)
    assert batch.status is BatchStatus.VALIDATING
    assert batch.id.startswith("batch_")
    assert batch.expires_at == batch.created_at + 86_400
    assert (batch.metadata, batch.output_expires_after_seconds) == ({"a": "b"}, 3600)
    assert await batches.get("team", batch.id) == batch


@pytest.mark.parametrize("input_file_id", ["file-unknown", "no such file", "ü", "x" * 512])
async def test_create_with_an_unknown_file_is_left_to_the_validation(batches: BatchService, input_file_id: str) -> None:
    batch = await create(batches, input_file_id)
    assert (batch.status, batch.input_file_id) == (BatchStatus.VALIDATING, input_file_id)


async def test_create_with_a_deleted_or_foreign_file_is_left_to_the_validation(
    batches: BatchService, files: FileService
) -> None:
    deleted = await upload(files, purpose=Purpose.USER_DATA)
    await files.delete("team", deleted.id)
    foreign = await upload(files, purpose=Purpose.USER_DATA, project_id="other")
    for file in (deleted, foreign):
        assert (await create(batches, file.id)).status is BatchStatus.VALIDATING


async def test_create_with_a_file_of_another_purpose(batches: BatchService, files: FileService) -> None:
    file = await upload(files, purpose=Purpose.FINE_TUNE)
    with pytest.raises(InvalidRequest, match="has purpose 'fine-tune'") as caught:
        await create(batches, file.id)
    assert caught.value.param == "input_file_id"
    assert (await batches.page("team", after=None, limit=10)).items == []


@pytest.mark.parametrize("batch_id", ["", "batch_unknown", "a b", "\0", "x" * 97])
async def test_unknown_id_is_not_found_whatever_its_shape(batches: BatchService, batch_id: str) -> None:
    for attempt in (batches.get, batches.cancel):
        with pytest.raises(NotFound) as caught:
            await attempt("team", batch_id)
        assert caught.value.message == f"No batch found with id '{batch_id}'."
        assert (caught.value.param, caught.value.code) == (None, None)
    with pytest.raises(InvalidRequest) as refused:
        await batches.page("team", after=batch_id, limit=10)
    assert refused.value.param == "after"


async def test_batch_of_another_project_is_not_found(batches: BatchService) -> None:
    batch = await create(batches, "file-1", project_id="other")
    for attempt in (batches.get, batches.cancel):
        with pytest.raises(NotFound):
            await attempt("team", batch.id)
    assert (await batches.page("team", after=None, limit=10)).items == []


async def test_cancel_once_and_again(batches: BatchService) -> None:
    batch = await create(batches, "file-1")
    cancelled = await batches.cancel("team", batch.id)
    assert cancelled.status is BatchStatus.CANCELLING
    assert cancelled.cancelling_at is not None
    assert await batches.cancel("team", batch.id) == cancelled


@pytest.mark.parametrize("status", ["completed", "failed", "expired", "finalizing"])
async def test_cancel_with_nothing_left_to_cancel(
    batches: BatchService, sqlite_database: Database, status: str
) -> None:
    batch = await create(batches, "file-1")
    async with sqlite_database.write() as tx:
        await tx.conn.execute(update(batch_rows).values(status=status))
    with pytest.raises(StateConflict) as caught:
        await batches.cancel("team", batch.id)
    assert caught.value.message == f"Cannot cancel a batch with status '{status}'."


async def test_page_newest_first(batches: BatchService) -> None:
    made = [(await create(batches, "file-1")).id for _ in range(3)]
    page = await batches.page("team", after=None, limit=2)
    assert ([batch.id for batch in page.items], page.has_more) == ([made[2], made[1]], True)
    page = await batches.page("team", after=made[1], limit=2)
    assert ([batch.id for batch in page.items], page.has_more) == ([made[0]], False)


@pytest.mark.parametrize(
    ("allowed", "window", "seconds"),
    [
        (["24h"], "24h", 86_400),
        (["24h"], "1h", None),
        (["24h"], "1440m", None),
        (["1h", "7d"], "7d", 604_800),
        (["1h", "7d"], "24h", None),
        (["any"], "90m", 5400),
        (["any"], "7d", 604_800),
        (["any"], "169h", None),
        (["any", "30d"], "30d", 2_592_000),
        (["any"], "", None),
        (["any"], "any", None),
    ],
)
def test_completion_window_that_the_settings_allow(allowed: list[str], window: str, seconds: int | None) -> None:
    limits = LimitSettings(completion_windows=allowed, completion_window_max_seconds=604_800)
    if seconds is not None:
        assert allowed_window(window, limits=limits) == seconds
        return
    with pytest.raises(InvalidRequest) as caught:
        allowed_window(window, limits=limits)
    assert (caught.value.param, caught.value.code) == ("completion_window", "invalid_value")


def test_refused_completion_window_in_openai_words() -> None:
    with pytest.raises(InvalidRequest, match=r"^Invalid completion_window: 1h\. Supported values: '24h'\.$"):
        allowed_window("1h", limits=LimitSettings())


@pytest.mark.parametrize("windows", [[], ["24"], ["any", "0h"], ["1w"], [""]])
def test_completion_windows_that_cannot_be_read(windows: list[str]) -> None:
    with pytest.raises(ValueError, match="completion_windows"):
        LimitSettings(completion_windows=windows)
