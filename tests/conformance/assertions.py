"""The numbered assertions of the contract by short title, and where we deviate, why, and which test shows it."""

from __future__ import annotations

from dataclasses import dataclass

_SECTIONS = {
    "Authentication and envelope": """
        1 no Authorization header: 401 without a code
        2 wrong key: 401 invalid_api_key
        3 every error is an object of message, type, param, code
        4 every reply has an x-request-id, and the SDK shows it
        5 openai-processing-ms is a number
        6 unknown path 404, wrong method 405, both as JSON
        7 a body that is not JSON: 400
        8 projects do not see each other's objects
        9 organization, project and x-stainless headers are taken
    """,
    "Files": """
        10 create from a tuple keeps name and size
        11 a file name beyond ASCII comes back as sent
        12 raw bytes without a name are taken as batch input
        13 status processed, object file, id file-…
        14 batch files expire after 30 days
        15 other purposes do not expire
        16 expires_after counts from creation
        17 expires_after out of bounds: 400
        18 no file or no purpose: 400
        19 unknown purpose: 400
        20 batch input not named .jsonl: 400
        21 empty batch input: 400
        22 first line not JSON: 400; a later one is taken
        23 the file may stand before its purpose
        24 209,715,200 bytes are taken, one more is not
        25 retrieve gives what create gave
        26 unknown file: 404 that names it
        27 a deleted file is gone everywhere
        28 content is byte for byte what was sent
        29 text decodes as UTF-8 without a charset
        30 streamed content is the same and not buffered
        31 content of user_data: 400
        32 wait_for_processing returns at once
        33 newest first, order=asc reverses
        34 list by purpose
        35 limit out of bounds: 400
        36 paging by two gives five files in three calls
        37 first_id, last_id and has_more fit the page
        38 an empty list is well formed
        39 an expired file is gone
        40 files of one second page without loss
    """,
    "Uploads": """
        41 create: pending, one hour to live
        42 parts in the order that complete gives
        43 md5 is checked when given
        44 another size than declared: 400
        45 parts up to 64 MiB
        46 a cancelled upload takes nothing more
        47 an expired upload takes nothing more
        48 unknown upload 404, unknown part 400
        49 upload_file_chunked gives a batch input
        50 eight threads may send parts at once
        51 expires_after reaches the file
        52 more than 8 GB: 400
    """,
    "Batches: create, read, list": """
        53 create: validating, zero counts, nulls
        54 expires a day after creation
        55 a missing field: 400 that names it
        56 unknown endpoint: 400
        57 other completion windows: 400
        58 metadata within its bounds
        59 output_expires_after out of bounds: 400
        60 unknown input file: created, then failed
        61 unknown batch: 404
        62 newest first, limit 1 to 100, paging
        63 every reply has every key
    """,
    "Validation": """
        64 bad JSON is named line by line
        65 missing keys are named line by line
        66 repeated custom_id
        67 a url that is not the endpoint
        68 a method that is not POST
        69 a second model
        70 an unknown model
        71 stream: true
        72 a failed batch ran nothing
        73 50,000 requests, 50,000 embedding inputs, and no more
        74 odd but legal text runs right
    """,
    "Execution and results": """
        75 all succeed: times in order, one row a line
        76 mixed: answers and errors in two files
        77 all fail: completed, no output file
        78 result files: purpose, name, size, content
        79 rows survive clients that cut at odd characters
        80 usage is the sum, the model is named
        81 result files expire as asked, else after 30 days
    """,
    "Cancel and expiry": """
        82 cancel: cancelling, later cancelled
        83 what finished is kept, the rest is batch_cancelled
        84 cancel again changes nothing
        85 cancel of an ended batch: 409, asked once
        86 expired: the rest is batch_expired
        87 cancel while validating runs nothing
        88 a restart keeps every state
    """,
    "Webhooks": """
        89 each end sends one event that unwrap reads
        90 the signature verifies
        91 retries keep the id and refresh the time
        92 retries with growing gaps for 72 hours
        93 rotation may sign twice for a day
        94 the secret is shown once, http:// is refused
    """,
    "Robustness": """
        95 a 429 says when to come back, and the SDK does
        96 a dropped create and its retry leave one state
    """,
}


def _table() -> dict[str, dict[int, str]]:
    table = {}
    for section, text in _SECTIONS.items():
        rows = [line.strip().partition(" ") for line in text.strip().splitlines()]
        table[section] = {int(number): title for number, _, title in rows}
    return table


#: section → number → title
SECTIONS = _table()
#: number → title
ASSERTIONS = {number: title for section in SECTIONS.values() for number, title in section.items()}


@dataclass(frozen=True, slots=True)
class Deviation:
    """What we do otherwise and why; `test` shows what we do instead."""

    reason: str
    test: str


DEVIATIONS = {
    21: Deviation(
        "a file of zero bytes is refused at upload, as asserted; one of nothing but blank lines is taken, and its "
        "batch fails with empty_file: lines are read at validation, not while the upload runs",
        "test_item_21_a_file_of_blank_lines_fails_as_empty",
    ),
    34: Deviation(
        "an unknown purpose as filter lists nothing, and is no error: OpenAI adds purposes, and clients that ask for a "
        "newer one are right to get an empty list",
        "test_item_34_purpose_filter",
    ),
    56: Deviation(
        "the endpoints for images and videos are refused as unknown ones are: no engine here answers them, and a "
        "refusal before the upload is read is the earliest answer",
        "test_item_56_an_invalid_endpoint_is_400",
    ),
    69: Deviation(
        "mismatched_model is said of a second model that is served too; of one that is not served, model_not_found "
        "tells more",
        "test_item_69_a_second_model_that_is_not_served_is_not_found",
    ),
    73: Deviation(
        "OpenAI's codes for these two refusals are not known: too_many_tasks is Azure's, too_many_inputs our own",
        "test_item_73_embedding_inputs_are_counted_over_all_lines",
    ),
    75: Deviation(
        "a batch for /v1/moderations fails at validation: no engine here moderates, and one refusal is better than "
        "an error row for each line",
        "test_item_75_an_endpoint_the_engine_lacks_does_not_run",
    ),
}
