from __future__ import annotations

import itertools
from collections.abc import Iterable
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.errors import InvalidRequest
from app.http.multipart import (
    FIELD_MAX_BYTES,
    OVERHEAD_MAX_BYTES,
    PARTS_MAX,
    Event,
    Field,
    FileBegin,
    FileData,
    FileEnd,
    FormReader,
)

CONTENT_TYPE = "multipart/form-data; boundary=B"


def part(disposition: str | bytes, value: bytes, *headers: bytes) -> bytes:
    if isinstance(disposition, str):
        disposition = disposition.encode()
    lines = [b"Content-Disposition: form-data; " + disposition, *headers]
    return b"--B\r\n" + b"\r\n".join(lines) + b"\r\n\r\n" + value + b"\r\n"


END = b"--B--\r\n"
PURPOSE = part('name="purpose"', b"batch")


def parse(pieces: Iterable[bytes], content_type: str = CONTENT_TYPE) -> list[Event]:
    """The events, with the data of each file joined."""
    reader = FormReader(content_type)
    events: list[Event] = []
    data = b""
    for piece in pieces:
        for event in reader.feed(piece):
            if isinstance(event, FileData):
                data += bytes(event.data)
                continue
            if isinstance(event, FileEnd):
                events.append(FileData(memoryview(data)))
                data = b""
            events.append(event)
    reader.finish()
    return events


def file_events(name: str, data: bytes) -> list[Event]:
    return [FileBegin("file", name), FileData(memoryview(data)), FileEnd()]


def refused(body: bytes, content_type: str = CONTENT_TYPE) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse([body], content_type)
    return caught.value


def test_fields_and_file_in_any_order() -> None:
    parts: dict[bytes, list[Event]] = {
        PURPOSE: [Field("purpose", "batch")],
        part('name="expires_after[seconds]"', b"3600"): [Field("expires_after[seconds]", "3600")],
        part('name="file"; filename="my.jsonl"', b"{}\n", b"Content-Type: application/octet-stream"): file_events(
            "my.jsonl", b"{}\n"
        ),
    }
    for order in itertools.permutations(parts):
        expected = [event for one in order for event in parts[one]]
        assert parse([b"".join(order) + END]) == expected


def test_empty_form_and_empty_file() -> None:
    assert parse([END]) == []
    assert parse([part('name="file"; filename="a"', b"") + END]) == file_events("a", b"")


#: Bytes of which boundaries, line ends and near misses are made.
_tricky = st.lists(st.sampled_from([b"\r", b"\n", b"-", b"B", b"--B", b"\r\n--", b"\r\n--C", b"x", b"\0\xff"])).map(
    b"".join
)


@given(data=st.data(), content=_tricky | st.binary(max_size=200), value=st.text(max_size=20), after=st.booleans())
def test_any_split_of_the_stream_gives_the_same_events(
    data: st.DataObject, content: bytes, value: str, after: bool
) -> None:
    if b"\r\n--B" in b"\r\n" + content:
        content = content.replace(b"B", b"b")
    value = value.replace("\0", "").replace("--B", "--b")
    field = part('name="purpose"', value.encode())
    file = part('name="file"; filename="ü.jsonl"', content, b"Content-Type: text/plain")
    body = (file + field if after else field + file) + END
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=12)))
    pieces = [body[start:end] for start, end in itertools.pairwise([0, *cuts, len(body)])]
    expected = file_events("ü.jsonl", content)
    field_event = Field("purpose", value)
    expected = [*expected, field_event] if after else [field_event, *expected]
    assert parse([body]) == expected
    assert parse(pieces) == expected
    assert parse(body[index : index + 1] for index in range(len(body))) == expected


def outcome(pieces: Iterable[bytes]) -> object:
    try:
        return parse(pieces)
    except InvalidRequest as exc:
        return type(exc)


_pieces_of_forms = st.lists(
    st.sampled_from(
        [
            b"--B",
            b"\r\n--B",
            b"--",
            b"\r\n",
            b"\r",
            b"\n",
            b"-",
            b" ",
            b":",
            b"Content-Disposition: form-data",
            b'; name="a"',
            b'; filename="f"',
            b"; filename*=",
            b"Content-Transfer-Encoding: base64",
            b"x",
            b'"',
            b"\\",
            b"\xff",
            b"\0",
        ]
    )
    | st.binary(max_size=8),
    max_size=30,
).map(b"".join)


