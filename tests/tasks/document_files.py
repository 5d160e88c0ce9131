"""Documents written by hand, byte by byte: no library that reads them has a part in them."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Sequence

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
DRAWN = "http://schemas.openxmlformats.org/drawingml/2006/main"
MIXED = "http://schemas.openxmlformats.org/markup-compatibility/2006"


def pdf(pages: Sequence[str], images: Sequence[int] = ()) -> bytes:
    """A PDF with a page a text; `images` are the numbers (from 0) of the pages that show the one picture in it."""
    streams = [f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode() if text else b"" for text in pages]
    return pdf_of(streams, images)


def pdf_of(streams: Sequence[bytes], images: Sequence[int] = (), packed: bool = False) -> bytes:
    count = len(streams)
    font, picture = 3 + 2 * count, 4 + 2 * count
    kids = " ".join(f"{3 + number} 0 R" for number in range(count))
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>", f"<< /Type /Pages /Kids [{kids}] /Count {count} >>".encode()]
    for number in range(count):
        shown = f"/XObject << /I {picture} 0 R >>" if number in images else ""
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {3 + count + number} 0 R "
            f"/Resources << /Font << /F1 {font} 0 R >> {shown} >> >>".encode()
        )
    for stream in streams:
        data = zlib.compress(stream) if packed else stream
        how = " /Filter /FlateDecode" if packed else ""
        objects.append(f"<< /Length {len(data)}{how} >>\nstream\n".encode() + data + b"\nendstream")
    objects.append(b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
    objects.append(
        b"<< /Type /XObject /Subtype /Image /Width 1 /Height 1 /ColorSpace /DeviceGray /BitsPerComponent 8 /Length 1 >>"
        b"\nstream\n0\nendstream"
    )
    file, places = bytearray(b"%PDF-1.4\n"), []
    for number, body in enumerate(objects, 1):
        places.append(len(file))
        file += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    start = len(file)
    file += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    file += b"".join(b"%010d 00000 n \n" % place for place in places)
    file += b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, start)
    return bytes(file)


def docx(body: str, before: str = "", **parts: str) -> bytes:
    """A Word document with this inside its body; `before` stands before its first element.

    `parts` are the insides of further parts by their names, such as header1.
    """
    spaces = f'xmlns:w="{WORD}" xmlns:a="{DRAWN}" xmlns:mc="{MIXED}"'
    xml = f'<?xml version="1.0"?>{before}<w:document {spaces}><w:body>{body}</w:body></w:document>'
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", xml)
        for name, inside in parts.items():
            archive.writestr(f"word/{name}.xml", f"<w:part {spaces}>{inside}</w:part>")
    return file.getvalue()


def paragraph(text: str) -> str:
    return f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>"
