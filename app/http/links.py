"""Links of the API document: which call goes on with what another one answered."""

from __future__ import annotations

from typing import Any

_ID = "$response.body#/id"


def _link(operation_id: str, *, body: dict[str, Any] | None = None, **parameters: str) -> dict[str, Any]:
    found: dict[str, Any] = {"operationId": operation_id}
    if parameters:
        found["parameters"] = parameters
    if body is not None:
        found["requestBody"] = body
    return found


_FILE = {
    "RetrieveFile": _link("retrieveFile", file_id=_ID),
    "DownloadFile": _link("downloadFile", file_id=_ID),
    "DeleteFile": _link("deleteFile", file_id=_ID),
    "CreateBatch": _link("createBatch", body={"input_file_id": _ID}),
}
_BATCH = {
    "RetrieveBatch": _link("retrieveBatch", batch_id=_ID),
    "CancelBatch": _link("cancelBatch", batch_id=_ID),
    "ReadBatchResults": _link("readBatchResults", batch_id=_ID),
    "RetryBatch": _link("retryBatch", batch_id=_ID),
}
_RESULTS = {
    "DownloadOutput": _link("downloadFile", file_id="$response.body#/output_file_id"),
    "DownloadErrors": _link("downloadFile", file_id="$response.body#/error_file_id"),
}
_ENDPOINT = {
    "RetrieveWebhookEndpoint": _link("retrieveWebhookEndpoint", webhook_endpoint_id=_ID),
    "UpdateWebhookEndpoint": _link("updateWebhookEndpoint", webhook_endpoint_id=_ID),
    "RotateWebhookSecret": _link("rotateWebhookSecret", webhook_endpoint_id=_ID),
    "TestWebhookEndpoint": _link("testWebhookEndpoint", webhook_endpoint_id=_ID),
    "DeleteWebhookEndpoint": _link("deleteWebhookEndpoint", webhook_endpoint_id=_ID),
}


def _next(operation_id: str) -> dict[str, Any]:
    return {"NextPage": _link(operation_id, after="$response.body#/last_id")}


#: operation → the links of its 200
LINKS: dict[str, dict[str, Any]] = {
    "createFile": _FILE,
    "listFiles": _next("listFiles"),
    "createUpload": {
        "AddUploadPart": _link("addUploadPart", upload_id=_ID),
        "CancelUpload": _link("cancelUpload", upload_id=_ID),
    },
    "addUploadPart": {
        "AddUploadPart": _link("addUploadPart", upload_id="$response.body#/upload_id"),
        "CompleteUpload": _link("completeUpload", body={"part_ids": [_ID]}, upload_id="$response.body#/upload_id"),
        "CancelUpload": _link("cancelUpload", upload_id="$response.body#/upload_id"),
    },
    "completeUpload": {
        "RetrieveFile": _link("retrieveFile", file_id="$response.body#/file/id"),
        "DownloadFile": _link("downloadFile", file_id="$response.body#/file/id"),
        "CreateBatch": _link("createBatch", body={"input_file_id": "$response.body#/file/id"}),
    },
    "createBatch": _BATCH,
    "retrieveBatch": _BATCH | _RESULTS,
    "cancelBatch": _BATCH,
    "retryBatch": _BATCH,
    "listBatches": _next("listBatches"),
    "createWebhookEndpoint": _ENDPOINT,
    "updateWebhookEndpoint": _ENDPOINT,
    "rotateWebhookSecret": _ENDPOINT,
    "listWebhookEndpoints": _next("listWebhookEndpoints"),
}