@given(body=_pieces_of_forms | st.binary(max_size=100), size=st.integers(1, 7))
@example(body=b"\r\n", size=1)
@example(body=b"--B\r\n\r\n\r\n--B--", size=1)
def test_junk_is_refused_or_read_whatever_the_split(body: bytes, size: int) -> None:
    pieces = [body[index : index + size] for index in range(0, len(body), size)]
    assert outcome([body]) == outcome(pieces) == outcome(body[index : index + 1] for index in range(len(body)))


GOOD = PURPOSE + part('name="file"; filename="a.jsonl"', b"{}\r\n--\n", b"Content-Type: text/plain") + END


@given(place=st.integers(0, len(GOOD) - 1), cut=st.integers(0, 3), put=st.binary(max_size=3), size=st.integers(1, 9))
def test_broken_form_is_refused_or_read_whatever_the_split(place: int, cut: int, put: bytes, size: int) -> None:
    """A good form with a wound anywhere: in a boundary, a header, a line end."""
    body = GOOD[:place] + put + GOOD[place + cut :]
    pieces = [body[index : index + size] for index in range(0, len(body), size)]
    assert outcome([body]) == outcome(pieces) == outcome(body[index : index + 1] for index in range(len(body)))


def test_form_that_ends_early_is_refused_wherever_it_ends() -> None:
    for length in range(len(GOOD) - len(b"\r\n")):
        assert outcome([GOOD[:length]]) is InvalidRequest, GOOD[:length]


@pytest.mark.parametrize("start", [b"X-Long", b"X: ", b'Content-Disposition: form-data; name="file"; filename="'])
@given(size=st.integers(1, 5000))
def test_endless_header_is_refused_before_it_ends(start: bytes, size: int) -> None:
    reader = FormReader(CONTENT_TYPE)
    reader.feed(b"--B\r\n" + start)

    def pour() -> None:
        for _ in range(8192 // size + 2):
            reader.feed(b"y" * size)

    with pytest.raises(InvalidRequest):
        pour()


@given(header=st.text(max_size=40) | st.binary(max_size=40).map(lambda raw: raw.decode("latin-1")))
def test_junk_content_type_is_refused_or_read(header: str) -> None:
    for content_type in (header, "multipart/form-data" + header, "multipart/form-data; boundary=" + header):
        with suppress(InvalidRequest):
            FormReader(content_type)


@given(raw=st.binary(max_size=40))
def test_junk_disposition_is_refused_or_read(raw: bytes) -> None:
    outcome([b"--B\r\nContent-Disposition: " + raw + b"\r\n\r\n\r\n" + END])
    outcome([part(b'name="file"; ' + raw, b"") + END])


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "",
        "application/json",
        "multipart/mixed; boundary=B",
        "multipart/form-data",
        "multipart/form-data; boundary=",
        'multipart/form-data; boundary=""',
        "multipart/form-data; boundary=B; boundary=C",
        f"multipart/form-data; boundary={'b' * 201}",
        'multipart/form-data; boundary="a\tb"',
        'multipart/form-data; boundary="a\r\nb"',
        "multipart/form-data; boundary=\xff",
        'multipart/form-data; boundary="b',
    ],
)
def test_content_type_without_a_usable_boundary(content_type: str | None) -> None:
    with pytest.raises(InvalidRequest):
        FormReader(content_type)


@pytest.mark.parametrize(
    "content_type",
    [
        'Multipart/Form-Data; charset=utf-8; Boundary="B"',
        "multipart/form-data;boundary=B;",
        "multipart/form-data ; boundary=B ",
    ],
)
def test_content_type_in_other_spellings(content_type: str) -> None:
    assert parse([PURPOSE + END], content_type) == [Field("purpose", "batch")]


@pytest.mark.parametrize(
    ("disposition", "filename"),
    [
        ('name="file"; filename="naïve ☃.jsonl"', "naïve ☃.jsonl"),
        ("name=file; filename=plain.jsonl", "plain.jsonl"),
        ('name="file"; filename="a\\"b\\\\c.jsonl"', 'a"b\\c.jsonl'),
        ('name="file"; filename="C:\\folder\\a.jsonl"', "C:\\folder\\a.jsonl"),
        ('name="file"; filename="folder/a.jsonl"', "folder/a.jsonl"),
        ('name="file"; filename="a;b=c.jsonl"', "a;b=c.jsonl"),
        ('NAME="file"; FileName="a"', "a"),
        ("name=\"file\"; filename*=UTF-8''na%C3%AFve%20%E2%98%83.jsonl", "naïve ☃.jsonl"),
        ('name="file"; filename*=utf-8\'en\'%41.jsonl; filename="x"', "A.jsonl"),
        ("name=\"file\"; filename*=iso-8859-1''na%EFve.jsonl", "naïve.jsonl"),
        (f'name="file"; filename="{"ü" * 1024}"', "ü" * 1024),
    ],
)
def test_filename_in_every_spelling(disposition: str, filename: str) -> None:
    assert parse([part(disposition, b"x") + END]) == file_events(filename, b"x")


