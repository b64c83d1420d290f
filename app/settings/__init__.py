"""Every knob, by room. A value comes from a flag, else the environment, else a file, else the default below.

Flag: `--set server.port=9000`; the usual knobs have a flag of their own.
Environment: `BATCHYARD_` + room + `_` + name, such as `BATCHYARD_SERVER_PORT=9000`; `BATCHYARD_DATA_DIR` has no room.
File: TOML with one table a room, named by `--config` or `BATCHYARD_CONFIG`. Lists are written `a,b` or as JSON.

Only `load` reads the environment and the file; `Settings(...)` alone never does.
"""

from app.settings.knob import PREFIX, Knob, knobs
from app.settings.rooms import (
    BlobSettings,
    EngineSettings,
    LimitSettings,
    LogSettings,
    MediaSettings,
    QuotaSettings,
    RetentionSettings,
    ServerSettings,
    Settings,
    StoreSettings,
    WebhookSettings,
    WorkerSettings,
)
from app.settings.sources import CONFIG_VARIABLE, Loaded, load

__all__ = [
    "CONFIG_VARIABLE",
    "PREFIX",
    "BlobSettings",
    "EngineSettings",
    "Knob",
    "LimitSettings",
    "Loaded",
    "LogSettings",
    "MediaSettings",
    "QuotaSettings",
    "RetentionSettings",
    "ServerSettings",
    "Settings",
    "StoreSettings",
    "WebhookSettings",
    "WorkerSettings",
    "knobs",
    "load",
]
