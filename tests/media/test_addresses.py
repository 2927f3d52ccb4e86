"""Which hosts and which addresses media may be fetched from."""

from __future__ import annotations

import ipaddress

import pytest

from forerun.errors import InvalidConfigError
from forerun.media.addresses import allowed_host, is_allowed, is_public

PRIVATE = """
    0.0.0.0 10.1.2.3 100.64.0.1 127.0.0.1 127.255.255.254 169.254.169.254 172.16.0.1 172.31.255.255 192.0.2.1
    192.168.0.1 198.18.0.1 203.0.113.7 224.0.0.1 240.0.0.1 255.255.255.255
    :: ::1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 64:ff9b::7f00:1 64:ff9b::a00:1 64:ff9b:1::1 2001:db8::1
    2002:7f00:1:: 2002:a00:1:: fc00::1 fd00:ec2::254 fe80::1 fec0::1 ff02::1
    2001:0:4136:e378:8000:63bf:f5ff:fffe
"""
PUBLIC = "1.1.1.1 8.8.8.8 93.184.216.34 2606:4700:4700::1111 ::ffff:8.8.8.8 64:ff9b::808:808 2002:808:808::"


@pytest.mark.parametrize("address", PRIVATE.split())
def test_addresses_of_private_networks_machines_and_groups_are_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", PUBLIC.split())
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    ("allowed", "scheme", "host", "port", "wanted"),
    [
        ("example.org", "https", "example.org", None, True),
        ("Example.ORG", "http", "example.org.", None, True),
        ("example.org", "https", "example.org", 443, True),
        ("example.org", "https", "example.org", 8443, False),
        ("example.org", "http", "example.org", 443, False),
        ("example.org:8443", "https", "example.org", 8443, True),
        ("example.org:8443", "https", "example.org", None, False),
        ("example.org", "https", "www.example.org", None, False),
        ("example.org", "https", "example.org.evil.net", None, False),
        ("*.example.org", "https", "a.b.example.org", None, True),
        ("*.example.org", "https", "example.org", None, False),
        ("*.example.org", "https", "evilexample.org", None, False),
        ("*", "https", "anything.net", None, True),
        ("*", "https", "anything.net", 22, False),
        ("[2606:4700::1]:8080", "http", "2606:4700::1", 8080, True),
        ("8.8.8.8", "http", "8.8.8.8", None, True),
    ],
)
def test_a_host_is_allowed_by_name_and_port(
    allowed: str, scheme: str, host: str, port: int | None, wanted: object
) -> None:
    assert is_allowed([allowed_host(allowed)], scheme, host, port) is wanted


@pytest.mark.parametrize(
    "text", ["", "http://example.org", "a b", "example.org/x", "a*.org", "x:0", "x:99999", "[::1", "a:b"]
)
def test_what_is_no_host_is_refused_when_the_server_is_set_up(text: str) -> None:
    with pytest.raises(InvalidConfigError, match="allow_media_url"):
        allowed_host(text)