@pytest.mark.parametrize(
    "disposition",
    [
        b'name="file"; filename=""',
        b'name="file"; filename="\xff"',
        b'name="file"; filename="a\0b"',
        b"name=\"file\"; filename*=UTF-8''%00",
        b"name=\"file\"; filename*=UTF-8''%FF",
        b"name=\"file\"; filename*=UTF-8''%ED%A0%80",
        b"name=\"file\"; filename*=KOI8-R''a",
        b'name="file"; filename*=plain',
        b'name="file"; filename="' + b"x" * 1025 + b'"',
        b'name="file"; filename="a"; filename="b"',
        b'name="file"; name="purpose"',
        b'filename="a"',
        b'name="file"; filename="unclosed',
        b'name="\xff"',
        b'name="a\0"',
    ],
)
def test_bad_disposition(disposition: bytes) -> None:
    assert refused(part(disposition, b"x") + END).param is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\r\n",
        b"preamble\r\n" + PURPOSE + END,
        b"\r\n" * 3 + PURPOSE + END,
        b"--C\r\n",
        PURPOSE,
        PURPOSE + b"--B",
        PURPOSE + b"--B-",
        PURPOSE[:-4],
        b"--B\r\n\r\nno headers\r\n" + END,
        b"--B\r\nContent-Disposition: attachment; name=a\r\n\r\n\r\n" + END,
        b"--B\r\nContent-Disposition: form-data; name=a\r\nContent-Disposition: form-data; name=b\r\n\r\n\r\n" + END,
        part('name="file"; filename="a"', b"eA==", b"Content-Transfer-Encoding: base64") + END,
        part('name="a"', b"\xff") + END,
        part('name="a"', b"\0") + END,
        part('name="a"', b"", *(b"X-%d: y" % number for number in range(9))) + END,
        part('name="a"', b"", b"X: " + b"y" * 9000) + END,
        PURPOSE * (PARTS_MAX + 1) + END,
        PURPOSE + END + b"x" * OVERHEAD_MAX_BYTES,
    ],
)
def test_bad_body(body: bytes) -> None:
    error = refused(body)
    assert error.message.startswith("We could not parse the multipart body of your request: ")
    size = 1 + len(body) // 1000
    assert outcome(body[index : index + size] for index in range(0, len(body), size)) is InvalidRequest


def test_leading_line_end_and_epilogue_are_ignored() -> None:
    assert parse([b"\r\n" + PURPOSE + END + b"epilogue"]) == [Field("purpose", "batch")]


def test_long_field_is_refused_before_it_ends() -> None:
    reader = FormReader(CONTENT_TYPE)
    reader.feed(b'--B\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n' + b"x" * FIELD_MAX_BYTES)
    with pytest.raises(InvalidRequest) as caught:
        reader.feed(b"x" * 20)
    assert caught.value.param == "purpose"


def test_file_is_not_counted_as_overhead_nor_kept() -> None:
    reader = FormReader(CONTENT_TYPE)
    reader.feed(b'--B\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n')
    block = b"\r\n--" + b"x" * 65_536
    total = 0
    for _ in range(100):
        total += sum(len(event.data) for event in reader.feed(block) if isinstance(event, FileData))
    assert 100 * len(block) - total < 10


def test_boundary_after_plain_data_is_found_wherever_it_is_cut() -> None:
    plain = b"{}\n" * 20
    head = part('name="file"; filename="a"', plain)[: -len(plain) - 2]
    rest = b"\r\n" + part('name="purpose"', b"batch") + END
    expected = [*file_events("a", plain * 2), Field("purpose", "batch")]
    for first, second in itertools.combinations(range(len(rest) + 1), 2):
        assert parse([head, plain, plain, rest[:first], rest[first:second], rest[second:]]) == expected
    for cut in range(len(plain) + len(rest) + 1):
        tail = plain + rest
        assert parse([head + plain, tail[:cut], tail[cut : cut + 1], tail[cut + 1 :]]) == expected
