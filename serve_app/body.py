"""Request bodies: read within a size, decoded strictly."""

from collections.abc import AsyncIterable

import msgspec

from router.core.errors import InvalidRequest, PayloadTooLarge
from serve_app.allow_list import Json


async def read_body(
    chunks: AsyncIterable[bytes], content_length: str | None, max_bytes: int
) -> bytes:
    """The whole body. Raises `PayloadTooLarge` as soon as it is known, before the rest is read."""
    if (
        content_length is not None
        and content_length.isdecimal()
        and int(content_length) > max_bytes
    ):
        raise _too_large(max_bytes)
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
    return bytes(body)


def decode_object(body: bytes) -> Json:
    """The JSON object in `body`. Raises `InvalidRequest`; repeats nothing of the body."""
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest("The body is not valid JSON.", code="invalid_json") from error
    if not isinstance(decoded, dict):
        raise InvalidRequest("The body must be a JSON object.", code="invalid_json")
    return decoded


def _too_large(max_bytes: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"The body is larger than {max_bytes} bytes.")
