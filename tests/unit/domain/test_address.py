"""Which addresses may be called."""

from __future__ import annotations

import ipaddress

import pytest

from app.domain.address import is_public


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "93.184.216.34", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_accepts_an_address_of_the_open_internet(address: str) -> None:
    assert is_public(address)
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.9.10",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "192.0.2.1",
        "192.88.99.1",
        "198.18.0.1",
        "224.0.0.1",
        "239.1.2.3",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "fd12:3456::1",
        "ff02::1",
        "2001:db8::1",
    ],
)
def test_refuses_an_address_that_is_not_of_the_open_internet(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "::ffff:127.0.0.1",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::808:808",
        "2002:7f00:1::",
        "2001:0:4136:e378:8000:63bf:80ff:fffe",  # Teredo; its client is 127.0.0.1
    ],
)
def test_refuses_a_private_ipv4_address_inside_an_ipv6_one(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("text", ["", "localhost", "example.org", "127.1", "0x7f.0.0.1", "1.2.3.4.5", "[::1]"])
def test_refuses_what_is_no_address(text: str) -> None:
    assert not is_public(text)
