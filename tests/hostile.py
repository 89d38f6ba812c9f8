"""Archives and images that somebody made to do harm, or that broke on their way. All are small and made here.

What must happen to each is a part of it: a rejection whose message names the reason, or an image that is left out and
named in the report while the sound ones beside it are imported.
"""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from PIL import Image

from tests.trees import tarred, zipped, zstandard
from tests.unit.workers.data.pictures import encoded, noise, png

GOOD = {f"cat/{i}.png": png(i) for i in range(3)}


@dataclass(frozen=True, slots=True)
class Attack:
    """One file of the corpus.

    Attributes:
        name: of the file.
        content: makes it.
        reason: a part of the error that it must be rejected with.
    """

    name: str
    content: Callable[[], bytes]
    reason: str


def _zip_entries(*entries: tuple[zipfile.ZipInfo | str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return buffer.getvalue()


def _zip_with(name: str) -> Callable[[], bytes]:
    # The standard library would tidy the name, so it is put in afterwards: one of the same length stands in for it.
    stand_in = "q" * len(name.encode())
    return lambda: zipped({**GOOD, stand_in: png()}).replace(stand_in.encode(), name.encode())


def _zip_special(mode: int) -> Callable[[], bytes]:
    def make() -> bytes:
        info = zipfile.ZipInfo("cat/special.png")
        info.create_system = 3
        info.external_attr = mode << 16
        return _zip_entries(*GOOD.items(), (info, b"/etc/passwd"))

    return make


def _patched(data: bytes, signature: bytes, offset: int, layout: str, *values: int) -> bytes:
    """A zip whose first record with this signature has other numbers at an offset."""
    changed = bytearray(data)
    struct.pack_into(layout, changed, changed.index(signature) + offset, *values)
    return bytes(changed)


def _zip_bomb() -> bytes:
    """Claims 100 GB; the claim alone must be enough."""
    data = zipped({"cat/a.png": bytes(100_000), "cat/b.png": png()})
    extra = struct.pack("<HHQ", 1, 8, 100 * 10**9)
    start = data.index(b"PK\x01\x02")
    head = bytearray(data[start : start + 46])
    struct.pack_into("<I", head, 24, 0xFFFFFFFF)
    struct.pack_into("<H", head, 30, len(extra))
    name_end = start + 46 + len("cat/a.png")
    patched = data[:start] + bytes(head) + data[start + 46 : name_end] + extra + data[name_end:]
    return _patched(
        patched, b"PK\x05\x06", 12, "<I", struct.unpack_from("<I", data, data.index(b"PK\x05\x06") + 12)[0] + 12
    )


def _zip_overlap() -> bytes:
    """Two entries of the list share one member, as in bombs that expand without bounds."""
    data = zipped({"cat/a.png": png(), "cat/b.png": png(1)})
    second = data.rindex(b"PK\x01\x02")
    changed = bytearray(data)
    struct.pack_into("<I", changed, second + 42, 0)
    return bytes(changed)


def _zip_real_bomb() -> bytes:
    return zipped({f"cat/{i}.png": bytes(30_000_000) for i in range(4)})


def _many_headers() -> bytes:
    info = tarfile.TarInfo("cat/x.png")
    info.pax_headers = {"GNU.sparse.major": "1"}
    header = info.tobuf(tarfile.PAX_FORMAT)[: 2 * tarfile.BLOCKSIZE]  # the extended one and its text
    return 100 * header + tarred(GOOD)


def _tar_with(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", **changes: object) -> Callable[[], bytes]:
    def make() -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for good, content in GOOD.items():
                member = tarfile.TarInfo(good)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            for key, value in changes.items():
                setattr(member, key, value)
            archive.addfile(member)
        return buffer.getvalue()

    return make


def _tar_header(size_field: bytes, kind: bytes = b"0") -> bytes:
    """A header with this size, and the right checksum."""
    header = bytearray(512)
    header[:9] = b"cat/x.png"
    header[124:136] = size_field.ljust(12, b"\0")
    header[156:157] = kind
    header[257:263] = b"ustar\0"
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + 256 + sum(header[156:]))
    return bytes(header)


def _pax(record: bytes) -> Callable[[], bytes]:
    def make() -> bytes:
        header = _tar_header(b"%o" % len(record), b"x")
        return header + record.ljust(-(-len(record) // 512) * 512, b"\0") + tarred(GOOD)

    return make


def _cut(data: Callable[[], bytes], share: float) -> Callable[[], bytes]:
    return lambda: data()[: int(len(data()) * share)]


def _gzip_bomb() -> bytes:
    start = tarred({"cat/a.png": bytes(80_000_000)})
    return gzip.compress(start, 9)


def _zstd_bomb() -> bytes:
    return zstandard(tarred({"cat/a.png": bytes(80_000_000)}))


ARCHIVES = [
    Attack("dots.zip", _zip_with("../../outside.png"), "'..'"),
    Attack("dots-inside.zip", _zip_with("cat/../../x.png"), "'..'"),
    Attack("backslashes.zip", _zip_with("..\\..\\x.png"), "'..'"),
    Attack("absolute.zip", _zip_with("/etc/outside.png"), "absolute path"),
    Attack("drive.zip", _zip_with("C:/x/outside.png"), "absolute path"),
    Attack("share.zip", _zip_with("\\\\host\\x.png"), "absolute path"),
    Attack("nul.zip", _zip_with("cat/x\0.png"), "NUL character"),
    Attack("link.zip", _zip_special(0o120777), "symbolic link"),
    Attack("device.zip", _zip_special(0o020666), "a device"),
    Attack("pipe.zip", _zip_special(0o010666), "named pipe"),
    Attack("socket.zip", _zip_special(0o140666), "a socket"),
    Attack("deep.zip", _zip_with("a/" * 70 + "x.png"), "64 folders"),
    Attack("long.zip", _zip_with("x" * 5000 + ".png"), "4096 bytes"),
    Attack("claims-100-gb.zip", _zip_bomb, "bytes"),
    Attack("bomb.zip", _zip_real_bomb, "decompression bomb"),
    Attack("overlap.zip", _zip_overlap, "share bytes"),
    Attack("cut.zip", _cut(lambda: zipped(GOOD), 0.6), "cut off"),
    Attack("list-cut.zip", lambda: _patched(zipped(GOOD), b"PK\x05\x06", 12, "<I", 99_999), "damaged"),
    Attack("list-rubbish.zip", lambda: zipped(GOOD).replace(b"PK\x01\x02", b"PKxx"), "damaged"),
    Attack("list-elsewhere.zip", lambda: _patched(zipped(GOOD), b"PK\x05\x06", 16, "<I", 0xFFFFFFF0), "damaged"),
    Attack("parts.zip", lambda: _patched(zipped(GOOD), b"PK\x05\x06", 4, "<H", 3), "several parts"),
    Attack("nothing.zip", lambda: zipped({}), "no image"),
    Attack("zip-in-zip.zip", lambda: zipped({"cat.zip": zipped(GOOD)}), "no image"),
    Attack("dots.tar", _tar_with("../outside.png"), "'..'"),
    Attack("absolute.tar", _tar_with("/tmp/outside.png"), "absolute path"),
    Attack("superscript.tar", _tar_with("cat/x.png", pax_headers={"size": "\N{SUPERSCRIPT TWO}"}), "is no number"),
    Attack("headers.tar", _many_headers, "extended headers before one file"),
    Attack("link.tar", _tar_with("cat/x.png", tarfile.SYMTYPE, "/etc/passwd"), "symbolic link"),
    Attack("link-folder.tar", _tar_with("cat", tarfile.SYMTYPE, ".."), "symbolic link"),
    Attack("hard-link.tar", _tar_with("cat/x.png", tarfile.LNKTYPE, "../../../etc/passwd"), "hard link"),
    Attack("character.tar", _tar_with("cat/x.png", tarfile.CHRTYPE), "a device"),
    Attack("block.tar", _tar_with("cat/x.png", tarfile.BLKTYPE), "a device"),
    Attack("pipe.tar", _tar_with("cat/x.png", tarfile.FIFOTYPE), "named pipe"),
    Attack("sparse.tar", _tar_with("cat/x.png", b"S"), "sparse"),
    Attack("sparse-pax.tar", _pax(b"22 GNU.sparse.major=1\n"), "sparse"),
    Attack("deep.tar", _tar_with("a/" * 70 + "x.png"), "64 folders"),
    Attack("long.tar", _tar_with("x" * 5000 + ".png"), "4096 bytes"),
    Attack("very-long.tar", _tar_with("x" * 100_000 + ".png"), "4096 bytes"),
    Attack("huge.tar", lambda: _tar_header(b"\x80" + (10**15).to_bytes(11, "big")), "beyond the end"),
    Attack("negative.tar", lambda: _tar_header(b"\xff" * 12), "beyond the end"),
    Attack("no-size.tar", lambda: _tar_header(b"zzzz"), "no number"),
    Attack("pax-size.tar", _pax(b"11 size=-1\n"), "no number"),
    Attack("pax-rubbish.tar", _pax(b"999999999 path=x\n"), "rubbish"),
    Attack("pax-zero.tar", _pax(b"0 path=x\n"), "rubbish"),
    Attack("cut.tar", _cut(lambda: tarred({"cat/a.png": bytes(9000)}), 0.3), "beyond the end"),
    Attack("rubbish-after.tar", lambda: tarred(GOOD)[:2048].rstrip(b"\0").ljust(2048, b"\0") + b"x" * 512, "damaged"),
    Attack("cut.tar.gz", _cut(lambda: gzip.compress(tarred(GOOD)), 0.6), "cut off or damaged"),
    Attack("cut.tar.zst", _cut(lambda: zstandard(tarred(GOOD)), 0.6), "cut off or damaged"),
    Attack("bomb.tar.gz", _gzip_bomb, "decompression bomb"),
    Attack("bomb.tar.zst", _zstd_bomb, "decompression bomb"),
    Attack("not-a-tar.gz", lambda: gzip.compress(bytes(range(256)) * 50), "no tar file"),
    Attack("text.zip", lambda: b"<html>404 not found</html>", "neither a folder nor a file of a known kind"),
    Attack("empty.zip", lambda: b"", "neither a folder nor a file of a known kind"),
]
"""Archives of which nothing may be imported."""


def _bomb(file_format: str) -> bytes:
    return encoded(Image.new("1", (8001, 8001)), file_format)


def _png_claiming(width: int, height: int) -> bytes:
    """A few bytes that declare gigabytes of pixels."""
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    chunk = struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body))
    return b"\x89PNG\r\n\x1a\n" + chunk + png()[33:]


def _bad_checksum() -> bytes:
    data = bytearray(png())
    data[data.index(b"IDAT") + 6] ^= 0xFF
    return bytes(data)


IMAGES: dict[str, Callable[[], bytes]] = {
    "cut.jpg": lambda: encoded(noise(64, 64), "JPEG")[:-200],
    "cut.png": lambda: png()[:60],
    "cut.gif": lambda: encoded(noise(64, 64), "GIF")[:200],
    "cut.webp": lambda: encoded(noise(64, 64), "WEBP")[:200],
    "cut.tif": lambda: encoded(noise(64, 64), "TIFF")[:300],
    "zero.png": lambda: b"",
    "text.jpg": lambda: b"not found",
    "page.png": lambda: b"<html><body>404</body></html>",
    "checksum.png": _bad_checksum,
    "bomb.png": lambda: _bomb("PNG"),
    "bomb.tif": lambda: encoded(Image.new("1", (8001, 8001)), "TIFF", compression="group4"),
    "claims.png": lambda: _png_claiming(2**31 - 1, 2**31 - 1),
    "claims-some.png": lambda: _png_claiming(60_000, 60_000),
    "no-pixels.png": lambda: _png_claiming(0, 0),
    "floats.tif": lambda: encoded(Image.new("F", (8, 8)), "TIFF"),
    "postscript.jpg": lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n",
    "drawing.png": lambda: b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>",
    "program.jpg": lambda: b"\x7fELF" + bytes(300),
}
"""Files that are no images, whatever their names say."""
